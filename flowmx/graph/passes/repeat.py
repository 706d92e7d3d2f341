"""Candidates for recomputation in a forward pass, with cost and savings: by positions, without making graphs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from flowmx.graph.graph import Graph, is_pure, written
from flowmx.graph.node import Entry, Node
from flowmx.graph.planning.live import StepValues, Values, alive
from flowmx.graph.planning.order import apart
from flowmx.ops.compiled.fused import CopyToDevice
from flowmx.ops.compiled.recomputed import AGAIN

FLOPS = 8
"""Floating-point operations that take about as long as moving one byte."""
_SMALL = 8
"""A value that is this many times smaller than the result may be kept in order to recompute it."""


class Repeats:
    """The steps of a training graph, and which of them may be computed again.

    Args:
        graph: the graph.
        workspaces: bytes that nodes need while they run.

    Attributes:
        nodes: the operators of the forward pass, then those of the backward pass.
        forward: how many are of the forward pass.
        values: what they read and write.
        bytes: of the results of each.
        cost: about how long each takes, in bytes that could be moved meanwhile.
        source: for each value the position of the step that makes it; -1 where a copy does not make it.
        held: whether the backward pass reads a value.
        may: whether each step may be computed again.
        choices: what was chosen of them, by the budget in bytes.
    """

    def __init__(self, graph: Graph, workspaces: Mapping[Node, int] | None = None) -> None:
        forward, backward = apart(graph)
        self.choices: dict[int, Any] = {}
        self.nodes: list[Node] = [*forward, *backward]
        self.forward = len(forward)
        self.values = Values(graph, self.nodes, workspaces)
        sizes, steps = self.values.sizes, self.values.steps
        self.bytes = [sum([sizes[value] for value in step.writes]) for step in steps[: self.forward]]
        self.cost = [_cost(graph, node) for node in forward]
        self.source = [-1] * len(sizes)
        for at, node in enumerate(forward):
            for index, value in enumerate(steps[at].writes):
                if index == 0 or node.op is None or node.op.name not in AGAIN:
                    self.source[value] = at
        self.held = bytearray(len(sizes))
        for step in steps[self.forward :]:
            for value in step.reads:
                self.held[value] = 1
        self._sources = [[self.source[value] for value in step.reads if self.source[value] >= 0] for step in steps]
        changed = written(self.nodes, graph.train)
        copied = {e for n in self.nodes if isinstance(n.op, CopyToDevice) for e in n.inputs}
        self.may = [
            _may_repeat(node, graph.train, changed)
            and not any(value in self.values.wanted or not sizes[value] for value in steps[at].writes[:1])
            and not any(Entry(node, index) in copied for index in range(node.outputs()))
            for at, node in enumerate(forward)
        ]

    def select(
        self,
        allowed: Callable[[int], bool],
        kept: Collection[int] = (),
        forced: Callable[[Node], bool] = lambda node: False,
    ) -> list[int]:
        """The steps to compute again: those that are allowed, where what they read is at hand.

        Args:
            allowed: says so for a position.
            kept: values to keep in any case.
            forced: nodes for which something more is kept, if it must be.

        Returns:
            positions, in order.
        """
        again = bytearray(self.forward)
        for at in range(self.forward):
            if not self.may[at]:
                continue
            reads, writes, *_ = self.values.steps[at]
            if not writes:  # a view goes with what it shows
                shown = self.values.numbers.get(self.nodes[at].inputs[0], -1)
                again[at] = shown >= 0 and self.source[shown] >= 0 and again[self.source[shown]]
            elif not any(value in kept for value in writes):
                free = allowed(at) and all(self._at_hand(value, at, again, kept) for value in reads)
                again[at] = free or forced(self.nodes[at])
        return [at for at in range(self.forward) if again[at]]

    def _at_hand(self, value: int, at: int, again: Sequence[int], kept: Collection[int]) -> bool:
        """Tell whether the backward pass can read a value again, without keeping more than is kept anyway."""
        source = self.source[value]
        return bool(
            self.held[value]
            or value in kept
            or value in self.values.wanted
            or (source >= 0 and again[source])
            or _SMALL * self.values.sizes[value] <= self.bytes[at]
        )

    def touched(self, at: int) -> int:
        """The bytes that a step reads and writes."""
        reads, writes, *_ = self.values.steps[at]
        return sum([self.values.sizes[value] for value in (*reads, *writes)])

    def weigh(self, again: Collection[int]) -> tuple[int, float]:
        """The most bytes alive at one step, and about how long computing these again takes."""
        found, price = self._alive(again)
        return max(found, default=0), price

    def _alive(self, again: Collection[int]) -> tuple[list[int], float]:
        """The bytes alive at each step with the copies in their places, and what these cost."""
        chosen, made = bytearray(self.forward), bytearray(self.forward)
        for at in again:
            chosen[at] = 1
        steps, sources, order, price = self.values.steps, self._sources, self.values.steps[: self.forward], 0.0
        for now in range(self.forward, len(steps)):
            stack = [at for at in sources[now] if chosen[at]]
            if not stack:
                order.append(steps[now])
                continue
            while stack:
                at = stack[-1]
                missing = [] if made[at] else [each for each in sources[at] if chosen[each] and not made[each]]
                if missing:
                    stack += missing
                    continue
                stack.pop()
                if not made[at]:
                    made[at] = 1
                    price += self.cost[at]
                    order.append(self._copied(at, chosen))
            order.append(self._with_copies(steps[now], chosen))
        return alive(order, [*self.values.sizes, *self.values.sizes], self.values.wanted), price

    def _with_copies(self, step: StepValues, chosen: Sequence[int]) -> StepValues:
        """A step that reads copies where there are some; a copy's number comes after those of all values."""
        count, source = len(self.source), self.source
        reads = {value: value + count * (source[value] >= 0 and chosen[source[value]]) for value in step.reads}
        takes = tuple([(reads[a], b) for a, b in step.takes])
        return StepValues(tuple(reads.values()), step.writes, takes, step.workspace)

    def _copied(self, at: int, chosen: Sequence[int]) -> StepValues:
        """The copy of a step."""
        count = len(self.source)
        reads, writes, takes, workspace = self._with_copies(self.values.steps[at], chosen)
        made = {value: value + count for value in writes if self.source[value] >= 0}
        return StepValues(reads, tuple(made.values()), tuple([(a, made[b]) for a, b in takes if b in made]), workspace)


def _may_repeat(node: Node, train: bool, changed: Collection[Node]) -> bool:
    """Tell whether a second run of a node gives the same result, without side effects."""
    assert node.op is not None
    if node.op.name in AGAIN:
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
