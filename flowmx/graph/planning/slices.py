"""Slices: regions of a prediction that run a part of the batch at a time, so that their values are that much smaller.

Where an operator goes along with the batch (``Operator.batch_parts``), nothing needs the whole batch at once. Such
operators in a row of the order are a *run*. Of each run that keeps much alive a *region*, from its beginning on, runs
slice by slice; it becomes one operator (:class:`~flowmx.ops.compiled.sliced.Sliced`) with a plan for one slice. Where
the region ends and how long slices are is chosen by what both cost: bytes alive at once, against the time to read and
order the weights again for each slice and to start so many more steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from operator import sub
from typing import Any, NamedTuple, TypeVar

import numpy as np

from flowmx.graph.graph import Graph, Options, Rewriter, is_pure
from flowmx.graph.node import Entry, Node
from flowmx.graph.planning.cost import cores, in_memory, nanoseconds, once_more, ordering
from flowmx.graph.planning.layout import channels_last
from flowmx.graph.planning.live import Shapes, nbytes, shapes_of
from flowmx.graph.planning.order import Ordered
from flowmx.graph.planning.parting import CUT_ON
from flowmx.graph.planning.region import Region, is_ordered
from flowmx.ops.registry.traits import BatchParts

T = TypeVar("T")

LEAST = 4 << 20
"""Bytes that slices must save."""
_AIM = 0.25
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
_EVICTED = 16
"""Operators that may be taken out of a run for one that needs their whole results."""


@dataclass
class Run:
    """Operators in a row that go along with the batch.

    Attributes:
        start, stop: positions in the order.
        units: the greatest number of equal parts that the batch can be cut into.
        members: by node.
        before: operators between them that read none of them, and run before them.
    """

    start: int
    stop: int
    units: int
    members: dict[Node, BatchParts] = field(default_factory=dict)
    before: dict[Node, None] = field(default_factory=dict)


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


# -- runs --------------------------------------------------------------------------------------------------


def runs(
    graph: Graph, order: Sequence[Node], forms: Sequence[Shapes], parts: Sequence[BatchParts | None]
) -> list[Run]:  # fmt: skip
    """The runs of an order, of those operators that compute something in each run of the graph.

    Args:
        graph: what is computed.
        order: the operators.
        forms: the shapes of their inputs and outputs.
        parts: what of each goes along with the batch (None: it may not be in a region).
    """
    found: list[Run] = []
    now: Run | None = None
    for at, (node, form, along) in enumerate(zip(order, forms, parts, strict=True)):
        rows = [] if along is None else _rows(along, form)
        if now is not None and _goes_on(graph, now, node, along, rows):
            now.stop = at + 1
            continue
        units, now = math.gcd(*rows), None
        if along is not None and units > 1:
            now = Run(at, at + 1, units, {node: along})
            found.append(now)
    return found


def _parts(graph: Graph, node: Node, form: Shapes) -> BatchParts | None:
    """The parts of an operator that go along with the batch; None where it may not be in a region."""
    op, context = node.op, graph.context(node)
    assert op is not None
    if op.traits.dynamic or not is_pure(op, train=False) or not (context is None or context.device_type in CUT_ON):
        return None
    inputs, outputs = form
    if not (all(map(all, inputs)) and all(map(all, outputs))):
        return None
    parts = op.batch_parts(inputs, outputs)
    return None if parts is None or parts.sums else parts


def _rows(parts: BatchParts, form: Shapes) -> list[int]:
    """The lengths of axis 0 of what goes along."""
    inputs, outputs = form
    return [*[inputs[at][0] for at in parts.inputs], *[outputs[at][0] for at in parts.outputs]]


def _goes_on(graph: Graph, run: Run, node: Node, parts: BatchParts | None, rows: Sequence[int]) -> bool:
    """Let a run go on with an operator, in it or before it; False where it cannot."""
    if parts is not None and graph.context(node) is graph.context(next(iter(run.members))):
        fits = not any(each % run.units for each in rows)
        if fits and _reads_parts(node, parts, run):
            whole = [entry.node for at, entry in enumerate(node.inputs) if at not in parts.inputs]
            if _evict(run, [each for each in whole if each in run.members]):
                run.members[node] = parts
                return True
    if _is_before(node, run):
        run.before[node] = None
        return True
    return False


def _reads_parts(node: Node, parts: BatchParts, run: Run) -> bool:
    """Tell whether what an operator reads of a run, part by part, is there part by part."""
    read = [node.inputs[at] for at in parts.inputs if node.inputs[at].node in run.members]
    return all(entry.index in run.members[entry.node].outputs for entry in read)


def _is_before(node: Node, run: Run) -> bool:
    """Tell whether an operator can run before all of a run."""
    assert node.op is not None
    return is_pure(node.op, train=False) and not any(entry.node in run.members for entry in node.inputs)


def _evict(run: Run, needed: Iterable[Node]) -> bool:
    """Let members whose whole results are needed run before the others, with what they read of them."""
    found: dict[Node, None] = {}
    stack = list(needed)
    while stack:
        node = stack.pop()
        if node not in found:
            found[node] = None
            stack += [entry.node for entry in node.inputs if entry.node in run.members]
    if len(found) > min(_EVICTED, len(run.members) - 1):
        return not found
    for node in found:
        del run.members[node]
        run.before[node] = None
    return True


# -- the choice --------------------------------------------------------------------------------------------


class Search:
    """The search for regions.

    Args:
        graph: what is computed.
        schedule: the order, of which those operators are left out whose results are kept from run to run.
        kept: the bytes of such results.

    Attributes:
        alive: the bytes alive at each step, if the whole batch is taken at once.
        whole: the most of them.
    """

    def __init__(self, graph: Graph, schedule: Ordered, kept: int) -> None:
        rows = zip(schedule.forward, schedule.steps, schedule.alive, strict=True)
        each_time = [row for row in rows if row[0].op is not None and not row[0].op.traits.once]
        self.graph, self.order = graph, [node for node, _, _ in each_time]
        self.alive = [alive for _, _, alive in each_time]
        self.whole = max(self.alive, default=0)
        self._cores, self._sizes = cores(), schedule.values.sizes
        self._forms = [shapes_of(graph, node) for node in self.order]
        first: dict[Any, int] = {}
        self._like = [
            first.setdefault(
                (node.op, graph.context(node), *inputs, *outputs, *[graph.dtypes[e] for e in node.inputs]), at
            )
            for at, (node, (inputs, outputs)) in enumerate(zip(self.order, self._forms, strict=True))
        ]
        """For each operator the first that is like it, of which what holds for both is asked."""
        self._aim = _AIM * (self.whole + kept) - kept
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
        return np.array(self._each(lambda at: nanoseconds(self.order[at], self._forms[at], self._cores)))

    @cached_property
    def _parts(self) -> list[BatchParts | None]:
        """The parts of each operator that go along with the batch."""
        return self._each(lambda at: _parts(self.graph, self.order[at], self._forms[at]))

    @cached_property
    def _losses(self) -> list[float]:
        """The nanoseconds that it costs to run each operator once more, if it may be in a region."""

        def loss(at: int) -> float:
            parts = self._parts[at]
            return 0 if parts is None else once_more(self.graph, self.order[at], parts, self._cores)

        return self._each(loss)

    def _each(self, ask: Callable[[int], T]) -> list[T]:
        """The answers for all operators, by their positions, of which those that are alike share one."""
        known: dict[int, T] = {}
        return [known[like] if like in known else known.setdefault(like, ask(like)) for like in self._like]

    @cached_property
    def _total(self) -> float:
        return float(in_memory(self._costs, self._moved).sum())

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
        if self.whole - most < LEAST:
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
        counts = [count for count in _COUNTS if _is_fit(run.units, count)]
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
        faster = ends.times - in_memory(ends.each, ends.moved, length / run.units)
        loss = (count - 1) * (ends.loss - gain) + (count * length / run.units - 1) * ends.cost
        part = (loss - np.cumsum(faster, axis=1)) / self._total
        above = 1 + peak / self.whole + _WORTH * part
        weighed = np.where(part > _MOST_LOSS, np.inf, np.where(peak <= self._aim, part, above))
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
                size = nbytes(self.graph, node.inputs[1])
                if size >= _HEAVY:
                    found.append((node, at, size, ordering(self.graph, node, self._cores)))
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
        times = in_memory(each, moved)
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


def _is_fit(units: int, count: int) -> bool:
    """Tell whether so many slices of so many units are worth a look: each has some, and they are not too short."""
    length = -(-units // count)
    return length >= min(_SHORT, units // 4) and -(-units // length) == count


# -- regions in their places -------------------------------------------------------------------------------


class Cut(NamedTuple):
    """A graph whose regions are operators.

    Attributes:
        graph: the graph.
        order: its operators, in the order to run them in.
        external: the entries that get memory from outside.
        whole: the bytes that are alive at most if the whole batch is taken at once.
    """

    graph: Graph
    order: list[Node]
    external: set[Entry]
    whole: int


def cut(
    graph: Graph, schedule: Ordered, external: Collection[Entry], strided: Collection[Node], options: Options
) -> Cut | None:
    """Put one operator in the place of each region that is worth it; None where none is.

    Args:
        graph: of a prediction, after all passes.
        schedule: its operators, in the order to run them in.
        external: the entries that get memory from outside.
        strided: the variables whose arrays do not lie densely in C order.
        options: how.
    """
    if not options.slice or graph.train or graph.gradients or not (options.share and options.in_place):
        return None
    if options.workers > 1 and options.slice < 0:
        return None  # branches run at the same time instead
    if options.slice < 0 and max(schedule.alive, default=0) < LEAST:
        return None
    once = [node for node in schedule.forward if node.op is not None and node.op.traits.once]
    kept = sum(nbytes(graph, Entry(node, index)) for node in once for index in range(node.outputs()))
    search = Search(graph, schedule, kept)
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
    return Cut(rewriter.result(), made, {rewriter.new(entry) for entry in external}, search.whole)
