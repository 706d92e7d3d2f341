"""Slices: regions of a prediction that process a part of the batch at a time, so that their values are smaller.

Operators with a batch axis (``Operator.batch_parts``) never need the whole batch at once. Consecutive such operators
form a *run* (:mod:`flowmx.graph.planning.batch_runs`). In each run with many bytes alive, a *region* at the start is
run slice by slice; it becomes one operator (:class:`~flowmx.ops.compiled.sliced.Sliced`) with a plan for one slice. On
a processor, the end of the region and the length of slices are chosen by cost: they trade the peak of bytes alive for
the time to read and reorder the weights for each slice and to start more steps. For a budget or the memory of a device,
the limit determines the slices (:mod:`flowmx.graph.planning.device_memory`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from itertools import accumulate
from operator import sub
from typing import Any, NamedTuple, TypeVar

import numpy as np

from flowmx.devices import Context
from flowmx.graph.graph import Graph, Options, Rewriter
from flowmx.graph.node import Entry, Node
from flowmx.graph.planning.batch_region import Region, reorders_weight
from flowmx.graph.planning.batch_runs import Run, parts_of, runs
from flowmx.graph.planning.channels_last import channels_last
from flowmx.graph.planning.cost import Costs, ProcessorCosts
from flowmx.graph.planning.live_bytes import nbytes, shapes_of
from flowmx.graph.planning.order import Schedule
from flowmx.ops.registry.operators import Array
from flowmx.ops.registry.traits import BatchParts

T = TypeVar("T")

MIN_SAVED = 4 << 20
"""The bytes that slices must save."""
AIM = 0.25
"""The target, as a share of the bytes. Kernels are as fast on a quarter of the batch as on the whole; each further
halving saves less and costs more."""
_MAX_LOSS = 0.04
"""The maximum estimated cost of slices, as a share of the time."""
_WORTH = 4.0
"""The weight of a share of the time relative to the same share of the bytes, above the target."""
_MAX_RUNS = 16
"""Maximum number of runs to consider, those with the most bytes alive first."""
_WORKSPACE_FACTOR = 1.03
"""The factor for whole values, since workspaces of kernels are not counted."""
_COUNTS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 64)
"""The numbers of slices to try."""
_MAX_WEIGHTS = 256
"""Maximum number of weights to reorder before the slices."""
_MIN_WEIGHT_BYTES = 1 << 18
"""Minimum size in bytes of a weight with a separate reordering step."""
_MIN_LENGTH = 4
"""Minimum units of a slice, below which kernels are slower; a quarter of the batch is always allowed."""


class Aim(NamedTuple):
    """The target bytes of slices, and their maximum cost.

    Attributes:
        nbytes: the target, including values kept from run to run.
        costs: the time estimates.
        max_loss: the maximum estimated cost of slices, as a share of the time.
        time_weight: the weight of a share of the time relative to the same share of the bytes, above the target.
        min_length: the minimum units of a slice; a quarter of the batch is always allowed.
        min_saved: the minimum number of bytes that slices must save.
    """

    nbytes: float
    costs: Costs
    max_loss: float
    time_weight: float
    min_length: int
    min_saved: int


class Choice(NamedTuple):
    """The end of a region, and the length of its slices.

    Attributes:
        stop: the position after its last operator.
        length: the number of units in a slice.
        peak: the approximate peak of bytes alive in the run.
        ahead: the layers whose weights are reordered once, before all slices.
    """

    stop: int
    length: int
    peak: float = 0
    ahead: frozenset[Node] = frozenset()


class Ends(NamedTuple):
    """Properties of a region for each possible end: after the first operator of a run, after the second, and so on.

    Attributes:
        whole: the size in bytes of the whole values that are alive besides the slices.
        whole_peak: the peak of bytes alive in the region with the whole batch.
        after: the peak of bytes alive between the region and the end of the run.
        loss: the nanoseconds of each additional slice.
        cost: the nanoseconds of the region.
        each: the lower bound of each operator's nanoseconds.
        moved: the number of bytes that each operator of the region reads and writes.
        times: the nanoseconds of each operator with the whole batch.
    """

    whole: Any
    whole_peak: Any
    after: Any
    loss: Any
    cost: Any
    each: Any
    moved: Any
    times: Any


class Weights:
    """The weights of a run that could be reordered before it, those with the highest gain per byte first.

    Args:
        rows: the layer, its position in the run, the weight's bytes, and the nanoseconds saved for each additional
            slice.
        length: the number of operators of the run.
    """

    def __init__(self, rows: Sequence[tuple[Node, int, int, float]], length: int) -> None:
        self._nodes = [node for node, *_ in rows]
        self._ends = np.arange(length)
        numbers = np.array([rest for _, *rest in rows], float).reshape(-1, 3)
        self._at, *columns = numbers.T
        inside = self._at[:, None] <= self._ends
        # Row n: sums over those of the first n weights that a region with each end contains.
        self._bytes, self._gains = np.zeros((2, len(rows) + 1, length))
        for sums, values in zip((self._bytes, self._gains), columns, strict=True):
            np.cumsum(np.where(inside, values[:, None], 0), axis=0, out=sums[1:])

    def fit(self, room: Any) -> tuple[Any, Any, Any]:
        """Return how many of the first weights fit in the available bytes at each end, their bytes, and their gain."""
        count = (self._bytes[1:, None] <= room).sum(axis=0)
        return count, self._bytes[count, self._ends], self._gains[count, self._ends]

    def first(self, count: int, end: int) -> frozenset[Node]:
        """Return the layers among the first ``count`` that a region with this end contains."""
        return frozenset(node for node, index in zip(self._nodes[:count], self._at, strict=False) if index <= end)


# -- the choice --------------------------------------------------------------------------------------------


class Search:
    """The search for regions.

    Args:
        graph: the graph.
        schedule: the execution order; operators with results that are reused between runs are skipped.
        kept_bytes: the size of such results in bytes.
        aim: the target (default: from the costs on the processor).

    Attributes:
        alive: the bytes alive at each step, with the whole batch.
        whole: their peak.
    """

    def __init__(self, graph: Graph, schedule: Schedule, kept_bytes: int, aim: Aim | None = None) -> None:
        rows = zip(schedule.forward, schedule.steps, schedule.alive, strict=True)
        executed = [row for row in rows if row[0].op is not None and not row[0].op.traits.once]
        self.graph, self.order = graph, [node for node, _, _ in executed]
        self.alive = [alive for _, _, alive in executed]
        self.whole = max(self.alive, default=0)
        self._aim = aim or Aim(
            AIM * (self.whole + kept_bytes), ProcessorCosts(), _MAX_LOSS, _WORTH, _MIN_LENGTH, MIN_SAVED
        )
        self._target = self._aim.nbytes - kept_bytes
        self._sizes = schedule.values.sizes
        self._forms = [shapes_of(graph, node) for node in self.order]
        first: dict[Any, int] = {}
        self._first_like = [
            first.setdefault(
                (node.op, graph.context(node), *inputs, *outputs, *[graph.dtypes[e] for e in node.inputs]), index
            )
            for index, (node, (inputs, outputs)) in enumerate(zip(self.order, self._forms, strict=True))
        ]
        """For each operator, the position of the first equal operator."""
        self._steps = [step for _, step, _ in executed]
        self._written_at = [-1] * len(self._sizes)
        self._last_read = [-1] * len(self._sizes)
        for index, step in enumerate(self._steps):
            for value in step.writes:
                self._written_at[value] = self._last_read[value] = index
            for value in step.reads:
                self._last_read[value] = index
        for value in schedule.values.results:
            self._last_read[value] = len(self.order)

    @cached_property
    def _moved_bytes(self) -> Array:
        """The bytes that each operator reads and writes."""
        sizes = self._sizes
        return np.array([sum([sizes[v] for v in (*step.reads, *step.writes)]) for step in self._steps], float)

    @cached_property
    def _costs(self) -> Array:
        """The lower bound of each operator's nanoseconds."""
        return np.array(self._map(lambda index: self._aim.costs.nanoseconds(self.order[index], self._forms[index])))

    @cached_property
    def _parts(self) -> list[BatchParts | None]:
        """The batch parts of each operator."""
        return self._map(lambda index: parts_of(self.graph, self.order[index], self._forms[index]))

    @cached_property
    def _losses(self) -> list[float]:
        """The nanoseconds to run each operator again; 0 if it cannot be in a region."""

        def loss(index: int) -> float:
            parts = self._parts[index]
            return 0 if parts is None else self._aim.costs.repetition(self.graph, self.order[index], parts)

        return self._map(loss)

    def _map(self, function: Callable[[int], T]) -> list[T]:
        """Return the function's results for all operators, calling it once for equal operators."""
        cache: dict[int, T] = {}
        return [
            cache[representative]
            if representative in cache
            else cache.setdefault(representative, function(representative))
            for representative in self._first_like
        ]

    @cached_property
    def _total(self) -> float:
        return float(self._aim.costs.with_memory_traffic(self._costs, self._moved_bytes).sum())

    def choose(self) -> list[tuple[Run, Choice]]:
        """Return the regions to slice."""
        rows = [(max(self.alive[run.start : run.stop]), run) for run in self._runs()]
        large = sorted((row for row in rows if row[0] > self._target), key=lambda row: -row[0])[:_MAX_RUNS]
        choices = [(run, choice) for _, run in large if (choice := self._best(run)) is not None]
        choices.sort(key=lambda row: row[0].start)
        others = list(self.alive)
        for run, _ in choices:
            others[run.start : run.stop] = [0] * (run.stop - run.start)
        peak = max([*others, *[choice.peak for _, choice in choices]])
        if self.whole - peak < self._aim.min_saved:
            return []
        return [(run, choice) for run, choice in choices if max(self.alive[run.start : run.stop]) > peak]

    def _runs(self) -> list[Run]:
        return runs(self.graph, self.order, self._forms, self._parts)

    def force_length(self, length: int) -> list[tuple[Run, Choice]]:
        """Return all runs, in slices of ``length`` units."""
        return [
            (run, Choice(run.stop, length)) for run in self._runs()
            if run.units > length and len(run.members) > 1
        ]  # fmt: skip

    def _best(self, run: Run) -> Choice | None:
        """Return the cheapest choice that meets the target, or else the smallest; None if slices do not pay off."""
        counts = [count for count in _COUNTS if _is_fit(run.units, count, self._aim.min_length)]
        if not counts:
            return None
        ends, weights = self._ends(run), self._weights(run)
        count = np.array(counts)[:, None]
        length = -(-run.units // count)
        inside = _WORKSPACE_FACTOR * ends.whole + ends.whole_peak * (length / run.units)
        peak = np.maximum(inside, _WORKSPACE_FACTOR * ends.after)
        is_small = peak.min(axis=1) <= self._target
        fitting, weight_bytes, gain = weights.fit((self._target - inside) / _WORKSPACE_FACTOR)
        peak = np.maximum(peak, inside + _WORKSPACE_FACTOR * weight_bytes)
        faster = ends.times - self._aim.costs.with_memory_traffic(ends.each, ends.moved, length / run.units)
        loss = (count - 1) * (ends.loss - gain) + (count * length / run.units - 1) * ends.cost
        time_share = (loss - np.cumsum(faster, axis=1)) / self._total
        weight_above_target = 1 + peak / self.whole + self._aim.time_weight * time_share
        weight_below_target = time_share / (
            1 + np.maximum(time_share, 0)
        )  # choices that meet the target weigh less than 1 at any cost
        weights_of_choices = np.where(
            time_share > self._aim.max_loss,
            np.inf,
            np.where(peak <= self._target, weight_below_target, weight_above_target),
        )
        weight = weights_of_choices.min(axis=1)
        candidates = is_small & (weight < 1)
        if not candidates.any():
            candidates = weight < 1 + max(self.alive[run.start : run.stop]) / self.whole
            if not candidates.any():
                return None
        row = int(np.where(candidates, weight, np.inf).argmin())
        index = int(weights_of_choices[row].argmin())
        return Choice(
            run.start + 1 + index,
            int(length[row, 0]),
            float(peak[row, index]),
            weights.first(fitting[row, index], index),
        )

    def _weights(self, run: Run) -> Weights:
        """Return the weights that could be reordered before a run."""
        rows = []
        for index, node in enumerate(self.order[run.start : run.stop]):
            if node in run.members and reorders_weight(self.graph, node):
                size, gain = nbytes(self.graph, node.inputs[1]), self._aim.costs.reorder_cost(self.graph, node)
                if size >= _MIN_WEIGHT_BYTES and gain:
                    rows.append((node, index, size, gain))
        rows.sort(key=lambda row: -row[3] / row[2])
        return Weights(rows[:_MAX_WEIGHTS], run.stop - run.start)

    def _ends(self, run: Run) -> Ends:
        """Return the properties of each end of a region that begins with a run."""
        span = slice(run.start, run.stop)
        alive = self.alive[span]
        after = list(accumulate(alive[:0:-1], max, initial=0))[::-1]
        is_member = [node in run.members for node in self.order[span]]
        loss = [cost if is_one else 0 for cost, is_one in zip(self._losses[span], is_member, strict=True)]
        costs, moved = self._costs[span], self._moved_bytes[span] * is_member
        times = self._aim.costs.with_memory_traffic(costs, moved)
        return Ends(
            np.array(self._whole_bytes(run)), np.array(list(accumulate(alive, max))), np.array(after), np.cumsum(loss),
            np.cumsum(times * is_member), costs, moved, times,
        )  # fmt: skip

    def _whole_bytes(self, run: Run) -> list[int]:
        """Return the size in bytes of whole values after each operator of a run: outputs in use, and earlier values."""
        written_at, last, sizes, start = self._written_at, self._last_read, self._sizes, run.start
        freed = [0] * (run.stop - start)
        before = 0
        for value, index in enumerate(written_at):
            if index < start <= last[value] and index >= 0:
                before += sizes[value]
            elif start <= index and last[value] < run.stop:
                freed[last[value] - start] += sizes[value]
        written = [sum([sizes[value] for value in step.writes]) for step in self._steps[start : run.stop]]
        return list(accumulate(map(sub, written, freed), initial=before))[1:]


def _is_fit(units: int, count: int, shortest: int) -> bool:
    """Return whether to try this number of slices: no slice is empty or too short."""
    length = -(-units // count)
    return length >= min(shortest, units // 4) and -(-units // length) == count


# -- inserting regions -------------------------------------------------------------------------------------


class Cut(NamedTuple):
    """A graph whose regions are operators.

    Attributes:
        graph: the graph.
        order: its operators, in execution order.
        external: the entries with external memory.
        whole: the peak of bytes alive with the whole batch.
        peak: the approximate peak of bytes alive in a region.
    """

    graph: Graph
    order: list[Node]
    external: set[Entry]
    whole: int
    peak: float


def may_be_cut(graph: Graph, options: Options) -> bool:
    """Return whether a graph may run in slices: it is a prediction whose values share memory."""
    return bool(options.slice) and not graph.train and not graph.gradients and options.share and options.in_place


def _is_processor(context: Context | None) -> bool:
    return context is None or context.device_type.startswith("cpu")


def cut(
    graph: Graph,
    schedule: Schedule,
    external: Collection[Entry],
    strided: Collection[Node],
    options: Options,
    aim: Aim | None = None,
) -> Cut | None:
    """Replace each region to slice with one operator; return None if there are no such regions.

    Args:
        graph: the graph of a prediction, after all passes.
        schedule: its operators, in execution order.
        external: the entries with external memory.
        strided: the variables whose arrays are not dense in C order.
        options: the compiler options.
        aim: the target, if a device's memory is too small (default: from the costs on the processor).
    """
    if not may_be_cut(graph, options):
        return None
    if options.slice < 0 and aim is None:
        if options.workers > 1 or max(schedule.alive, default=0) < MIN_SAVED:
            return None  # concurrent branches run instead
        if not all(_is_processor(context) for context in (graph.default, *graph.groups.values())):
            return None  # whole batches are faster on other devices
    once = [node for node in schedule.forward if node.op is not None and node.op.traits.once]
    kept_bytes = sum(nbytes(graph, Entry(node, index)) for node in once for index in range(node.outputs()))
    search = Search(graph, schedule, kept_bytes, aim)
    choices = search.choose() if options.slice < 0 else search.force_length(options.slice)
    if not choices:
        return None
    kinds = options.channels_last
    executed = search.order
    layout = channels_last(schedule.forward, graph.shapes, graph.dtypes, external, kinds) if kinds else frozenset()
    rewriter = Rewriter(graph)
    nodes = [rewriter.keep(node) for node in once]
    position = 0
    for run, choice in choices:
        nodes += [rewriter.keep(node) for node in executed[position : run.start]]
        region_nodes = executed[run.start : choice.stop]
        nodes += [rewriter.keep(node) for node in region_nodes if node not in run.members]
        members = {node: run.members[node] for node in region_nodes if node in run.members}
        nodes += Region(rewriter, members, run.units, choice.length, layout, choice.ahead).insert(strided, options)
        position = choice.stop
    nodes += [rewriter.keep(node) for node in executed[position:]]
    peak = max(choice.peak for _, choice in choices)
    return Cut(rewriter.result(), nodes, {rewriter.new(entry) for entry in external}, search.whole, peak)
