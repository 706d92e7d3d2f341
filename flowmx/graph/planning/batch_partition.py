"""Partition of a graph into a region that runs slice by slice, and the operators before and after it."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum

from flowmx.devices import Context
from flowmx.graph.graph import Graph, is_pure, written_variables
from flowmx.graph.node import Entry, Node
from flowmx.graph.planning.live_bytes import nbytes
from flowmx.ops.arrays.permuting import Permuting
from flowmx.ops.compiled.chain import Chain
from flowmx.ops.math.binary import SUMS
from flowmx.ops.math.select import AddN
from flowmx.ops.registry.dtypes import is_floating
from flowmx.ops.registry.operators import Operator, Shape
from flowmx.ops.registry.traits import BatchParts

_NO_RESET = "gpu"
"""The device type whose random generator cannot be set to a given position."""
_SUM_PARTS = BatchParts((), (), (0,))
_EXTRACTION_LIMIT = 16
"""The maximum number of operators that are moved out of a region for an operator that needs their whole results."""


class Kind(Enum):
    """The relation of a value of the region to the slices."""

    ALONG = "a slice has a part of it"
    SUM = "the values of the slices add up to it"
    SAME = "it is the same in each slice"
    AFTER = "it is computed after the region"


@dataclass
class Partition:
    """The operators of a graph, partitioned into a region and the operators before and after it.

    Attributes:
        members: the operators of the region, in order, with their batch parts.
        before, after: the others, in order.
        first_consumer: the first operator that needs the whole result of the region.
    """

    members: dict[Node, BatchParts] = field(default_factory=dict)
    before: dict[Node, None] = field(default_factory=dict)
    after: dict[Node, None] = field(default_factory=dict)
    first_consumer: Node | None = None


def batches(graph: Graph) -> list[int]:
    """Return the possible batch sizes: axis 0 of the outputs, and of variables without gradients."""
    data = [Entry(node, 0) for node in graph.nodes() if node.is_variable and node not in graph.gradients]
    lengths = dict.fromkeys(graph.shapes[entry][0] for entry in (*graph.outputs, *data) if graph.shapes[entry])
    return [length for length in lengths if length > 1]


def output_bytes(graph: Graph, nodes: Collection[Node]) -> int:
    """Return the total size of the outputs of operators, in bytes."""
    return sum(nbytes(graph, Entry(node, index)) for node in nodes for index in range(node.outputs()))


def part(
    graph: Graph, units: int, nodes: Sequence[Node] | None = None, allowed: Collection[Node] | None = None
) -> Partition:  # fmt: skip
    """Partition the operators of a graph, or of one of its passes.

    Args:
        graph: the graph.
        units: the number of equal parts that the batch can be cut into.
        nodes: the operators, in order (default: all); all other values are computed beforehand.
        allowed: the operators that may be in the region (default: all).
    """
    nodes = [node for node in graph.nodes() if node.op is not None] if nodes is None else nodes
    partitioner = _Partitioner(graph, units, nodes, allowed)
    for node in nodes:
        partitioner.add(node)
    return partitioner.result()


class _Partitioner:
    """Partitions operators one by one, in order."""

    def __init__(
        self, graph: Graph, units: int, nodes: Sequence[Node], allowed: Collection[Node] | None
    ) -> None:  # fmt: skip
        self._graph, self._units, self._nodes, self._allowed = graph, units, nodes, allowed
        self._kinds: dict[Entry, Kind] = {}
        self._partition = Partition()
        self._written: set[Node] = set()
        """The variables that operators after the region write."""
        self._has_drawn = False
        """Whether an operator after the region draws random numbers."""

    def add(self, node: Node) -> None:
        """Add an operator to the region, before it, or after it."""
        assert node.op is not None
        op, kinds = node.op, [self._kinds.get(entry) for entry in node.inputs]
        parts = self._parts(node)
        is_after = Kind.AFTER in kinds or any(entry.node in self._written for entry in node.inputs)
        if not is_after and parts is not None and self._fits(node, parts, kinds):
            self._join(node, parts)
        elif not is_after and self._move_before(node):
            self._partition.before[node] = None
        elif not is_after and set(kinds) == {Kind.SUM} and _is_sum_of_sums(op, self._graph.shapes[node.inputs[0]]):
            self._join(node, _SUM_PARTS)
        else:
            self._add_after(node)

    def result(self) -> Partition:
        """Return the partition; sums that are larger than their data move after the region, where the data is whole."""
        partition = self._partition
        read = {entry for node in partition.members for entry in node.inputs}
        for node, parts in list(partition.members.items()):
            if not parts.sums or any(Entry(node, index) in read for index in range(node.outputs())):
                continue
            batch_inputs = {
                node.inputs[position] for position in parts.inputs if node.inputs[position].node in partition.members
            }
            if batch_inputs and sum(nbytes(self._graph, entry) for entry in batch_inputs) <= output_bytes(
                self._graph, [node]
            ):
                del partition.members[node]
                partition.after[node] = None
        partition.after = {node: None for node in self._nodes if node in partition.after}
        return partition

    def _parts(self, node: Node) -> BatchParts | None:
        """Return the batch parts of an operator, or None if it cannot be in the region."""
        op, graph = node.op, self._graph
        assert op is not None
        context = graph.context(node)
        is_allowed = (context is None or context is graph.default) and (self._allowed is None or node in self._allowed)
        if op.traits.dynamic or op.traits.once or not is_allowed or not self._is_free(op, context):
            return None
        outputs = [graph.shapes[Entry(node, index)] for index in range(node.outputs())]
        inputs = [graph.shapes[entry] for entry in node.inputs]
        if not all(map(math.prod, (*inputs, *outputs))):
            return None
        parts = op.batch_parts(inputs, outputs)
        if parts is None:
            return None
        rows = [
            *[inputs[position][0] for position in parts.inputs],
            *[outputs[position][0] for position in parts.outputs],
        ]
        floats = all(is_floating(graph.dtypes[Entry(node, position)]) for position in parts.sums)
        return parts if floats and all(count % self._units == 0 for count in rows) else None

    def _is_free(self, op: Operator, context: Context | None) -> bool:
        """Return whether an operator has no effects in a slice, or can draw the numbers of its part of the batch."""
        train = self._graph.train
        if op.draws(train):
            can_reset = context is None or context.device_type != _NO_RESET
            return op.traits.draws_by_part and can_reset and not self._has_drawn
        return is_pure(op, train)

    def _fits(self, node: Node, parts: BatchParts, kinds: Sequence[Kind | None]) -> bool:
        """Return whether a slice has the inputs of an operator.

        Operators whose whole results are needed are first moved in front of the region.
        """
        if Kind.SUM in kinds:
            return False
        if any(
            kind is not None and (kind is Kind.ALONG) != (index in parts.inputs) for index, kind in enumerate(kinds)
        ):
            if Kind.SAME in kinds:
                return False
            whole = [
                entry.node for index, entry in enumerate(node.inputs) if kinds[index] and index not in parts.inputs
            ]
            if not self._extract(whole):
                return False
        reads = [self._kinds.get(entry) for entry in node.inputs]
        return bool(parts.outputs) or any(reads)  # a sum of parameters alone is the same for each slice

    def _move_before(self, node: Node) -> bool:
        """Move an operator before the region, with the members it reads; return False if that is impossible."""
        assert node.op is not None
        inside = [entry.node for entry in node.inputs if self._kinds.get(entry) is not None]
        if not is_pure(node.op, self._graph.train) and self._partition.members:
            return False
        return not inside or self._extract(inside)

    def _extract(self, needed: Sequence[Node]) -> bool:
        """Move members, and those they read, before the region; return False if they are too many or too expensive."""
        nodes_to_move: dict[Node, None] = {}
        stack = list(needed)
        while stack:
            node = stack.pop()
            if node not in nodes_to_move:
                nodes_to_move[node] = None
                stack += [entry.node for entry in node.inputs if entry.node in self._partition.members]
        graph = self._graph
        ops = [node.op for node in nodes_to_move if node.op is not None]
        if len(nodes_to_move) > _EXTRACTION_LIMIT or any(op.traits.heavy or op.draws(graph.train) for op in ops):
            return False
        for node in self._nodes:
            if node in nodes_to_move:
                del self._partition.members[node]
                self._partition.before[node] = None
                for index in range(node.outputs()):
                    del self._kinds[Entry(node, index)]
        return True

    def _join(self, node: Node, parts: BatchParts) -> None:
        self._partition.members[node] = parts
        for index in range(node.outputs()):
            self._kinds[Entry(node, index)] = (
                Kind.ALONG if index in parts.outputs else Kind.SUM if index in parts.sums else Kind.SAME
            )

    def _add_after(self, node: Node) -> None:
        assert node.op is not None
        partition, train = self._partition, self._graph.train
        if partition.first_consumer is None and not any(self._kinds.get(entry) is Kind.AFTER for entry in node.inputs):
            partition.first_consumer = node
        partition.after[node] = None
        self._written |= written_variables([node], train)
        self._has_drawn |= node.op.draws(train)
        self._kinds |= {Entry(node, index): Kind.AFTER for index in range(node.outputs())}


def _is_sum_of_sums(op: Operator, shape: Shape) -> bool:
    """Return whether an operator applied to sums gives the sum of its results for the summands."""
    if isinstance(op, Chain):
        return all(_is_sum_of_sums(link.op, shape) for link in op.links)
    return op.traits.view or isinstance(op, (AddN, Permuting, *SUMS)) or op.multiplier(shape) is not None
