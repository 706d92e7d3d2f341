"""Bytes alive at each step, for steps in any order: the measure by which orders are compared.

It counts as the plan does (views share the viewed bytes, an operator may overwrite an input without later readers,
external memory does not count), but does not place values, so it is fast.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from flowmx.graph.graph import Graph
from flowmx.graph.node import Entry, Node
from flowmx.ops.registry.operators import Operator, Shape

Shapes = tuple[list[Shape], list[Shape]]
"""The shapes of an operator's inputs, and of its outputs."""


class StepValues(NamedTuple):
    """A step, by the numbers of the values that it reads and writes, each once.

    Attributes:
        in_place: pairs of a value that it reads and one that it may write in place.
        workspace: the size in bytes of the scratch memory that it needs while it runs.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    in_place: tuple[tuple[int, int], ...] = ()
    workspace: int = 0


class Values:
    """The values of a graph, numbered, and its nodes as steps over them.

    Args:
        graph: the graph.
        nodes: its operators, inputs before users.
        workspaces: the sizes in bytes of the scratch memory that nodes need while they run.

    Attributes:
        sizes: the size in bytes of each value in an arena; 0 for values with external memory.
        steps: one for each node.
        results: the values that live to the end.
    """

    def __init__(self, graph: Graph, nodes: Sequence[Node], workspaces: Mapping[Node, int] | None = None) -> None:
        self._workspaces = workspaces or {}
        self._cache: dict[Operator, tuple[int, bool, tuple[tuple[int, int], ...], bool]] = {}
        self.sizes: list[int] = []
        self.numbers: dict[Entry, int] = {}
        once = [node for node in nodes if node.op is not None and node.op.traits.once]
        elsewhere = external(graph) | {Entry(node, index) for node in once for index in range(node.outputs())}
        self.steps = [self._step(graph, node, elsewhere) for node in nodes]
        self.results = {self.numbers[entry] for entry in graph.results() if entry in self.numbers}

    def _step(self, graph: Graph, node: Node, elsewhere: set[Entry]) -> StepValues:
        op = node.op
        assert op is not None
        if op not in self._cache:
            self._cache[op] = node.outputs(), op.traits.view, op.traits.in_place, bool(op.shape_only_inputs())
        outputs, is_view, pairs, reads_shapes = self._cache[op]
        numbers, sizes = self.numbers, self.sizes
        read = [numbers.get(entry, -1) for entry in node.inputs]
        contents = [numbers.get(entry, -1) for entry in node.contents()] if reads_shapes else read
        reads = tuple([number for number in dict.fromkeys(contents) if number >= 0])
        if is_view:
            if read[0] >= 0:
                numbers[Entry(node, 0)] = read[0]
            return StepValues((), ())
        writes = range(len(sizes), len(sizes) + outputs)
        for index, number in enumerate(writes):
            entry = Entry(node, index)
            numbers[entry] = number
            sizes.append(0 if entry in elsewhere else nbytes(graph, entry))
        in_place: tuple[tuple[int, int], ...] = ()
        if pairs:
            once = {number: sizes[number] for number in reads if sizes[number] and read.count(number) == 1}
            in_place = tuple([
                (read[source], writes[target])
                for source, target in pairs
                if source < len(read) and once.get(read[source]) == sizes[writes[target]]
            ])  # fmt: skip
        return StepValues(reads, tuple(writes), in_place, self._workspaces.get(node, 0))

    def alive(self, order: Iterable[int]) -> list[int]:
        """Return the bytes alive at each step, for an order of the positions of the nodes."""
        return alive([self.steps[index] for index in order], self.sizes, self.results)


def alive(steps: Sequence[StepValues], sizes: Sequence[int], results: Iterable[int]) -> list[int]:
    """Return the bytes alive at each step.

    Args:
        steps: the steps, in order.
        sizes: the size of every value in bytes.
        results: the values that live to the end.
    """
    uses = [0] * len(sizes)
    for step in steps:
        for value in step.reads:
            uses[value] += 1
    for value in results:
        uses[value] += 1
    live, totals = 0, []
    for reads, writes, in_place, workspace in steps:
        donors: dict[int, int] = {}
        for source, target in in_place:
            if uses[source] == 1 and source not in donors and target not in donors.values():
                donors[source] = target
                live -= sizes[source]
        for value in writes:
            live += sizes[value]
        totals.append(live + workspace)
        for value in reads:
            count = uses[value] = uses[value] - 1
            if not count and value not in donors:
                live -= sizes[value]
        for value in writes:
            if not uses[value]:
                live -= sizes[value]
    return totals


def external(graph: Graph) -> set[Entry]:
    """Return the entries with external memory: outputs, and gradients written directly to the user's arrays."""
    forward = set(graph.forward())
    direct = [entry for node, entry in graph.gradients.items() if node in graph.direct]
    counts = dict.fromkeys(graph.gradients.values(), 0)
    for entry in graph.gradients.values():
        counts[entry] += 1
    return {
        *(entry for entry in graph.outputs if not entry.node.is_variable),
        *(entry for entry in direct if counts[entry] == 1 and entry.node.op and entry.node not in forward),
    }


def nbytes(graph: Graph, entry: Entry) -> int:
    """Return the size of one entry in bytes."""
    return math.prod(graph.shapes[entry]) * graph.dtypes[entry].itemsize


def shapes_of(graph: Graph, node: Node) -> Shapes:
    """Return the shapes of an operator's inputs and outputs."""
    shapes = graph.shapes
    return [shapes[entry] for entry in node.inputs], [shapes[Entry(node, index)] for index in range(node.outputs())]
