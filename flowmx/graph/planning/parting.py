"""The parting of a graph into what goes along with the batch, slice by slice, and what comes before and after that."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum

from flowmx.devices import Context
from flowmx.graph.graph import Graph, is_pure, written
from flowmx.graph.node import Entry, Node
from flowmx.graph.planning.live import nbytes
from flowmx.ops.arrays.permuting import Permuting
from flowmx.ops.compiled.chain import Chain
from flowmx.ops.math.binary import SUMS
from flowmx.ops.math.select import AddN
from flowmx.ops.registry.dtypes import is_floating
from flowmx.ops.registry.operators import Operator, Shape
from flowmx.ops.registry.traits import BatchParts

_GOES_ON = "gpu"
"""The type of devices whose random numbers can not be drawn from a place of the stream that one chooses."""
_SUMMED = BatchParts((), (), (0,))
_MOST_BEFORE = 16
"""Operators that may be taken out of a region for one that needs their whole results."""


class Kind(Enum):
    """The relation of a value of the region to the slices."""

    ALONG = "a slice has its part of it"
    SUM = "that of the slices adds up to it"
    SAME = "it is the same in each slice"
    AFTER = "it is computed after the region"


@dataclass
class Parting:
    """The operators of a graph, parted into a region and what comes before and after it.

    Attributes:
        members: those of the region, in order, with what of them goes along with the batch.
        before, after: the others, in order.
        tied: the first operator that needs the whole of what the region computes.
    """

    members: dict[Node, BatchParts] = field(default_factory=dict)
    before: dict[Node, None] = field(default_factory=dict)
    after: dict[Node, None] = field(default_factory=dict)
    tied: Node | None = None


def batches(graph: Graph) -> list[int]:
    """The numbers of examples that the batch may have: of the outputs, and of what no gradient is wanted for."""
    given = [Entry(node, 0) for node in graph.nodes() if node.is_variable and node not in graph.gradients]
    lengths = dict.fromkeys(graph.shapes[entry][0] for entry in (*graph.outputs, *given) if graph.shapes[entry])
    return [length for length in lengths if length > 1]


def made(graph: Graph, nodes: Collection[Node]) -> int:
    """The bytes that operators make."""
    return sum(nbytes(graph, Entry(node, index)) for node in nodes for index in range(node.outputs()))


def part(
    graph: Graph, units: int, nodes: Sequence[Node] | None = None, allowed: Collection[Node] | None = None
) -> Parting:  # fmt: skip
    """Part the operators of a graph, or of one pass of it.

    Args:
        graph: the graph.
        units: the number of equal parts that the batch can be cut into.
        nodes: the operators to part, in order, if not all; the values of others are there before.
        allowed: those that may be in the region, if not all.
    """
    nodes = [node for node in graph.nodes() if node.op is not None] if nodes is None else nodes
    parter = _Parter(graph, units, nodes, allowed)
    for node in nodes:
        parter.add(node)
    return parter.done()


class _Parter:
    """Parts operators one by one, in order."""

    def __init__(
        self, graph: Graph, units: int, nodes: Sequence[Node], allowed: Collection[Node] | None
    ) -> None:  # fmt: skip
        self._graph, self._units, self._nodes, self._allowed = graph, units, nodes, allowed
        self._kinds: dict[Entry, Kind] = {}
        self._found = Parting()
        self._written: set[Node] = set()
        """The variables that operators after the region write."""
        self._drawn = False
        """True once an operator after the region draws random numbers."""

    def add(self, node: Node) -> None:
        """Put an operator into the region, before it, or after it."""
        assert node.op is not None
        op, kinds = node.op, [self._kinds.get(entry) for entry in node.inputs]
        parts = self._parts(node)
        is_after = Kind.AFTER in kinds or any(entry.node in self._written for entry in node.inputs)
        if not is_after and parts is not None and self._fits(node, parts, kinds):
            self._join(node, parts)
        elif not is_after and self._may_come_before(node):
            self._found.before[node] = None
        elif not is_after and set(kinds) == {Kind.SUM} and _is_sum_of_sums(op, self._graph.shapes[node.inputs[0]]):
            self._join(node, _SUMMED)
        else:
            self._put_after(node)

    def done(self) -> Parting:
        """All of it, with sums of which the data is smaller than they are after the region, where that lies whole."""
        found = self._found
        read = {entry for node in found.members for entry in node.inputs}
        for node, parts in list(found.members.items()):
            if not parts.sums or any(Entry(node, index) in read for index in range(node.outputs())):
                continue
            along = {node.inputs[at] for at in parts.inputs if node.inputs[at].node in found.members}
            if along and sum(nbytes(self._graph, entry) for entry in along) <= made(self._graph, [node]):
                del found.members[node]
                found.after[node] = None
        found.after = {node: None for node in self._nodes if node in found.after}
        return found

    def _parts(self, node: Node) -> BatchParts | None:
        """The parts of an operator that go along with the batch; None where it may not be in the region."""
        op, graph = node.op, self._graph
        assert op is not None
        context = graph.context(node)
        here = (context is None or context is graph.default) and (self._allowed is None or node in self._allowed)
        if op.traits.dynamic or op.traits.once or not here or not self._is_free(op, context):
            return None
        outputs = [graph.shapes[Entry(node, index)] for index in range(node.outputs())]
        inputs = [graph.shapes[entry] for entry in node.inputs]
        if not all(map(math.prod, (*inputs, *outputs))):
            return None
        parts = op.batch_parts(inputs, outputs)
        if parts is None:
            return None
        rows = [*[inputs[at][0] for at in parts.inputs], *[outputs[at][0] for at in parts.outputs]]
        floats = all(is_floating(graph.dtypes[Entry(node, at)]) for at in parts.sums)
        return parts if floats and all(each % self._units == 0 for each in rows) else None

    def _is_free(self, op: Operator, context: Context | None) -> bool:
        """Tell whether an operator of a slice has no effect, or draws what it would draw for its part of the batch."""
        train = self._graph.train
        if op.draws(train):
            goes_back = context is None or context.device_type != _GOES_ON
            return op.traits.draws_by_part and goes_back and not self._drawn
        return is_pure(op, train)

    def _fits(self, node: Node, parts: BatchParts, kinds: Sequence[Kind | None]) -> bool:
        """Tell whether a slice has what an operator reads; what is needed whole may then come before the region."""
        if Kind.SUM in kinds:
            return False
        if any(kind is not None and (kind is Kind.ALONG) != (at in parts.inputs) for at, kind in enumerate(kinds)):
            if Kind.SAME in kinds:
                return False
            whole = [entry.node for at, entry in enumerate(node.inputs) if kinds[at] and at not in parts.inputs]
            if not self._take_out(whole):
                return False
        reads = [self._kinds.get(entry) for entry in node.inputs]
        return bool(parts.outputs) or any(reads)  # a sum of parameters alone is the same for each slice

    def _may_come_before(self, node: Node) -> bool:
        """Let an operator come before the region, with what it reads of it; False where it cannot."""
        assert node.op is not None
        inside = [entry.node for entry in node.inputs if self._kinds.get(entry) is not None]
        if not is_pure(node.op, self._graph.train) and self._found.members:
            return False
        return not inside or self._take_out(inside)

    def _take_out(self, needed: Sequence[Node]) -> bool:
        """Let members come before the others, with what they read of them, if these are few and light."""
        found: dict[Node, None] = {}
        stack = list(needed)
        while stack:
            node = stack.pop()
            if node not in found:
                found[node] = None
                stack += [entry.node for entry in node.inputs if entry.node in self._found.members]
        graph = self._graph
        ops = [node.op for node in found if node.op is not None]
        if len(found) > _MOST_BEFORE or any(op.traits.heavy or op.draws(graph.train) for op in ops):
            return False
        for node in self._nodes:
            if node in found:
                del self._found.members[node]
                self._found.before[node] = None
                for index in range(node.outputs()):
                    del self._kinds[Entry(node, index)]
        return True

    def _join(self, node: Node, parts: BatchParts) -> None:
        self._found.members[node] = parts
        for index in range(node.outputs()):
            self._kinds[Entry(node, index)] = (
                Kind.ALONG if index in parts.outputs else Kind.SUM if index in parts.sums else Kind.SAME
            )

    def _put_after(self, node: Node) -> None:
        assert node.op is not None
        found, train = self._found, self._graph.train
        if found.tied is None and not any(self._kinds.get(entry) is Kind.AFTER for entry in node.inputs):
            found.tied = node
        found.after[node] = None
        self._written |= written([node], train)
        self._drawn |= node.op.draws(train)
        self._kinds |= {Entry(node, index): Kind.AFTER for index in range(node.outputs())}


def _is_sum_of_sums(op: Operator, shape: Shape) -> bool:
    """Tell whether an operator, of inputs of a shape, gives for sums the sum of what it gives for the summands."""
    if isinstance(op, Chain):
        return all(_is_sum_of_sums(link.op, shape) for link in op.links)
    return op.traits.view or isinstance(op, (AddN, Permuting, *SUMS)) or op.multiplier(shape) is not None
