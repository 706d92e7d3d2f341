"""Micro-batches: a training step that runs both passes of a part of the batch after the other, to need less memory.

Of each operator it is known what goes along with the batch, and what is a sum over it (``Operator.batch_parts``). From
the inputs on, all that follows by such operators, forward and backward, is one region, which runs slice by slice
(:mod:`flowmx.graph.planning.region`). Gradients of parameters are sums over slices. What needs the whole batch runs
after the region, with all that follows from it.

Nothing of a slice is left for a backward pass of its own, so both passes are one operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from flowmx.devices import threads
from flowmx.errors import BudgetError
from flowmx.graph.graph import Graph, Options, Rewriter, is_pure, written
from flowmx.graph.node import Entry, Node
from flowmx.graph.passes import recompute
from flowmx.graph.passes.budget import choose
from flowmx.graph.passes.repeat import Repeats
from flowmx.graph.plan import Plan, make_plan
from flowmx.graph.planning.cost import nanoseconds, once_more
from flowmx.graph.planning.layout import channels_last
from flowmx.graph.planning.live import nbytes
from flowmx.graph.planning.region import Region
from flowmx.ops.arrays.permuting import Permuting
from flowmx.ops.compiled.chain import Chain
from flowmx.ops.compiled.sliced import Sliced
from flowmx.ops.math.binary import SUMS
from flowmx.ops.math.select import AddN
from flowmx.ops.registry.dtypes import is_floating
from flowmx.ops.registry.operators import Operator, Shape
from flowmx.ops.registry.traits import BatchParts

_SUMMED = BatchParts((), (), (0,))
_MOST_BEFORE = 16
"""Operators that may be taken out of a region for one that needs their whole results."""
_LIKELY = 0.8
"""The least part of its share of the memory that slices are taken to need."""
_CHEAP = 0.03
"""The part of the time that slices may cost before recomputing is looked at instead."""


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


class Made(NamedTuple):
    """A plan in micro-batches.

    Attributes:
        plan: the plan.
        loss: the part of the time that it costs, as estimated.
    """

    plan: Plan
    loss: float


def fit(graph: Graph, external: Collection[Entry], strided: Collection[Node], options: Options) -> Plan:
    """The plan of a training step, both passes at once, whose internal values fit into a budget.

    Micro-batches are made where that is needed; or values are computed again where that costs less, or both.

    Args:
        graph: after all passes.
        external: the entries that get memory from outside.
        strided: the variables whose arrays do not lie densely in C order.
        options: how; ``budget`` says how many bytes.

    Raises:
        BudgetError: nothing that was found fits.
    """
    assert options.budget is not None
    whole = make_plan(graph, external, strided, options)
    if whole.internal_bytes() <= options.budget:
        return whole
    search = _Search(graph, external, strided, options, whole.internal_bytes())
    made = search.largest_slices()
    if made is not None and (made.loss <= _CHEAP or made.loss <= search.loss_of_recomputing()):
        return made.plan
    try:
        again = recompute.fit(graph.with_notes(*search.notes()), options, options.budget)
    except BudgetError as error:
        made = made or search.both()
        if made is not None:
            return made.plan
        for note in search.notes():
            error.add_note(f"flowmx: {note}")
        raise
    stands_for = dict(zip(graph.wanted(), again.wanted(), strict=True))
    return make_plan(again, {stands_for[entry] for entry in external}, strided, options)


class _Search:
    """The search for slices that fit.

    Args:
        graph: as for :func:`fit`.
        external: likewise.
        strided: likewise.
        options: likewise.
        whole: bytes of the plan that takes the whole batch at once.
    """

    def __init__(
        self, graph: Graph, external: Collection[Entry], strided: Collection[Node], options: Options, whole: int
    ) -> None:
        assert options.budget is not None
        self._graph, self._external, self._strided, self._options = graph, external, strided, options
        self._whole, self._budget = whole, options.budget
        found = [(units, part(graph, units)) for units in _units(graph)]
        self._units, self._parting = max(
            found, key=lambda each: _made(graph, each[1].members), default=(1, Parting())
        )  # fmt: skip
        self._nanoseconds = self._time(node for node in graph.nodes() if node.op is not None)
        kinds = options.channels_last
        nodes = [node for node in graph.nodes() if node.op is not None]
        self._laid = channels_last(nodes, graph.shapes, graph.dtypes, external, kinds) if kinds else frozenset()

    def notes(self) -> list[str]:
        """The reason why slices do not do, in words."""
        tied = self._parting.tied
        if tied is None or tied.op is None:
            return []
        return [f"micro-batches end before {tied.name!r} ({tied.op.name}), which needs the whole batch at once"]

    def largest_slices(self) -> Made | None:
        """The plan with the longest slices that fits; None where none does."""
        lengths = [each for each in range(self._units // 2, 0, -1) if self._units % each == 0]
        for length in lengths if self._parting.members else ():
            if length > 1 and _LIKELY * self._whole * length / self._units > self._budget:
                continue
            plan = self._plan(length)
            if plan.internal_bytes() <= self._budget:
                return Made(plan, self._loss(length))
        return None

    def both(self) -> Made | None:
        """The plan with slices of one, in which values are computed again, if it fits."""
        if not self._parting.members or self._units < 2:
            return None
        outside = self._plan(1, lambda graph: graph)
        room = self._budget - (outside.internal_bytes() - _inside(outside))

        def change(graph: Graph) -> Graph:
            return recompute.fit(graph, self._options, max(1, room))

        try:
            plan = self._plan(1, change)
        except BudgetError:
            return None
        return Made(plan, self._loss(1)) if plan.internal_bytes() <= self._budget else None

    def loss_of_recomputing(self) -> float:
        """The part of the time that computing again costs, where the whole batch is to fit; endless if it cannot."""
        repeats = Repeats(self._graph)
        choice = choose(repeats, self._budget)
        if choice.peak > self._budget:
            return math.inf
        return self._time(repeats.nodes[at] for at in choice.again) / self._nanoseconds

    def _time(self, nodes: Iterable[Node]) -> float:
        """About how many nanoseconds some operators take, on the cores that are here."""
        return sum(nanoseconds(self._graph, node, threads.cores()) for node in nodes)

    def _loss(self, length: int) -> float:
        """The part of the time that slices of a length cost."""
        count = self._units // length
        return (
            (count - 1)
            * sum(once_more(self._graph, *each) for each in self._parting.members.items())
            / (self._nanoseconds)
        )

    def _plan(self, length: int, change: Callable[[Graph], Graph] = lambda graph: graph) -> Plan:
        """The plan with slices of a length."""
        rewriter = Rewriter(self._graph)
        for node in self._parting.before:
            rewriter.keep(node)
        region = Region(rewriter, self._parting.members, self._units, length, self._laid)
        region.put(self._strided, self._options, change)
        for node in self._parting.after:
            rewriter.keep(node)
        external = {rewriter.new(entry) for entry in self._external}
        return make_plan(rewriter.result(), external, self._strided, self._options)


def _inside(plan: Plan) -> int:
    """The bytes of a plan that its slices work in."""
    return max([node.op.plan.arena.size for node in plan.forward if isinstance(node.op, Sliced)], default=0)


def _made(graph: Graph, nodes: Collection[Node]) -> int:
    """The bytes that operators make."""
    return sum(nbytes(graph, Entry(node, index)) for node in nodes for index in range(node.outputs()))


def _units(graph: Graph) -> list[int]:
    """The numbers of examples that the batch may have: of the outputs, and of what no gradient is wanted for."""
    given = [Entry(node, 0) for node in graph.nodes() if node.is_variable and node not in graph.gradients]
    lengths = dict.fromkeys(graph.shapes[entry][0] for entry in (*graph.outputs, *given) if graph.shapes[entry])
    return [length for length in lengths if length > 1]


# -- the region --------------------------------------------------------------------------------------------


def part(graph: Graph, units: int) -> Parting:
    """Part the operators of a graph, whose batch can be cut into so many parts."""
    made = _Parter(graph, units)
    for node in graph.nodes():
        if node.op is not None:
            made.add(node)
    return made.done()


class _Parter:
    """Parts operators one by one, in order."""

    def __init__(self, graph: Graph, units: int) -> None:
        self._graph, self._units = graph, units
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
            if along and sum(nbytes(self._graph, entry) for entry in along) <= _made(self._graph, [node]):
                del found.members[node]
                found.after[node] = None
        found.after = {node: None for node in self._graph.nodes() if node in found.after}
        return found

    def _parts(self, node: Node) -> BatchParts | None:
        """The parts of an operator that go along with the batch; None where it may not be in the region."""
        op, graph = node.op, self._graph
        assert op is not None
        context = graph.context(node)
        here = context is None or (context is graph.default and context.device_type == "cpu")
        if op.traits.dynamic or op.traits.once or not here or not self._is_free(op):
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

    def _is_free(self, op: Operator) -> bool:
        """Tell whether an operator of a slice has no effect, or draws what it would draw for its part of the batch."""
        train = self._graph.train
        if op.draws(train):
            return op.traits.draws_by_part and not self._drawn
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
        for node in graph.nodes():
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
