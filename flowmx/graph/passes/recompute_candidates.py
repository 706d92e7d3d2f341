"""Candidates for recomputation in a forward pass, with cost and savings.

Steps are identified by their positions, and no graphs are created. A *copy* of a step is its second execution, in the
backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from flowmx.graph.graph import Graph, is_pure, written_variables
from flowmx.graph.node import Entry, Node
from flowmx.graph.planning.live_bytes import StepValues, Values, alive
from flowmx.graph.planning.order import order_passes_separately
from flowmx.ops.compiled.fused_layers import CopyToDevice
from flowmx.ops.compiled.recomputed import RECOMPUTED

FLOPS = 8
"""The number of floating-point operations that take about as long as moving one byte."""
_SMALL = 8
"""A value this many times smaller than a result may be kept in order to recompute the result."""


class RecomputeCandidates:
    """The steps of a training graph, and which of them may be recomputed.

    Args:
        graph: the graph.
        workspaces: the sizes in bytes of the scratch memory that nodes need while they run.

    Attributes:
        nodes: the operators of the forward pass, then those of the backward pass.
        forward: the number of forward operators.
        values: the values that the operators read and write.
        bytes: for each forward operator, the total size of its results in bytes.
        cost: for each forward operator, its approximate time, as the number of bytes that could be moved meanwhile.
        source: for each value, the position of the step that computes it; -1 if a copy of that step does not restore
            it.
        read_backward: whether the backward pass reads a value.
        recomputable: whether each step may be recomputed.
        choices: cached choices, by the budget in bytes.
    """

    def __init__(self, graph: Graph, workspaces: Mapping[Node, int] | None = None) -> None:
        forward, backward = order_passes_separately(graph)
        self.choices: dict[int, Any] = {}
        self.nodes: list[Node] = [*forward, *backward]
        self.forward = len(forward)
        self.values = Values(graph, self.nodes, workspaces)
        sizes, steps = self.values.sizes, self.values.steps
        self.bytes = [sum([sizes[value] for value in step.writes]) for step in steps[: self.forward]]
        self.cost = [_cost(graph, node) for node in forward]
        self.source = [-1] * len(sizes)
        for position, node in enumerate(forward):
            for index, value in enumerate(steps[position].writes):
                if index == 0 or node.op is None or node.op.name not in RECOMPUTED:
                    self.source[value] = position
        self.read_backward = bytearray(len(sizes))
        for step in steps[self.forward :]:
            for value in step.reads:
                self.read_backward[value] = 1
        self._sources = [[self.source[value] for value in step.reads if self.source[value] >= 0] for step in steps]
        changed = written_variables(self.nodes, graph.train)
        copied = {e for n in self.nodes if isinstance(n.op, CopyToDevice) for e in n.inputs}
        self.recomputable = [
            _is_recomputable(node, graph.train, changed)
            and not any(value in self.values.results or not sizes[value] for value in steps[position].writes[:1])
            and not any(Entry(node, index) in copied for index in range(node.outputs()))
            for position, node in enumerate(forward)
        ]

    def select(
        self,
        allowed: Callable[[int], bool],
        keep: Collection[int] = (),
        forced: Callable[[Node], bool] = lambda node: False,
    ) -> list[int]:
        """Return the allowed steps whose inputs are available, so that they can be recomputed.

        Args:
            allowed: returns whether a position may be recomputed.
            keep: values to keep in any case.
            forced: nodes to recompute even if more values must be kept for them.

        Returns:
            the positions, in order.
        """
        recomputed = bytearray(self.forward)
        for index in range(self.forward):
            if not self.recomputable[index]:
                continue
            reads, writes, *_ = self.values.steps[index]
            if not writes:  # a view is recomputed with the value that it views
                viewed = self.values.numbers.get(self.nodes[index].inputs[0], -1)
                recomputed[index] = viewed >= 0 and self.source[viewed] >= 0 and recomputed[self.source[viewed]]
            elif not any(value in keep for value in writes):
                free = allowed(index) and all(self._is_available(value, index, recomputed, keep) for value in reads)
                recomputed[index] = free or forced(self.nodes[index])
        return [index for index in range(self.forward) if recomputed[index]]

    def _is_available(self, value: int, index: int, recomputed: Sequence[int], keep: Collection[int]) -> bool:
        """Return whether the backward pass can read a value without keeping more values."""
        source = self.source[value]
        return bool(
            self.read_backward[value]
            or value in keep
            or value in self.values.results
            or (source >= 0 and recomputed[source])
            or _SMALL * self.values.sizes[value] <= self.bytes[index]
        )

    def touched_bytes(self, index: int) -> int:
        """Return the number of bytes that a step reads and writes."""
        reads, writes, *_ = self.values.steps[index]
        return sum([self.values.sizes[value] for value in (*reads, *writes)])

    def measure(self, recomputed: Collection[int]) -> tuple[int, float]:
        """Return the peak memory in bytes and the approximate cost, if these steps are recomputed."""
        live_bytes, cost = self._live_bytes(recomputed)
        return max(live_bytes, default=0), cost

    def _live_bytes(self, recomputed: Collection[int]) -> tuple[list[int], float]:
        """Return the number of live bytes at each step, with recomputed values, and the cost of recomputing them."""
        chosen, copied = bytearray(self.forward), bytearray(self.forward)
        for index in recomputed:
            chosen[index] = 1
        steps, sources, order, cost = self.values.steps, self._sources, self.values.steps[: self.forward], 0.0
        for current in range(self.forward, len(steps)):
            stack = [index for index in sources[current] if chosen[index]]
            if not stack:
                order.append(steps[current])
                continue
            while stack:
                index = stack[-1]
                missing = (
                    []
                    if copied[index]
                    else [source for source in sources[index] if chosen[source] and not copied[source]]
                )
                if missing:
                    stack += missing
                    continue
                stack.pop()
                if not copied[index]:
                    copied[index] = 1
                    cost += self.cost[index]
                    order.append(self._copy_of(index, chosen))
            order.append(self._with_copies(steps[current], chosen))
        return alive(order, [*self.values.sizes, *self.values.sizes], self.values.results), cost

    def _with_copies(self, step: StepValues, chosen: Sequence[int]) -> StepValues:
        """Return a step that reads copies if there are any; a copy is numbered after all values."""
        count, source = len(self.source), self.source
        reads = {value: value + count * (source[value] >= 0 and chosen[source[value]]) for value in step.reads}
        in_place = tuple([(reads[a], b) for a, b in step.in_place])
        return StepValues(tuple(reads.values()), step.writes, in_place, step.workspace)

    def _copy_of(self, index: int, chosen: Sequence[int]) -> StepValues:
        """Return the copy of a step."""
        count = len(self.source)
        reads, writes, in_place, workspace = self._with_copies(self.values.steps[index], chosen)
        copies = {value: value + count for value in writes if self.source[value] >= 0}
        return StepValues(
            reads, tuple(copies.values()), tuple([(a, copies[b]) for a, b in in_place if b in copies]), workspace
        )


def _is_recomputable(node: Node, train: bool, changed: Collection[Node]) -> bool:
    """Return whether a second run of a node gives the same result, without side effects."""
    assert node.op is not None
    if node.op.name in RECOMPUTED:
        return True
    return (
        is_pure(node.op, train)
        and not node.op.traits.once
        and not isinstance(node.op, CopyToDevice)
        and not any(entry.node in changed for entry in node.inputs)
    )


def _cost(graph: Graph, node: Node) -> float:
    assert node.op is not None
    if node.op.traits.view:
        return 0.0
    outputs = [Entry(node, index) for index in range(node.outputs())]
    flops, moved = node.op.cost([graph.shapes[e] for e in node.inputs], [graph.shapes[e] for e in outputs])
    return flops / FLOPS + moved * graph.dtypes[outputs[0]].itemsize
