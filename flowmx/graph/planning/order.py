"""The order in which the steps of a graph run: one that keeps few bytes alive.

Finding the best order is hard, so a few are tried that take little time, and the one that keeps the fewest bytes alive
is taken: the depth-first walk that MXNet does; the same with the operand first that needs more memory on the way
(as Sethi and Ullman number the registers of an expression); each step as soon as it can run; and one that always takes
the step which adds least.

Steps that compute something again (:data:`LATE`) are in no such order: each runs just before the first step that
reads its result.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from flowmx.graph.graph import Graph, predecessors
from flowmx.graph.node import Node
from flowmx.graph.planning.live import StepValues, Values

LATE = "__late__"
"""The attribute of nodes that run as late as they can."""
_GAIN = 0.995
"""Memory, relative to the depth-first order's, that another order must stay below to be chosen."""

Walk = Callable[["Steps", Sequence[int]], list[int]]


class Ordered(NamedTuple):
    """The operators of the forward pass, and of the backward pass, in the order to run them in.

    Attributes:
        values: what they read and write.
        steps: those of the forward pass, in its order.
        alive: the bytes alive at each of these.
    """

    forward: list[Node]
    backward: list[Node]
    values: Values
    steps: list[StepValues]
    alive: list[int]


def order(graph: Graph) -> tuple[list[Node], list[Node]]:
    """The operators of the forward pass, and of the backward pass, in the order to run them in."""
    return ordered(graph)[:2]


def ordered(graph: Graph) -> Ordered:
    """The same, with what the order was chosen by."""
    forward, backward = _passes(graph)
    steps = Steps(graph, [*forward, *backward])
    passes = [range(len(forward)), range(len(forward), len(steps.nodes))]
    best = [list(each) for each in passes]
    least: list[float] = []
    there: list[int] = []
    tried: list[tuple[list[int], ...]] = []
    for found in zip(*map(steps.walks, passes), strict=True):
        if found in tried:
            continue
        tried.append(found)
        alive = steps.values.alive([*found[0], *found[1]])
        cut = len(found[0])
        peaks = [max(part, default=0) for part in (alive[:cut], alive[cut:])]
        for which, peak in enumerate(peaks):
            if len(least) < len(passes):
                least.append(peak)
            elif peak < _GAIN * least[which]:
                least[which] = peak
            else:
                continue
            best[which] = found[which]
            if not which:
                there = alive[:cut]
    first, second = ([steps.nodes[at] for at in each] for each in best)
    return Ordered(first, second, steps.values, [steps.values.steps[at] for at in best[0]], there)


def apart(graph: Graph) -> tuple[list[Node], list[Node]]:
    """As :func:`order`, but each pass as if what one leaves for the other took nothing.

    That is what counts where the backward pass is to keep few values of the forward pass: how much is handed from step
    to step of the forward pass, and the most that the gradients take.
    """
    forward, backward = _passes(graph)
    steps = Steps(replace(graph, gradients={}), forward)
    first = min(steps.walks(range(len(forward))), key=lambda each: sum(steps.values.alive(each)))
    steps = Steps(graph, [*forward, *backward])
    for step in steps.values.steps[: len(forward)]:
        for value in step.writes:
            steps.values.sizes[value] = 0
    last = min(
        steps.walks(range(len(forward), len(steps.nodes))), key=lambda each: max(steps.values.alive(each), default=0)
    )
    return [forward[at] for at in first], [steps.nodes[at] for at in last]


def _passes(graph: Graph) -> tuple[list[Node], list[Node]]:
    """The operators of each pass, as a depth-first walk finds them."""
    return graph.forward(), graph.backward()


class Steps:
    """The steps of a graph by their positions in a first legal order, with what must come before what.

    Attributes:
        nodes: the operators.
        values: what they read and write.
        before: for each the positions of those that must run before it.
    """

    def __init__(self, graph: Graph, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.values = Values(graph, nodes)
        self.before = predecessors(nodes)
        self._late = [LATE in node.attributes for node in nodes]

    def walks(self, positions: Iterable[int]) -> list[list[int]]:
        """Each order of the steps at these positions."""
        every = dict.fromkeys(positions)
        if all(at - 1 in self.before[at] for at in list(every)[1:]):  # a chain has one order
            return [list(every)] * len(WALKS)
        early = [at for at in every if not self._late[at]]
        return [self.with_late(walk(self, early), every) for walk in WALKS]

    def with_late(self, order: Sequence[int], positions: Collection[int]) -> list[int]:
        """An order with each late step put before the first that needs it, and before it what it needs.

        Args:
            order: of the others.
            positions: all steps of the pass.
        """
        if not any(self._late):
            return list(order)
        found: dict[int, None] = {}
        for last in order:
            stack = [last]
            while stack:
                at = stack[-1]
                missing = [each for each in self.before[at] if each in positions and each not in found]
                if missing:
                    stack += reversed(missing)
                else:
                    found[stack.pop()] = None
        return list(found)

    def spare(self, positions: Iterable[int]) -> dict[int, int]:
        """For each step about how many bytes it needs on the way to its results, beyond those that it leaves."""
        needs: dict[int, int] = {}
        found: dict[int, int] = {}
        for at in positions:
            held = most = 0
            for each in sorted(
                [each for each in self.before[at] if each in found], key=found.__getitem__, reverse=True
            ):
                most = max(most, held + needs[each])
                held += needs[each] - found[each]
            made = sum([self.values.sizes[value] for value in self.values.steps[at].writes])
            needs[at] = max(most, held + made)
            found[at] = needs[at] - made
        return found


def depth_first(steps: Steps, positions: Sequence[int]) -> list[int]:
    """The order that the positions stand for."""
    return list(positions)


def hungry_first(steps: Steps, positions: Sequence[int]) -> list[int]:
    """Depth-first, and before each step first what needs the most memory on its way."""
    spare, found = steps.spare(positions), dict[int, None]()
    used = {each for at in positions for each in steps.before[at]}
    for last in positions:
        stack = [last] if last not in used else []
        while stack:
            at = stack[-1]
            missing = [each for each in steps.before[at] if each in spare and each not in found]
            if missing:
                stack += sorted(missing, key=spare.__getitem__)
            else:
                found[stack.pop()] = None
    return list(found)


def least_added(steps: Steps, positions: Sequence[int]) -> list[int]:
    """Of the steps that could run next always the one that adds the fewest bytes, or frees the most."""
    sizes, values = steps.values.sizes, steps.values
    members = set(positions)
    waits = {at: sum(each in members for each in steps.before[at]) for at in positions}
    users: dict[int, list[int]] = {at: [] for at in positions}
    left, readers = [0] * len(sizes), [0] * len(sizes)  # how many are still to read it, and the sum of who
    for at in positions:
        for each in steps.before[at]:
            if each in members:
                users[each].append(at)
        for value in values.steps[at].reads:
            left[value] += 1
            readers[value] += at
    for value in values.wanted:
        left[value] += len(steps.nodes) + 1

    def added(at: int) -> int:
        reads, writes, *_ = values.steps[at]
        return sum([sizes[v] for v in writes]) - sum([sizes[v] for v in reads if left[v] == 1])

    ready = [(added(at), at) for at in positions if not waits[at]]
    heapq.heapify(ready)
    found: dict[int, None] = {}
    while ready:
        at = heapq.heappop(ready)[1]
        if at in found:
            continue
        found[at] = None
        for value in values.steps[at].reads:
            left[value] -= 1
            readers[value] -= at
            if left[value] == 1 and not waits[readers[value]]:
                heapq.heappush(ready, (added(readers[value]), readers[value]))
        for user in users[at]:
            waits[user] -= 1
            if not waits[user]:
                heapq.heappush(ready, (added(user), user))
    return list(found)


def soonest(steps: Steps, positions: Sequence[int]) -> list[int]:
    """Each step as soon as it can run, if all that can were run at once.

    But what only waits for others to be used with them (a derivative, made of values of the forward pass alone) runs
    just before that.
    """
    members = set(positions)
    before = {at: [each for each in steps.before[at] if each in members] for at in positions}
    level: dict[int, int] = {}
    for at in positions:
        level[at] = 1 + max([level[each] for each in before[at]], default=0)
    latest = _latest(before, level, set())
    driven: set[int] = set()
    for at in positions:
        if any(each in driven for each in before[at]) or (not before[at] and latest[at] == level[at]):
            driven.add(at)
    return sorted(positions, key=_latest(before, level, driven).__getitem__)


def _latest(before: Mapping[int, Sequence[int]], level: Mapping[int, int], fixed: Collection[int]) -> dict[int, int]:
    """The last level that each step can be on without delaying another; their own for those that are fixed, or last."""
    found = dict.fromkeys(before, len(before) + 1)
    for at in reversed(list(before)):
        if at in fixed or found[at] > len(before):
            found[at] = level[at]
        for each in before[at]:
            found[each] = min(found[each], found[at] - 1)
    return found


WALKS: list[Walk] = [depth_first, hungry_first, soonest, least_added]
