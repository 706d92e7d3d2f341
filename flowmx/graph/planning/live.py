"""Bytes alive at each step, for steps in any order: the figure by which orders are compared.

It counts as the plan does (views are the bytes of what they show, an operator may take over an input that is done
with, what lies outside of the arena counts nothing), but only counts, which takes little time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from flowmx.graph.graph import Graph
from flowmx.graph.node import Entry, Node
from flowmx.ops.registry.operators import Operator, Shape

Shapes = tuple[list[Shape], list[Shape]]
"""Those of an operator's inputs, and of its outputs."""


class StepValues(NamedTuple):
    """A step by the numbers of its values: each that it reads, once, and each that it writes.

    Attributes:
        takes: pairs of a value that it reads and one that it may write over it.
        workspace: bytes that it needs while it runs.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    takes: tuple[tuple[int, int], ...] = ()
    workspace: int = 0


class Values:
    """The values of a graph, numbered, and its nodes as steps over them.

    Args:
        graph: the graph.
        nodes: its operators, inputs before users.
        workspaces: bytes that nodes need while they run.

    Attributes:
        sizes: the bytes of each value in an arena; 0 for what lies elsewhere.
        steps: one for each node.
        wanted: the values that live to the end.
    """

    def __init__(self, graph: Graph, nodes: Sequence[Node], workspaces: Mapping[Node, int] | None = None) -> None:
        self._workspaces = workspaces or {}
        self._known: dict[Operator, tuple[int, bool, tuple[tuple[int, int], ...], bool]] = {}
        self.sizes: list[int] = []
        self.numbers: dict[Entry, int] = {}
        once = [node for node in nodes if node.op is not None and node.op.traits.once]
        elsewhere = external(graph) | {Entry(node, index) for node in once for index in range(node.outputs())}
        self.steps = [self._step(graph, node, elsewhere) for node in nodes]
        self.wanted = {self.numbers[entry] for entry in graph.wanted() if entry in self.numbers}

    def _step(self, graph: Graph, node: Node, elsewhere: set[Entry]) -> StepValues:
        op = node.op
        assert op is not None
        if op not in self._known:
            self._known[op] = node.outputs(), op.traits.view, op.traits.in_place, bool(op.only_shapes())
        outputs, is_view, in_place, is_picky = self._known[op]
        numbers, sizes = self.numbers, self.sizes
        read = [numbers.get(entry, -1) for entry in node.inputs]
        contents = [numbers.get(entry, -1) for entry in node.contents()] if is_picky else read
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
        takes: tuple[tuple[int, int], ...] = ()
        if in_place:
            once = {number: sizes[number] for number in reads if sizes[number] and read.count(number) == 1}
            takes = tuple([
                (read[source], writes[target])
                for source, target in in_place
                if source < len(read) and once.get(read[source]) == sizes[writes[target]]
            ])  # fmt: skip
        return StepValues(reads, tuple(writes), takes, self._workspaces.get(node, 0))

    def alive(self, order: Iterable[int]) -> list[int]:
        """The bytes alive at each step, in this order of the positions of the nodes."""
        return alive([self.steps[at] for at in order], self.sizes, self.wanted)


def alive(steps: Sequence[StepValues], sizes: Sequence[int], wanted: Iterable[int]) -> list[int]:
    """The bytes alive at each of some steps.

    Args:
        steps: in order.
        sizes: of every value.
        wanted: the values that live to the end.
    """
    left = [0] * len(sizes)
    for step in steps:
        for value in step.reads:
            left[value] += 1
    for value in wanted:
        left[value] += 1
    now, found = 0, []
    for reads, writes, takes, workspace in steps:
        taken: dict[int, int] = {}
        for source, target in takes:
            if left[source] == 1 and source not in taken and target not in taken.values():
                taken[source] = target
                now -= sizes[source]
        for value in writes:
            now += sizes[value]
        found.append(now + workspace)
        for value in reads:
            count = left[value] = left[value] - 1
            if not count and value not in taken:
                now -= sizes[value]
        for value in writes:
            if not left[value]:
                now -= sizes[value]
    return found


def external(graph: Graph) -> set[Entry]:
    """The entries that get memory from outside: outputs, and gradients written straight to the user's arrays."""
    forward = set(graph.forward())
    straight = [entry for node, entry in graph.gradients.items() if node in graph.straight]
    counted = dict.fromkeys(graph.gradients.values(), 0)
    for entry in graph.gradients.values():
        counted[entry] += 1
    return {
        *(entry for entry in graph.outputs if not entry.node.is_variable),
        *(entry for entry in straight if counted[entry] == 1 and entry.node.op and entry.node not in forward),
    }


def nbytes(graph: Graph, entry: Entry) -> int:
    """Bytes of one entry."""
    return math.prod(graph.shapes[entry]) * graph.dtypes[entry].itemsize


def shapes_of(graph: Graph, node: Node) -> Shapes:
    """The shapes of an operator's inputs and outputs."""
    shapes = graph.shapes
    return [shapes[entry] for entry in node.inputs], [shapes[node, at] for at in range(node.outputs())]  # type: ignore[index]  # a pair does
