"""Micro-batches: training steps that process the batch in parts, to save memory.

Operators declare which inputs and outputs have a batch axis, and which outputs are sums over it
(``Operator.batch_parts``). All operators that can process the inputs in parts form a region that runs slice by slice
(:mod:`flowmx.graph.planning.batch_region`). Gradients of parameters are sums over slices. Operators that need the whole
batch, and their dependents, run after the region.

If both passes are one operation, a slice covers both. Otherwise each pass has slices, and those of the backward pass
recompute the values of the forward pass that they read, preferably those of the first few layers, which are large.
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
from flowmx.graph.passes.recompute_candidates import RecomputeCandidates
from flowmx.graph.passes.recompute_choice import choose, segments
from flowmx.graph.plan import Plan, least_bytes, make_plan, tighten
from flowmx.graph.planning.batch_partition import Partition, batches, output_bytes, part
from flowmx.graph.planning.batch_region import Region
from flowmx.graph.planning.channels_last import channels_last
from flowmx.graph.planning.cost import cores, nanoseconds, repetition
from flowmx.graph.planning.live_bytes import shapes_of
from flowmx.graph.planning.order import LATE
from flowmx.ops.compiled.sliced import Sliced

_MIN_SHARE = 0.8
"""The minimum memory of a slice, relative to its share of the whole."""
_MAX_SLICE_LOSS = 0.03
"""The maximum cost of slices, as a share of the time, before recomputation is considered."""
_MAX_RECOMPUTE_LOSS = 0.1
"""The maximum cost of recomputation, as a share of the time, before slices of each pass are considered."""
_SEGMENT_COUNT = 6
"""The number of first layers to try."""


class Candidate(NamedTuple):
    """A plan in micro-batches.

    Attributes:
        plan: the plan.
        loss: the estimated cost, as a share of the time.
    """

    plan: Plan
    loss: float


def fit(graph: Graph, external: Collection[Entry], strided: Collection[Node], options: Options) -> Plan:
    """Return the plan of a training step whose internal values fit into a budget.

    The plan uses slices, recomputation, or both, whichever costs least.

    Args:
        graph: the graph after all passes.
        external: the entries with external memory.
        strided: the variables whose arrays are not dense in C order.
        options: the compiler options; ``budget`` is the limit in bytes, ``joint`` whether both passes are one
            operation.

    Raises:
        BudgetError: no plan within the budget was found.
    """
    plan = _rough_plan(graph, external, strided, options)
    tighten(plan)
    return plan


def _rough_plan(graph: Graph, external: Collection[Entry], strided: Collection[Node], options: Options) -> Plan:
    """Return the plan for :func:`fit`, which may be rough."""
    budget = options.budget
    assert budget is not None
    whole = make_plan(graph, external, strided, options, rough=True)
    if _fits(whole, budget):
        return whole
    options = replace(options, workers=1)  # concurrent branches take more memory
    search = _Search(graph, external, strided, options, whole)
    candidate = search.slice_both_passes() if options.joint else None
    if candidate is not None and candidate.loss <= _MAX_SLICE_LOSS:
        return candidate.plan
    loss = search.recomputing_loss()
    if candidate is None and loss > _MAX_RECOMPUTE_LOSS:
        candidate = search.slice_each_pass(loss)
    if candidate is not None and candidate.loss <= loss:
        return candidate.plan

    def make(recomputed: Graph) -> Plan:
        entry_of = dict(zip(graph.results(), recomputed.results(), strict=True))
        return make_plan(recomputed, {entry_of[entry] for entry in external}, strided, options)

    try:
        return recompute.fit(graph.with_notes(*search.notes()), options, budget, search.repeats, make)
    except BudgetError as error:
        candidate = candidate or (search.slice_and_recompute() if options.joint else None)
        if candidate is not None:
            return candidate.plan
        for note in search.notes():
            error.add_note(f"flowmx: {note}")
        raise


class _Search:
    """The search for slices that fit.

    Args:
        graph: as for :func:`fit`.
        external: as for :func:`fit`.
        strided: as for :func:`fit`.
        options: as for :func:`fit`.
        whole: the plan for the whole batch.
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
        partitions = [(units, part(graph, units)) for units in batches(graph)]
        self._units, self._partition = max(
            partitions, key=lambda row: output_bytes(graph, row[1].members), default=(1, Partition())
        )
        self._lengths = [length for length in range(self._units // 2, 0, -1) if self._units % length == 0]
        self._cores = cores()
        self._nanoseconds = self._time(node for node in graph.nodes() if node.op is not None)

    @cached_property
    def repeats(self) -> RecomputeCandidates:
        """The steps, and which of them may be recomputed."""
        return RecomputeCandidates(self._graph, recompute.workspace_bytes(self._plain))

    def notes(self) -> list[str]:
        """Return the reason why slices do not suffice."""
        tied = self._partition.first_consumer
        if tied is None or tied.op is None:
            return []
        return [f"micro-batches end before {tied.name!r} ({tied.op.name}), which needs the whole batch at once"]

    def slice_both_passes(self) -> Candidate | None:
        """Return the plan with the longest slices of both passes that fits, or None."""
        for length in self._lengths if self._partition.members else ():
            if length > 1 and _MIN_SHARE * self._whole * length / self._units > self._budget:
                continue
            plan = self._plan(self._graph, [self._partition], length)
            if _fits(plan, self._budget):
                return Candidate(plan, self._loss(self._graph, [self._partition], length))
        return None

    def slice_and_recompute(self) -> Candidate | None:
        """Return the plan with slices of one sample and recomputation, if it fits."""
        if not self._partition.members or self._units < 2:
            return None
        sliced_plan = self._plan(self._graph, [self._partition], 1)
        tighten(sliced_plan)
        room = self._budget - (sliced_plan.internal_bytes() - _slice_bytes(sliced_plan))

        def change(graph: Graph) -> Graph:
            return recompute.fit(graph, self._options, max(1, room)).graph

        try:
            plan = self._plan(self._graph, [self._partition], 1, change)
        except BudgetError:
            return None
        return Candidate(plan, self._loss(self._graph, [self._partition], 1)) if _fits(plan, self._budget) else None

    def slice_each_pass(self, max_loss: float) -> Candidate | None:
        """Return the plan with slices of each pass; those of the backward pass recompute the values that they read.

        Only the first layers are sliced, as few as necessary: they often have the largest values.

        Args:
            max_loss: the maximum cost, as a share of the time.
        """
        graph, repeats = self._graph, self.repeats
        for stop in segments(repeats, _SEGMENT_COUNT) if self._lengths else ():
            chosen = [repeats.nodes[index] for index in repeats.select(range(stop).__contains__)]
            loss = self._time(chosen) / self._nanoseconds
            if loss >= max_loss:
                break
            recomputed = recompute.recompute_nodes(graph, chosen, shapes_too=True)
            backward = recomputed.backward()
            partitions = [
                part(recomputed, self._units, recomputed.forward(), set(repeats.nodes[:stop])),
                part(
                    recomputed,
                    self._units,
                    backward,
                    _with_users([n for n in backward if LATE in n.attributes], backward),
                ),
            ]
            candidate = self._longest(recomputed, partitions, loss, max_loss)
            if candidate is not None:
                return candidate
        return None

    def _longest(
        self, graph: Graph, partitions: Sequence[Partition], recompute_loss: float, max_loss: float
    ) -> Candidate | None:
        """Return the plan with the longest slices that fits and costs less than the limit, or None."""
        best, low, high = None, 0, len(self._lengths) - 1
        if not all(partition.members for partition in partitions):
            return None
        index = high  # start with the shortest slices, since often no slices fit
        while low <= high:
            loss = recompute_loss + self._loss(graph, partitions, self._lengths[index])
            plan = self._plan(graph, partitions, self._lengths[index])
            if _fits(plan, self._budget):
                best, high = (Candidate(plan, loss) if loss < max_loss else best), index - 1
            else:
                low = index + 1
            index = (low + high) // 2
        return best

    def recomputing_loss(self) -> float:
        """Return the cost of recomputation for the whole batch, as a share of the time; infinity if it does not fit."""
        choice = choose(self.repeats, self._budget)
        if choice.peak > self._budget:
            return math.inf
        return self._time(self.repeats.nodes[index] for index in choice.recomputed) / self._nanoseconds

    def _time(self, nodes: Iterable[Node]) -> float:
        """Return the approximate nanoseconds of operators."""
        return sum(nanoseconds(node, shapes_of(self._graph, node), self._cores) for node in nodes)

    def _loss(self, graph: Graph, partitions: Sequence[Partition], length: int) -> float:
        """Return the cost of slices of a length, as a share of the time."""
        more = sum(
            repetition(graph, *row, self._cores) for partition in partitions for row in partition.members.items()
        )
        return (self._units // length - 1) * more / self._nanoseconds

    def _plan(
        self, graph: Graph, partitions: Sequence[Partition], length: int,
        change: Callable[[Graph], Graph] = lambda graph: graph,
    ) -> Plan:  # fmt: skip
        """Return the rough plan of a graph, with one region or one for each pass, and slices of a length."""
        kinds, rewriter = self._options.channels_last, Rewriter(graph)
        entry_of = dict(zip(self._graph.results(), graph.results(), strict=True))
        external = {entry_of[entry] for entry in self._external}
        nodes = [node for node in rewriter.nodes if node.op is not None]
        layout = channels_last(nodes, graph.shapes, graph.dtypes, external, kinds) if kinds else frozenset()
        for partition in partitions:
            for node in partition.before:
                rewriter.keep(node)
            region = Region(rewriter, partition.members, self._units, length, layout)
            region.insert(self._strided, self._options, change, rough=True)
            for node in partition.after:
                rewriter.keep(node)
        external = {rewriter.new(entry) for entry in external}
        return make_plan(rewriter.result(), external, self._strided, self._options, rough=True)


def _fits(plan: Plan, budget: int) -> bool:
    """Return whether a rough plan fits into a budget after minimization, minimizing it only if necessary."""
    if plan.internal_bytes() <= budget:
        return True
    if least_bytes(plan) + sum(map(plan.nbytes, plan.separate)) > budget:
        return False
    tighten(plan)
    return plan.internal_bytes() <= budget


def _with_users(nodes: Sequence[Node], order: Sequence[Node]) -> set[Node]:
    """Return operators and all their dependents in an order."""
    result = set(nodes)
    for node in order:
        if any(entry.node in result for entry in node.inputs):
            result.add(node)
    return result


def _slice_bytes(plan: Plan) -> int:
    """Return the largest arena of a plan's slices, in bytes."""
    return max([node.op.plan.arena.size for node in plan.steps() if isinstance(node.op, Sliced)], default=0)
