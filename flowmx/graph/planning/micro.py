"""Micro-batches: a training step that takes a part of the batch after the other, to need less memory.

Of each operator it is known what goes along with the batch, and what is a sum over it (``Operator.batch_parts``), so
that what follows from the inputs by such operators is a region that runs slice by slice
(:mod:`flowmx.graph.planning.region`). Gradients of parameters are sums over slices. What needs the whole batch runs
after the region, with all that follows from it.

Where both passes are one operation, a slice goes through both. Else each pass has its slices, and those of the backward
pass compute again what they read of the forward pass: best the first few layers, whose values are large.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from flowmx.errors import BudgetError
from flowmx.graph.graph import Graph, Options, Rewriter
from flowmx.graph.node import Entry, Node
from flowmx.graph.passes import recompute
from flowmx.graph.passes.budget import choose, segments
from flowmx.graph.passes.repeat import Repeats
from flowmx.graph.plan import Plan, least_bytes, make_plan, tighten
from flowmx.graph.planning.cost import cores, nanoseconds, once_more
from flowmx.graph.planning.layout import channels_last
from flowmx.graph.planning.live import shapes_of
from flowmx.graph.planning.order import LATE
from flowmx.graph.planning.parting import Parting, batches, made, part
from flowmx.graph.planning.region import Region
from flowmx.ops.compiled.sliced import Sliced

_LIKELY = 0.8
"""The least part of its share of the memory that slices are taken to need."""
_CHEAP = 0.03
"""The part of the time that slices may cost before recomputing is looked at instead."""
_DEAR = 0.1
"""The part of the time that recomputing may cost before slices of each pass are looked at instead."""
_SEGMENTS = 6
"""Numbers of first layers to try."""


class Made(NamedTuple):
    """A plan in micro-batches.

    Attributes:
        plan: the plan.
        loss: the part of the time that it costs, as estimated.
    """

    plan: Plan
    loss: float


def fit(graph: Graph, external: Collection[Entry], strided: Collection[Node], options: Options) -> Plan:
    """The plan of a training step whose internal values fit into a budget.

    Slices are made, or values are computed again, or both, whichever costs the least.

    Args:
        graph: after all passes.
        external: the entries that get memory from outside.
        strided: the variables whose arrays do not lie densely in C order.
        options: how; ``budget`` says how many bytes, ``joint`` whether both passes are one operation.

    Raises:
        BudgetError: nothing that was found fits.
    """
    plan = _fitting(graph, external, strided, options)
    tighten(plan)
    return plan


def _fitting(graph: Graph, external: Collection[Entry], strided: Collection[Node], options: Options) -> Plan:
    """The plan for :func:`fit`, which may be rough."""
    budget = options.budget
    assert budget is not None
    whole = make_plan(graph, external, strided, options, rough=True)
    if _fits(whole, budget):
        return whole
    options = replace(options, workers=1)  # branches that run at the same time take more memory
    search = _Search(graph, external, strided, options, whole)
    made = search.both_passes_at_once() if options.joint else None
    if made is not None and made.loss <= _CHEAP:
        return made.plan
    loss = search.loss_of_recomputing()
    if made is None and loss > _DEAR:
        made = search.pass_by_pass(loss)
    if made is not None and made.loss <= loss:
        return made.plan

    def planned(again: Graph) -> Plan:
        stands_for = dict(zip(graph.wanted(), again.wanted(), strict=True))
        return make_plan(again, {stands_for[entry] for entry in external}, strided, options)

    try:
        return recompute.fit(graph.with_notes(*search.notes()), options, budget, search.repeats, planned)
    except BudgetError as error:
        made = made or (search.recomputing_too() if options.joint else None)
        if made is not None:
            return made.plan
        for note in search.notes():
            error.add_note(f"flowmx: {note}")
        raise


class _Search:
    """The search for slices that fit.

    Args:
        graph: as for :func:`fit`.
        external: likewise.
        strided: likewise.
        options: likewise.
        whole: the plan that takes the whole batch at once.
    """

    def __init__(
        self,
        graph: Graph,
        external: Collection[Entry],
        strided: Collection[Node],
        options: Options,
        whole: Plan,
    ) -> None:
        assert options.budget is not None
        self._graph, self._external, self._strided, self._options = graph, external, strided, options
        self._plain, self._whole, self._budget = whole, least_bytes(whole), options.budget
        found = [(units, part(graph, units)) for units in batches(graph)]
        self._units, self._parting = max(
            found, key=lambda each: made(graph, each[1].members), default=(1, Parting())
        )  # fmt: skip
        self._lengths = [each for each in range(self._units // 2, 0, -1) if self._units % each == 0]
        self._cores = cores()
        self._nanoseconds = self._time(node for node in graph.nodes() if node.op is not None)

    @cached_property
    def repeats(self) -> Repeats:
        """The steps, and which of them may be computed again."""
        return Repeats(self._graph, recompute.in_workspaces(self._plain))

    def notes(self) -> list[str]:
        """The reason why slices do not do, in words."""
        tied = self._parting.tied
        if tied is None or tied.op is None:
            return []
        return [f"micro-batches end before {tied.name!r} ({tied.op.name}), which needs the whole batch at once"]

    def both_passes_at_once(self) -> Made | None:
        """The plan with the longest slices of both passes that fits; None where none does."""
        for length in self._lengths if self._parting.members else ():
            if length > 1 and _LIKELY * self._whole * length / self._units > self._budget:
                continue
            plan = self._plan(self._graph, [self._parting], length)
            if _fits(plan, self._budget):
                return Made(plan, self._loss(self._graph, [self._parting], length))
        return None

    def recomputing_too(self) -> Made | None:
        """The plan with slices of one, in which values are computed again, if it fits."""
        if not self._parting.members or self._units < 2:
            return None
        outside = self._plan(self._graph, [self._parting], 1)
        tighten(outside)
        room = self._budget - (outside.internal_bytes() - _inside(outside))

        def change(graph: Graph) -> Graph:
            return recompute.fit(graph, self._options, max(1, room)).graph

        try:
            plan = self._plan(self._graph, [self._parting], 1, change)
        except BudgetError:
            return None
        return Made(plan, self._loss(self._graph, [self._parting], 1)) if _fits(plan, self._budget) else None

    def pass_by_pass(self, most: float) -> Made | None:
        """The plan with slices of each pass, that of the backward pass computing again what they read.

        As few layers as will do, from the first on, run so: they are often those with the largest values.

        Args:
            most: the part of the time that it must cost less than.
        """
        graph, repeats = self._graph, self.repeats
        for stop in segments(repeats, _SEGMENTS) if self._lengths else ():
            chosen = [repeats.nodes[at] for at in repeats.select(range(stop).__contains__)]
            again = self._time(chosen) / self._nanoseconds
            if again >= most:
                break
            changed = recompute.compute_again(graph, chosen, shapes_too=True)
            backward = changed.backward()
            partings = [
                part(changed, self._units, changed.forward(), set(repeats.nodes[:stop])),
                part(
                    changed, self._units, backward, _with_users([n for n in backward if LATE in n.attributes], backward)
                ),
            ]
            found = self._longest(changed, partings, again, most)
            if found is not None:
                return found
        return None

    def _longest(self, graph: Graph, partings: Sequence[Parting], again: float, most: float) -> Made | None:
        """The plan with the longest slices that fits and costs less than that; None where none does."""
        best, low, high = None, 0, len(self._lengths) - 1
        if not all(parting.members for parting in partings):
            return None
        at = high  # the shortest slices first, which mostly tell that nothing will do
        while low <= high:
            loss = again + self._loss(graph, partings, self._lengths[at])
            plan = self._plan(graph, partings, self._lengths[at])
            if _fits(plan, self._budget):
                best, high = (Made(plan, loss) if loss < most else best), at - 1
            else:
                low = at + 1
            at = (low + high) // 2
        return best

    def loss_of_recomputing(self) -> float:
        """The part of the time that computing again costs, where the whole batch is to fit; endless if it cannot."""
        choice = choose(self.repeats, self._budget)
        if choice.peak > self._budget:
            return math.inf
        return self._time(self.repeats.nodes[at] for at in choice.again) / self._nanoseconds

    def _time(self, nodes: Iterable[Node]) -> float:
        """About how many nanoseconds some operators take."""
        return sum(nanoseconds(node, shapes_of(self._graph, node), self._cores) for node in nodes)

    def _loss(self, graph: Graph, partings: Sequence[Parting], length: int) -> float:
        """The part of the time that slices of a length cost."""
        more = sum(once_more(graph, *each, self._cores) for parting in partings for each in parting.members.items())
        return (self._units // length - 1) * more / self._nanoseconds

    def _plan(
        self, graph: Graph, partings: Sequence[Parting], length: int,
        change: Callable[[Graph], Graph] = lambda graph: graph,
    ) -> Plan:  # fmt: skip
        """The rough plan of a graph, parted into one region or one for each pass, with slices of a length."""
        kinds, rewriter = self._options.channels_last, Rewriter(graph)
        stands_for = dict(zip(self._graph.wanted(), graph.wanted(), strict=True))
        external = {stands_for[entry] for entry in self._external}
        nodes = [node for node in rewriter.nodes if node.op is not None]
        laid = channels_last(nodes, graph.shapes, graph.dtypes, external, kinds) if kinds else frozenset()
        for parting in partings:
            for node in parting.before:
                rewriter.keep(node)
            region = Region(rewriter, parting.members, self._units, length, laid)
            region.put(self._strided, self._options, change, rough=True)
            for node in parting.after:
                rewriter.keep(node)
        external = {rewriter.new(entry) for entry in external}
        return make_plan(rewriter.result(), external, self._strided, self._options, rough=True)


def _fits(plan: Plan, budget: int) -> bool:
    """Tell whether a rough plan fits into a budget once it is tight; it is made so only where that decides."""
    if plan.internal_bytes() <= budget:
        return True
    if least_bytes(plan) + sum(map(plan.nbytes, plan.kept)) > budget:
        return False
    tighten(plan)
    return plan.internal_bytes() <= budget


def _with_users(nodes: Sequence[Node], order: Sequence[Node]) -> set[Node]:
    """Operators, with all of an order that follow from them."""
    found = set(nodes)
    for node in order:
        if any(entry.node in found for entry in node.inputs):
            found.add(node)
    return found


def _inside(plan: Plan) -> int:
    """The bytes of a plan that its slices work in."""
    return max([node.op.plan.arena.size for node in plan.steps() if isinstance(node.op, Sliced)], default=0)
