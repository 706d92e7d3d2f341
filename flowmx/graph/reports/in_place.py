"""In-place steps of a plan, and reasons why others are not in place.

An operator declares which of its outputs may overwrite which inputs; the planner decides (``plan.py``). The decision is
read from the finished plan, and the first condition that fails is the reason.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from flowmx.graph.node import Entry, Node
from flowmx.graph.reports.occupancy import label

if TYPE_CHECKING:
    from flowmx.graph.plan import Plan


class Case(NamedTuple):
    """An output that its step may write over an input.

    Attributes:
        plan: the plan.
        node: the step.
        step: its number.
        output, source: the entries; if the input is a view, the source is the viewed entry.
        later: the next step that reads the source, or None.
        is_result: whether the source is a result of the graph.
    """

    plan: Plan
    node: Node
    step: int
    output: Entry
    source: Entry
    later: int | None
    is_result: bool

    @property
    def is_done(self) -> bool:
        """Whether the output overwrites its input."""
        place = self.plan.place
        return self.output in place and place[self.output] == place.get(self.source)

    def why_not(self) -> tuple[str, str]:
        """Return the reason why it does not, in short and at length."""
        short, text, _ = next(reason for reason in _REASONS if reason[2](self))
        sizes = self.plan.nbytes(self.source), self.plan.nbytes(self.output)
        return short, text.format(source=label(self.source), later=self.later, sizes=sizes)

    def _times_read(self) -> int:
        return [self.plan.root.get(entry, entry) for entry in self.node.inputs].count(self.source)

    def _is_source_taken(self) -> bool:
        place = self.plan.place
        others = [Entry(self.node, index) for index in range(self.node.outputs())]
        return any(place.get(other) == place[self.source] for other in others)

    def _layouts_differ(self) -> bool:
        return (self.source in self.plan.channels_last) != (self.output in self.plan.channels_last)


_REASONS: tuple[tuple[str, str, Callable[[Case], bool]], ...] = (
    ("output elsewhere", "the output is in an array of the user, or is kept",
     lambda case: case.output not in case.plan.place),
    ("input of the user's", "{source} is an array of the user", lambda case: case.source.node.is_variable),
    ("input elsewhere", "{source} is in an array of the user, or is kept",
     lambda case: case.source not in case.plan.place),
    ("read again", "{source} is read again by step {later}", lambda case: case.later is not None),
    ("handed out", "{source} is an output or a gradient, which is returned at the end", lambda case: case.is_result),
    ("read twice", "this step reads {source} twice", lambda case: case._times_read() > 1),
    ("sizes differ", "the sizes differ: {sizes[0]} and {sizes[1]} bytes",
     lambda case: case.plan.nbytes(case.source) != case.plan.nbytes(case.output)),
    ("layouts differ", "the layouts differ: one of them is channels-last", Case._layouts_differ),
    ("taken", "another output is in place of {source}", Case._is_source_taken),
    ("switched off", "in-place operation is disabled (FLOWMX_EXEC_ENABLE_INPLACE)", lambda case: True),
)  # fmt: skip


class InPlace:
    """The cases of a plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._steps = plan.steps()
        self._results = {self._root(entry) for entry in plan.graph.results()}
        self._readers: dict[Entry, list[int]] = {}
        for step, node in enumerate(self._steps):
            for root in dict.fromkeys(map(self._root, node.inputs)):
                self._readers.setdefault(root, []).append(step)

    def _root(self, entry: Entry) -> Entry:
        return self._plan.root.get(entry, entry)

    def cases(self, step: int) -> list[Case]:
        """Return the cases of one step."""
        node = self._steps[step]
        assert node.op is not None
        return [
            self._case(step, node, Entry(node, output), self._root(node.inputs[position]))
            for position, output in node.op.traits.in_place
            if position < len(node.inputs) and output < node.outputs()
        ]

    def missed_cases(self, step: int) -> list[Case]:
        """Return the first case of each output of a step that overwrites no input."""
        cases = self.cases(step)
        overwriting = {case.output for case in cases if case.is_done}
        first = {case.output: case for case in reversed(cases) if case.output not in overwriting}
        return list(first.values())

    def last_read(self, entry: Entry, step: int) -> int:
        """Return the last step that reads a value of a step, or that step."""
        return max(self._readers.get(entry, [step]))

    def is_result(self, entry: Entry) -> bool:
        """Return whether a value is an output or a gradient, so that it is read at the end."""
        return entry in self._results

    def _case(self, step: int, node: Node, output: Entry, source: Entry) -> Case:
        readers = self._readers[source]
        index = bisect_right(readers, step)
        later = readers[index] if index < len(readers) else None
        return Case(self._plan, node, step, output, source, later, source in self._results)
