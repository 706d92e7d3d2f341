"""Runs of a graph that compare every value with a reference run, for :mod:`flowmx.graph.checking.race`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import numpy as np

from flowmx import devices
from flowmx.devices import Context, Device, cpu
from flowmx.errors import MXNetError
from flowmx.graph.checking.poison import PATTERN, Group, fill, groups
from flowmx.graph.graph import written_variables
from flowmx.graph.node import Entry, Node
from flowmx.graph.plan import Plan
from flowmx.graph.reports.occupancy import label
from flowmx.graph.running.results import Results
from flowmx.graph.running.runner import Runner
from flowmx.graph.running.steps import Step, run_steps
from flowmx.ops.registry.operators import Array, Run


class RaceError(MXNetError):
    """A plan and its graph compute different values; the message names the value and the step that overwrote it."""


class _Run(Run):
    """An operation context with a separate random generator, which draws the same numbers each time."""

    __slots__ = ("_generator",)

    def __init__(self, device: Device, train: bool, memo: dict[Any, Any], seed: int) -> None:
        super().__init__(device, train, memo)
        self._generator = np.random.default_rng(seed)

    @property
    def random(self) -> np.random.Generator:
        return self._generator


class _Written(NamedTuple):
    """Bytes of an arena that were written, and the description of the writer."""

    context: Context | None
    start: int
    stop: int
    writer: str


class Comparison:
    """Runs plans of one graph, and compares every value with the reference run.

    Args:
        plan: any plan of the graph.
        content: an array for each variable.
        seed: the seed of random operators.
    """

    def __init__(self, plan: Plan, content: Mapping[Entry, Array], seed: int) -> None:
        self.comparisons = 0
        self._content = content
        self._seed = seed
        self._expected: dict[Entry, Array] = {}
        self._states: dict[Entry, Array] = {}
        graph = plan.graph
        self._changing = written_variables([*plan.forward, *plan.backward], graph.train)
        every = (*plan.once, *plan.forward, *plan.backward)
        self._read = {entry for node in every for entry in node.inputs} | set(graph.results())
        contexts = {graph.context(node) for node in every}
        self._devices = {context: devices.get(context or cpu(0)) for context in contexts}

    def record(self, plan: Plan) -> None:
        """Run a plan without shared memory, and record its values as the reference."""
        running = _Running(plan, self._content, self._changing, self._devices, self._seed)
        for step in (*running.runner.once, *running.steps.values()):
            running.compute(step)
            for entry, array in zip(running.outputs(step), step.outputs, strict=True):
                self._expected[entry] = np.array(array)
        self._states = running.states

    def run(self, plan: Plan, description: str, chooser: Random) -> None:
        """Run a plan, overwriting bytes without a value as soon as possible.

        Args:
            plan: the plan.
            description: describes the plan in messages.
            chooser: chooses the next of concurrent branches.

        Raises:
            RaceError: a value differs from the reference.
        """
        running = _Running(plan, self._content, self._changing, self._devices, self._seed)
        for step in running.runner.once:
            running.compute(step)
        index = 0
        for group in groups(plan):
            for node in _interleave(group.chains, chooser):
                if node in running.steps:
                    self._step(running, running.steps[node], f"step {index} ({node.name}, {node.op!r})", description)
                index += 1
            running.free(group, f"step {index - 1} ({node.name}, {node.op!r})")
        for entry in plan.graph.results():
            array = running.runner.arrays[plan.root.get(entry, entry)]
            self._compare(running, entry, array, "before it was returned", description)
        for entry, array in running.states.items():
            if not _same(array, self._states[entry]):
                raise RaceError(f"race check {description}: the final value of {entry.node.name} differs")

    def _step(self, running: _Running, step: Step, title: str, description: str) -> None:
        """Run a step, and compare the values that it reads and writes."""
        contents = set(step.node.contents())
        for entry, array in zip(step.node.inputs, step.inputs, strict=True):
            if entry in contents:
                self._compare(running, entry, array, f"before {title} read it", description)
        running.compute(step)
        for entry in running.outputs(step):
            running.log(entry, title)
        for entry, array in zip(running.outputs(step), step.outputs, strict=True):
            if entry in self._read and not self._is_right(entry, array):
                raise RaceError(
                    f"race check {description}: {title} computes another {label(entry)} than without shared memory, "
                    f"from the same inputs: {running.describe_sharing(entry)}"
                )

    def _compare(self, running: _Running, entry: Entry, array: Array | None, when: str, description: str) -> None:
        root = running.plan.root.get(entry, entry)
        if not root.node.is_variable and not self._is_right(root, array):
            raise RaceError(
                f"race check {description}: {label(root)} was overwritten {when}, by {running.overwriter(root)}"
            )

    def _is_right(self, entry: Entry, array: Array | None) -> bool:
        self.comparisons += 1
        expected = self._expected.get(entry)  # None: empty arrays are not computed
        return expected is None or (array is not None and _same(array, expected.reshape(array.shape)))


class _Running:
    """A plan with separate arrays.

    Attributes:
        steps: the steps of the forward and the backward pass, by node, in order.
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
            self.runner.bind_arena(context, memory)
        self.runner.allocate_separate()
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
        """Return the entries that a step computes."""
        return [Entry(step.node, index) for index in range(len(step.outputs))]

    def log(self, entry: Entry, writer: str) -> None:
        """Log the step that wrote a value."""
        if entry in self.plan.place:
            start = self.plan.arena.offsets[self.plan.place[entry]]
            writer = f"{writer}, which writes {label(entry)} there"
            self._since[entry] = len(self._log) + 1
            self._log.append(
                _Written(self.plan.graph.context(entry.node), start, start + self.plan.nbytes(entry), writer)
            )

    def free(self, group: Group, writer: str) -> None:
        """Overwrite the bytes that are free after a group of steps."""
        for context, ranges in group.freed.items():
            fill(self._memory[context], ranges)
            description = f"others: its bytes count as free after {writer}"
            self._log += [_Written(context, *extent, description) for extent in ranges]

    def overwriter(self, entry: Entry) -> str:
        """Describe the step that first overwrote a value."""
        place = self.plan.place.get(entry)
        if place is None:
            return "a step that changes its input without declaring it"
        start, context = self.plan.arena.offsets[place], self.plan.graph.context(entry.node)
        stop = start + self.plan.nbytes(entry)
        for write in self._log[self._since.get(entry, 0) :]:
            if write.context is context and write.start < stop and start < write.stop:
                return write.writer
        return "a step that changes its input without declaring it"

    def describe_sharing(self, entry: Entry) -> str:
        """Describe the other values on the same bytes while a value is computed."""
        place = self.plan.place.get(entry, -1)
        for source in entry.node.inputs:
            if self.plan.place.get(self.plan.root.get(source, source)) == place:
                return f"it works in place of {label(source)}"
        start = self._since.get(entry, 0) - 1
        own = self._log[start]
        others = [write for write in self._log[start + 1 :] if write.start < own.stop and own.start < write.stop]
        return f"it shares bytes with {others[0].writer}" if place >= 0 and others else "it shares no memory"


def _interleave(chains: Sequence[Sequence[Node]], chooser: Random) -> Iterator[Node]:
    """Iterate over the nodes of all chains in a random order that keeps the order of each chain."""
    rest = [list(reversed(chain)) for chain in chains]
    while rest:
        chain = chooser.choice(rest)
        yield chain.pop()
        if not chain:
            rest.remove(chain)


def _same(one: Array, other: Array) -> bool:
    """Return whether two arrays have the same dtype and the same bits."""
    kind = np.dtype(f"u{one.dtype.itemsize}")
    return one.dtype == other.dtype and bool(np.array_equal(one.view(kind), other.view(kind)))
