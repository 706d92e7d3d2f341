"""Runs of one graph that are watched: every value is compared with what a first run gave.

What :mod:`flowmx.graph.checking.race` is made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import numpy as np

from flowmx import devices
from flowmx.devices import Context, Device, cpu
from flowmx.errors import MXNetError
from flowmx.graph.checking.poison import PATTERN, Group, fill, groups
from flowmx.graph.graph import written
from flowmx.graph.node import Entry, Node
from flowmx.graph.plan import Plan
from flowmx.graph.reports.occupancy import label
from flowmx.graph.running.results import Results
from flowmx.graph.running.runner import Runner
from flowmx.graph.running.steps import Step, run_steps
from flowmx.ops.registry.operators import Array, Run


class RaceError(MXNetError):
    """A plan computes other values than its graph; the message names the value and the step that overwrote it."""


class _Run(Run):
    """A run that draws its own random numbers, the same each time."""

    __slots__ = ("_generator",)

    def __init__(self, device: Device, train: bool, memo: dict[Any, Any], seed: int) -> None:
        super().__init__(device, train, memo)
        self._generator = np.random.default_rng(seed)

    @property
    def random(self) -> np.random.Generator:
        return self._generator


class _Written(NamedTuple):
    """Bytes of an arena that were written, and by what."""

    context: Context | None
    start: int
    stop: int
    what: str


class Comparison:
    """Runs plans of one graph, and compares every value with the first run's.

    Args:
        plan: any plan of the graph.
        content: an array for each variable.
        seed: of what operators draw.
    """

    def __init__(self, plan: Plan, content: Mapping[Entry, Array], seed: int) -> None:
        self.comparisons = 0
        self._content = content
        self._seed = seed
        self._expected: dict[Entry, Array] = {}
        self._states: dict[Entry, Array] = {}
        graph = plan.graph
        self._changing = written([*plan.forward, *plan.backward], graph.train)
        every = (*plan.once, *plan.forward, *plan.backward)
        self._read = {entry for node in every for entry in node.inputs} | set(graph.wanted())
        contexts = {graph.context(node) for node in every}
        self._devices = {context: devices.get(context or cpu(0)) for context in contexts}

    def record(self, plan: Plan) -> None:
        """Run a plan that shares no memory, and remember what it gives."""
        running = _Running(plan, self._content, self._changing, self._devices, self._seed)
        for step in (*running.runner.once, *running.steps.values()):
            running.compute(step)
            for entry, array in zip(running.outputs(step), step.outputs, strict=True):
                self._expected[entry] = np.array(array)
        self._states = running.states

    def run(self, plan: Plan, how: str, chooser: Random) -> None:
        """Run a plan, with all that holds no value overwritten as soon as it may be.

        Args:
            plan: the plan.
            how: what is special about it, in words.
            chooser: says which goes on, of branches that may run at the same time.

        Raises:
            RaceError: a value is not what it was in the first run.
        """
        running = _Running(plan, self._content, self._changing, self._devices, self._seed)
        for step in running.runner.once:
            running.compute(step)
        at = 0
        for group in groups(plan):
            for node in _woven(group.chains, chooser):
                if node in running.steps:
                    self._step(running, running.steps[node], f"step {at} ({node.name}, {node.op!r})", how)
                at += 1
            running.free(group, f"step {at - 1} ({node.name}, {node.op!r})")
        for entry in plan.graph.wanted():
            array = running.runner.arrays[plan.root.get(entry, entry)]
            self._compare(running, entry, array, "before it was handed out", how)
        for entry, array in running.states.items():
            if not _same(array, self._states[entry]):
                raise RaceError(f"race check {how}: {entry.node.name} ends up as something else")

    def _step(self, running: _Running, step: Step, title: str, how: str) -> None:
        """Run a step, and compare what it reads and writes."""
        contents = set(step.node.contents())
        for entry, array in zip(step.node.inputs, step.inputs, strict=True):
            if entry in contents:
                self._compare(running, entry, array, f"before {title} read it", how)
        running.compute(step)
        for entry in running.outputs(step):
            running.log(entry, title)
        for entry, array in zip(running.outputs(step), step.outputs, strict=True):
            if entry in self._read and not self._is_right(entry, array):
                raise RaceError(
                    f"race check {how}: {title} computes another {label(entry)} than without shared memory, from "
                    f"the same inputs: {running.company(entry)}"
                )

    def _compare(self, running: _Running, entry: Entry, array: Array, when: str, how: str) -> None:
        root = running.plan.root.get(entry, entry)
        if not root.node.is_variable and not self._is_right(root, array):
            raise RaceError(f"race check {how}: {label(root)} was overwritten {when}, by {running.culprit(root)}")

    def _is_right(self, entry: Entry, array: Array) -> bool:
        self.comparisons += 1
        expected = self._expected.get(entry)  # what has no elements was not computed
        return expected is None or _same(array, expected.reshape(array.shape))


class _Running:
    """A plan with arrays of its own.

    Attributes:
        steps: of the forward and the backward pass, by node, in order.
        states: the arrays of variables that the steps write.
    """

    def __init__(
        self,
        plan: Plan,
        content: Mapping[Entry, Array],
        changing: set[Node],
        used: Mapping[Context | None, Device],
        seed: int,
    ) -> None:
        self.plan = plan
        self.runner = Runner(Results(plan), used, plan.graph.train, "a checked graph")
        self.steps = {step.node: step for step in (*self.runner.forward, *self.runner.backward)}
        self._memory: dict[Context | None, Array] = {}
        self._log: list[_Written] = []
        self._since: dict[Entry, int] = {}
        memo: dict[Any, Any] = {}
        self._runs = {context: _Run(device, plan.graph.train, memo, seed) for context, device in used.items()}
        for context, nbytes in plan.arenas.items():
            memory = self._memory[context] = used[context].allocate((nbytes,), np.dtype(np.uint8))
            memory[:] = PATTERN
            self.runner.settle(context, memory)
        self.runner.allocate_kept()
        for entry in plan.external - plan.root.keys():
            shape, dtype = plan.graph.shapes[entry], plan.graph.dtypes[entry]
            self.runner.put(entry, self.runner.device(entry.node).allocate(shape, dtype))
        self.states = {entry: array.copy() for entry, array in content.items() if entry.node in changing}
        for entry, array in {**content, **self.states}.items():
            self.runner.put(entry, array)

    def compute(self, step: Step) -> None:
        """Run a step."""
        with np.errstate(all="ignore"):
            run_steps(self._runs[self.plan.graph.context(step.node)], [step], "a checked graph")

    def outputs(self, step: Step) -> list[Entry]:
        """The entries that a step computes."""
        return [Entry(step.node, index) for index in range(len(step.outputs))]

    def log(self, entry: Entry, what: str) -> None:
        """Log the step that wrote a value."""
        if entry in self.plan.place:
            start = self.plan.arena.offsets[self.plan.place[entry]]
            what = f"{what}, which writes {label(entry)} there"
            self._since[entry] = len(self._log) + 1
            self._log.append(
                _Written(self.plan.graph.context(entry.node), start, start + self.plan.nbytes(entry), what)
            )

    def free(self, group: Group, what: str) -> None:
        """Overwrite the bytes that are free after some steps."""
        for context, ranges in group.freed.items():
            fill(self._memory[context], ranges)
            said = f"others: its bytes count as free after {what}"
            self._log += [_Written(context, *extent, said) for extent in ranges]

    def culprit(self, entry: Entry) -> str:
        """Description of the step that first overwrote a value."""
        place = self.plan.place.get(entry)
        if place is None:
            return "a step that changes its input without saying so"
        start, context = self.plan.arena.offsets[place], self.plan.graph.context(entry.node)
        stop = start + self.plan.nbytes(entry)
        for each in self._log[self._since.get(entry, 0) :]:
            if each.context is context and each.start < stop and start < each.stop:
                return each.what
        return "a step that changes its input without saying so"

    def company(self, entry: Entry) -> str:
        """Description of the other values on the same bytes while a value is computed."""
        place = self.plan.place.get(entry, -1)
        for each in entry.node.inputs:
            if self.plan.place.get(self.plan.root.get(each, each)) == place:
                return f"it works in place of {label(each)}"
        start = self._since.get(entry, 0) - 1
        mine = self._log[start]
        others = [each for each in self._log[start + 1 :] if each.start < mine.stop and mine.start < each.stop]
        return f"the same bytes are those of {others[0].what}" if place >= 0 and others else "it shares no memory"


def _woven(chains: Sequence[Sequence[Node]], chooser: Random) -> Iterator[Node]:
    """The nodes of all chains in one row, those of each in their order."""
    rest = [list(reversed(chain)) for chain in chains]
    while rest:
        chain = chooser.choice(rest)
        yield chain.pop()
        if not chain:
            rest.remove(chain)


def _same(one: Array, other: Array) -> bool:
    """Tell whether two arrays have the same dtype and the same bits."""
    kind = np.dtype(f"u{one.dtype.itemsize}")
    return one.dtype == other.dtype and bool(np.array_equal(one.view(kind), other.view(kind)))
