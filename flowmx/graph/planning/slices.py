"""Slices: regions of a prediction that run a part of the batch at a time, so that their values are that much smaller.

Where an operator goes along with the batch (``Operator.batch_parts``), nothing needs the whole batch at once. Such
operators in a row of the order are a *run* (:mod:`flowmx.graph.planning.runs`). Of each run that keeps much alive a
*region*, from its beginning on, runs slice by slice; it becomes one operator
(:class:`~flowmx.ops.compiled.sliced.Sliced`) with a plan for one slice. Where the region ends and how long slices are
is chosen by what both cost: bytes alive at once, against the time to read and order the weights again for each slice
and to start so many more steps. So it is on the processor; where a budget or the memory of a device is to be kept, what
slices come down to follows from that (:mod:`flowmx.graph.planning.room`).
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
from flowmx.graph.planning.cost import Costs, Processor
from flowmx.graph.planning.layout import channels_last
from flowmx.graph.planning.live import nbytes, shapes_of
from flowmx.graph.planning.order import Ordered
from flowmx.graph.planning.region import Region, is_ordered
from flowmx.graph.planning.runs import Run, parts_of, runs
from flowmx.ops.registry.traits import BatchParts

T = TypeVar("T")

LEAST = 4 << 20
"""Bytes that slices must save."""
AIM = 0.25
"""The part of the bytes to come down to. On a quarter of the batch kernels still are as fast as on the whole; each
further halving saves less, and costs more."""
_MOST_LOSS = 0.04
"""The part of the time that slices may cost, as estimated."""
_WORTH = 4.0
"""A part of the time is worth so many times that part of the bytes, above what they are to come down to."""
_MOST_RUNS = 16
"""Runs that are looked at, those first that keep the most alive."""
_WITH_WORKSPACE = 1.03
"""By how much what lies whole counts for more than it takes, since workspaces of kernels are not counted."""
_COUNTS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 64)
"""Numbers of slices to try."""
_MOST_WEIGHTS = 256
"""Weights that are looked at, to be brought into order before the slices."""
_HEAVY = 1 << 18
"""Bytes of those from which on that is worth a step of its own."""
_SHORT = 4
"""Units below which kernels are slower on a slice, where it is not a quarter of the batch."""


class Aim(NamedTuple):
    """The bytes that slices are to come down to, and what they may cost.

    Attributes:
        nbytes: the bytes, with what is kept from run to run.
        costs: what steps cost there.
        most_loss: the part of the time that slices may cost, as estimated.
        worth: how many times that part of the bytes a part of the time is worth, above what they are to come down to.
        shortest: units that a slice has at least, where that is not more than a quarter of the batch.
        least: bytes that they must save.
    """

    nbytes: float
    costs: Costs
    most_loss: float
    worth: float
    shortest: int
    least: int


class Choice(NamedTuple):
    """The end of a region, and the length of its slices.

    Attributes:
        stop: the position after its last operator.
        length: units in a slice.
        peak: about how many bytes are alive at most between the beginning and the end of the run.
        ahead: the layers whose weights are brought into order once, before all slices.
    """

    stop: int
    length: int
    peak: float = 0
    ahead: frozenset[Node] = frozenset()


class Ends(NamedTuple):
    """The consequences of each end of a region: after the first operator of a run, after the second, and so on.

    Attributes:
        whole: the bytes that lie whole beside the slices.
        most: the most bytes alive in the region, if it took the whole batch at once.
        after: the most bytes alive between the region and the end of the run.
        loss: the nanoseconds that each slice but the first costs.
        cost: the nanoseconds that the region takes.
        each: the nanoseconds that each operator takes at least.
        moved: the bytes that each operator of the region reads and writes.
        times: the nanoseconds that each operator takes, if it takes the whole batch.
    """

    whole: Any
    most: Any
    after: Any
    loss: Any
    cost: Any
    each: Any
    moved: Any
    times: Any


class Weights:
    """The weights of a run that could be brought into order before it, those worth the most of their bytes first.

    Args:
        found: of each the layer, its position in the run, the weight's bytes, and the nanoseconds that each slice but
            the first takes less if it is in order.
        length: the operators of the run.
    """

    def __init__(self, found: Sequence[tuple[Node, int, int, float]], length: int) -> None:
        self._nodes = [node for node, *_ in found]
        self._ends = np.arange(length)
        numbers = np.array([rest for _, *rest in found], float).reshape(-1, 3)
        self._at, *each = numbers.T
        inside = self._at[:, None] <= self._ends
        # Of the first none, one, two ... of them: those that a region with each end has.
        self._bytes, self._gains = np.zeros((2, len(found) + 1, length))
        for sums, values in zip((self._bytes, self._gains), each, strict=True):
            np.cumsum(np.where(inside, values[:, None], 0), axis=0, out=sums[1:])

    def ahead(self, room: Any) -> tuple[Any, Any, Any]:
        """For rooms of so many bytes, by end, how many of the first find room, their bytes, and what is gained."""
        count = (self._bytes[1:, None] <= room).sum(axis=0)
        return count, self._bytes[count, self._ends], self._gains[count, self._ends]

    def first(self, count: int, end: int) -> frozenset[Node]:
        """The layers of the first so many that a region with an end has."""
        return frozenset(node for node, at in zip(self._nodes[:count], self._at, strict=False) if at <= end)


# -- the choice --------------------------------------------------------------------------------------------


class Search:
    """The search for regions.

    Args:
        graph: what is computed.
        schedule: the order, of which those operators are left out whose results are kept from run to run.
        kept: the bytes of such results.
        aim: what to come down to; by default as the processor's costs say.

    Attributes:
        alive: the bytes alive at each step, if the whole batch is taken at once.
        whole: the most of them.
    """

    def __init__(self, graph: Graph, schedule: Ordered, kept: int, aim: Aim | None = None) -> None:
        rows = zip(schedule.forward, schedule.steps, schedule.alive, strict=True)
        each_time = [row for row in rows if row[0].op is not None and not row[0].op.traits.once]
        self.graph, self.order = graph, [node for node, _, _ in each_time]
        self.alive = [alive for _, _, alive in each_time]
        self.whole = max(self.alive, default=0)
        self._how = aim or Aim(AIM * (self.whole + kept), Processor(), _MOST_LOSS, _WORTH, _SHORT, LEAST)
        self._aim = self._how.nbytes - kept
        self._sizes = schedule.values.sizes
        self._forms = [shapes_of(graph, node) for node in self.order]
        first: dict[Any, int] = {}
        self._like = [
            first.setdefault(
                (node.op, graph.context(node), *inputs, *outputs, *[graph.dtypes[e] for e in node.inputs]), at
            )
            for at, (node, (inputs, outputs)) in enumerate(zip(self.order, self._forms, strict=True))
        ]
        """For each operator the first that is like it, of which what holds for both is asked."""
        self._steps = [step for _, step, _ in each_time]
        self._made_at = [-1] * len(self._sizes)
        self._read_last = [-1] * len(self._sizes)
        for at, step in enumerate(self._steps):
            for value in step.writes:
                self._made_at[value] = self._read_last[value] = at
            for value in step.reads:
                self._read_last[value] = at
        for value in schedule.values.wanted:
            self._read_last[value] = len(self.order)

    @cached_property
    def _moved(self) -> Any:
        """The bytes that each operator reads and writes."""
        sizes = self._sizes
        return np.array([sum([sizes[v] for v in (*step.reads, *step.writes)]) for step in self._steps], float)

    @cached_property
    def _costs(self) -> Any:
        """The nanoseconds that each operator takes at least."""
        return np.array(self._each(lambda at: self._how.costs.nanoseconds(self.order[at], self._forms[at])))

    @cached_property
    def _parts(self) -> list[BatchParts | None]:
        """The parts of each operator that go along with the batch."""
        return self._each(lambda at: parts_of(self.graph, self.order[at], self._forms[at]))

    @cached_property
    def _losses(self) -> list[float]:
        """The nanoseconds that it costs to run each operator once more, if it may be in a region."""

        def loss(at: int) -> float:
            parts = self._parts[at]
            return 0 if parts is None else self._how.costs.once_more(self.graph, self.order[at], parts)

        return self._each(loss)

    def _each(self, ask: Callable[[int], T]) -> list[T]:
        """The answers for all operators, by their positions, of which those that are alike share one."""
        known: dict[int, T] = {}
        return [known[like] if like in known else known.setdefault(like, ask(like)) for like in self._like]

    @cached_property
    def _total(self) -> float:
        return float(self._how.costs.in_memory(self._costs, self._moved).sum())

    def choose(self) -> list[tuple[Run, Choice]]:
        """The regions that are worth it."""
        every = [(max(self.alive[run.start : run.stop]), run) for run in self._runs()]
        large = sorted((each for each in every if each[0] > self._aim), key=lambda each: -each[0])[:_MOST_RUNS]
        found = [(run, choice) for _, run in large if (choice := self._best(run)) is not None]
        found.sort(key=lambda each: each[0].start)
        left = list(self.alive)
        for run, _ in found:
            left[run.start : run.stop] = [0] * (run.stop - run.start)
        most = max([*left, *[choice.peak for _, choice in found]])
        if self.whole - most < self._how.least:
            return []
        return [(run, choice) for run, choice in found if max(self.alive[run.start : run.stop]) > most]

    def _runs(self) -> list[Run]:
        return runs(self.graph, self.order, self._forms, self._parts)

    def forced(self, length: int) -> list[tuple[Run, Choice]]:
        """All runs, in slices of so many units."""
        return [
            (run, Choice(run.stop, length)) for run in self._runs()
            if run.units > length and len(run.members) > 1
        ]  # fmt: skip

    def _best(self, run: Run) -> Choice | None:
        """The choice for a run that costs the least time of those that come down to the aim, or else the smallest."""
        counts = [count for count in _COUNTS if _is_fit(run.units, count, self._how.shortest)]
        if not counts:
            return None
        ends, weights = self._ends(run), self._weights(run)
        count = np.array(counts)[:, None]
        length = -(-run.units // count)
        inside = _WITH_WORKSPACE * ends.whole + ends.most * (length / run.units)
        peak = np.maximum(inside, _WITH_WORKSPACE * ends.after)
        small = peak.min(axis=1) <= self._aim
        taken, more, gain = weights.ahead((self._aim - inside) / _WITH_WORKSPACE)
        peak = np.maximum(peak, inside + _WITH_WORKSPACE * more)
        faster = ends.times - self._how.costs.in_memory(ends.each, ends.moved, length / run.units)
        loss = (count - 1) * (ends.loss - gain) + (count * length / run.units - 1) * ends.cost
        part = (loss - np.cumsum(faster, axis=1)) / self._total
        above = 1 + peak / self.whole + self._how.worth * part
        below = part / (1 + np.maximum(part, 0))  # what comes down to the aim weighs less than 1, however much it costs
        weighed = np.where(part > self._how.most_loss, np.inf, np.where(peak <= self._aim, below, above))
        weight = weighed.min(axis=1)
        some = small & (weight < 1)
        if not some.any():
            some = weight < 1 + max(self.alive[run.start : run.stop]) / self.whole
            if not some.any():
                return None
        which = int(np.where(some, weight, np.inf).argmin())
        at = int(weighed[which].argmin())
        return Choice(
            run.start + 1 + at, int(length[which, 0]), float(peak[which, at]), weights.first(taken[which, at], at)
        )

    def _weights(self, run: Run) -> Weights:
        """The weights that could be brought into order before a run."""
        found = []
        for at, node in enumerate(self.order[run.start : run.stop]):
            if node in run.members and is_ordered(self.graph, node):
                size, gain = nbytes(self.graph, node.inputs[1]), self._how.costs.ordering(self.graph, node)
                if size >= _HEAVY and gain:
                    found.append((node, at, size, gain))
        found.sort(key=lambda each: -each[3] / each[2])
        return Weights(found[:_MOST_WEIGHTS], run.stop - run.start)

    def _ends(self, run: Run) -> Ends:
        """The consequences of each end of a region that begins with a run."""
        span = slice(run.start, run.stop)
        alive = self.alive[span]
        after = list(accumulate(alive[:0:-1], max, initial=0))[::-1]
        is_member = [node in run.members for node in self.order[span]]
        loss = [each if is_one else 0 for each, is_one in zip(self._losses[span], is_member, strict=True)]
        each, moved = self._costs[span], self._moved[span] * is_member
        times = self._how.costs.in_memory(each, moved)
        return Ends(
            np.array(self._lying(run)), np.array(list(accumulate(alive, max))), np.array(after), np.cumsum(loss),
            np.cumsum(times * is_member), each, moved, times,
        )  # fmt: skip

    def _lying(self, run: Run) -> list[int]:
        """The bytes that lie whole after each operator of a run: what it left, and what was there before all of it."""
        made_at, last, sizes, start = self._made_at, self._read_last, self._sizes, run.start
        gone = [0] * (run.stop - start)
        before = 0
        for value, at in enumerate(made_at):
            if at < start <= last[value] and at >= 0:
                before += sizes[value]
            elif start <= at and last[value] < run.stop:
                gone[last[value] - start] += sizes[value]
        made = [sum([sizes[value] for value in step.writes]) for step in self._steps[start : run.stop]]
        return list(accumulate(map(sub, made, gone), initial=before))[1:]


def _is_fit(units: int, count: int, shortest: int) -> bool:
    """Tell whether so many slices of so many units are worth a look: each has some, and they are not too short."""
    length = -(-units // count)
    return length >= min(shortest, units // 4) and -(-units // length) == count


# -- regions in their places -------------------------------------------------------------------------------


class Cut(NamedTuple):
    """A graph whose regions are operators.

    Attributes:
        graph: the graph.
        order: its operators, in the order to run them in.
        external: the entries that get memory from outside.
        whole: the bytes that are alive at most if the whole batch is taken at once.
        peak: about how many are alive at most in a region.
    """

    graph: Graph
    order: list[Node]
    external: set[Entry]
    whole: int
    peak: float


def may_be_cut(graph: Graph, options: Options) -> bool:
    """Tell whether a graph may run in slices: it is a prediction, of which values share memory."""
    return bool(options.slice) and not graph.train and not graph.gradients and options.share and options.in_place


def _is_processor(context: Context | None) -> bool:
    return context is None or context.device_type.startswith("cpu")


def cut(
    graph: Graph,
    schedule: Ordered,
    external: Collection[Entry],
    strided: Collection[Node],
    options: Options,
    aim: Aim | None = None,
) -> Cut | None:
    """Put one operator in the place of each region that is worth it; None where none is.

    Args:
        graph: of a prediction, after all passes.
        schedule: its operators, in the order to run them in.
        external: the entries that get memory from outside.
        strided: the variables whose arrays do not lie densely in C order.
        options: how.
        aim: what to come down to, where a device's memory is not enough; by default as the processor's costs say.
    """
    if not may_be_cut(graph, options):
        return None
    if options.slice < 0 and aim is None:
        if options.workers > 1 or max(schedule.alive, default=0) < LEAST:
            return None  # branches run at the same time instead
        if not all(_is_processor(each) for each in (graph.default, *graph.groups.values())):
            return None  # whole batches are faster there
    once = [node for node in schedule.forward if node.op is not None and node.op.traits.once]
    kept = sum(nbytes(graph, Entry(node, index)) for node in once for index in range(node.outputs()))
    search = Search(graph, schedule, kept, aim)
    chosen = search.choose() if options.slice < 0 else search.forced(options.slice)
    if not chosen:
        return None
    kinds = options.channels_last
    each_time = search.order
    laid = channels_last(schedule.forward, graph.shapes, graph.dtypes, external, kinds) if kinds else frozenset()
    rewriter = Rewriter(graph)
    made = [rewriter.keep(node) for node in once]
    at = 0
    for run, choice in chosen:
        made += [rewriter.keep(node) for node in each_time[at : run.start]]
        part = each_time[run.start : choice.stop]
        made += [rewriter.keep(node) for node in part if node not in run.members]
        members = {node: run.members[node] for node in part if node in run.members}
        made += Region(rewriter, members, run.units, choice.length, laid, choice.ahead).put(strided, options)
        at = choice.stop
    made += [rewriter.keep(node) for node in each_time[at:]]
    peak = max(choice.peak for _, choice in chosen)
    return Cut(rewriter.result(), made, {rewriter.new(entry) for entry in external}, search.whole, peak)
