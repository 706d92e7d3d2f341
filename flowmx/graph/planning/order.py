"""The order in which the steps of a graph run: one that keeps few bytes alive.

Finding the best order is hard, so a few fast ones are tried, and the one with the fewest bytes alive is used: the
depth-first walk of MXNet; the same, but visiting first the operand that needs more memory (as Sethi and Ullman number
the registers of an expression); each step as soon as it can run; and always the step that adds the fewest bytes.

Recomputed steps (:data:`LATE`) are not ordered: each runs just before the first step that reads its result.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from flowmx.graph.graph import Graph, predecessors
from flowmx.graph.node import Node
from flowmx.graph.planning.live_bytes import StepValues, Values

LATE = "__late__"
"""The attribute of nodes that run as late as possible."""
_GAIN = 0.995
"""The factor of the depth-first order's memory that a different order must stay below to be chosen."""

Walk = Callable[["Steps", Sequence[int]], list[int]]


class Schedule(NamedTuple):
    """The operators of the forward and of the backward pass in execution order, with the measures they were chosen by.

    Attributes:
        values: the values that they read and write.
        steps: the steps of the forward pass, in its order.
        alive: the bytes alive at each of these.
    """

    forward: list[Node]
    backward: list[Node]
    values: Values
    steps: list[StepValues]
    alive: list[int]


def order(graph: Graph) -> tuple[list[Node], list[Node]]:
    """Return the operators of the forward and of the backward pass in execution order."""
    return make_schedule(graph)[:2]


def make_schedule(graph: Graph) -> Schedule:
    """Choose the execution order of a graph's operators."""
    forward, backward = _passes(graph)
    steps = Steps(graph, [*forward, *backward])
    passes = [range(len(forward)), range(len(forward), len(steps.nodes))]
    best = [list(positions) for positions in passes]
    least: list[float] = []
    forward_alive: list[int] = []
    candidates: list[tuple[list[int], ...]] = []
    for candidate in zip(*map(steps.walks, passes), strict=True):
        if candidate in candidates:
            continue
        candidates.append(candidate)
        alive = steps.values.alive([*candidate[0], *candidate[1]])
        cut = len(candidate[0])
        peaks = [max(part, default=0) for part in (alive[:cut], alive[cut:])]
        for number, peak in enumerate(peaks):
            if len(least) < len(passes):
                least.append(peak)
            elif peak < _GAIN * least[number]:
                least[number] = peak
            else:
                continue
            best[number] = candidate[number]
            if not number:
                forward_alive = alive[:cut]
    first, second = ([steps.nodes[index] for index in order] for order in best)
    return Schedule(first, second, steps.values, [steps.values.steps[index] for index in best[0]], forward_alive)


def order_passes_separately(graph: Graph) -> tuple[list[Node], list[Node]]:
    """Order the operators of each pass as if values that one leaves for the other took no memory.

    This is the right measure if the backward pass keeps few values of the forward pass: it counts the bytes between the
    steps of the forward pass, and the peak of the gradients.
    """
    forward, backward = _passes(graph)
    steps = Steps(replace(graph, gradients={}), forward)
    first = min(steps.walks(range(len(forward))), key=lambda walk: sum(steps.values.alive(walk)))
    steps = Steps(graph, [*forward, *backward])
    for step in steps.values.steps[: len(forward)]:
        for value in step.writes:
            steps.values.sizes[value] = 0
    last = min(
        steps.walks(range(len(forward), len(steps.nodes))), key=lambda walk: max(steps.values.alive(walk), default=0)
    )
    return [forward[index] for index in first], [steps.nodes[index] for index in last]


def _passes(graph: Graph) -> tuple[list[Node], list[Node]]:
    """Return the operators of each pass in depth-first order."""
    return graph.forward(), graph.backward()


class Steps:
    """The steps of a graph by their positions in a valid initial order, with their dependencies.

    Attributes:
        nodes: the operators.
        values: the values that they read and write.
        before: for each step, the positions of those that must run before it.
    """

    def __init__(self, graph: Graph, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.values = Values(graph, nodes)
        self.before = predecessors(nodes)
        self._late = [LATE in node.attributes for node in nodes]

    def walks(self, positions: Iterable[int]) -> list[list[int]]:
        """Return the orders of the steps at these positions, one for each walk."""
        every = dict.fromkeys(positions)
        if all(index - 1 in self.before[index] for index in list(every)[1:]):  # a chain has one order
            return [list(every)] * len(WALKS)
        early = [index for index in every if not self._late[index]]
        return [self.with_late(walk(self, early), every) for walk in WALKS]

    def with_late(self, order: Sequence[int], positions: Collection[int]) -> list[int]:
        """Insert each late step, after the late steps it needs, before the first step that needs it.

        Args:
            order: the order of the other steps.
            positions: all steps of the pass.
        """
        if not any(self._late):
            return list(order)
        result: dict[int, None] = {}
        for last in order:
            stack = [last]
            while stack:
                index = stack[-1]
                missing = [needed for needed in self.before[index] if needed in positions and needed not in result]
                if missing:
                    stack += reversed(missing)
                else:
                    result[stack.pop()] = None
        return list(result)

    def transient_bytes(self, positions: Iterable[int]) -> dict[int, int]:
        """Return for each step the approximate bytes needed to compute it, beyond those of its results."""
        needs: dict[int, int] = {}
        spare: dict[int, int] = {}
        for index in positions:
            retained = peak = 0
            for operand in sorted(
                [operand for operand in self.before[index] if operand in spare], key=spare.__getitem__, reverse=True
            ):
                peak = max(peak, retained + needs[operand])
                retained += needs[operand] - spare[operand]
            written = sum([self.values.sizes[value] for value in self.values.steps[index].writes])
            needs[index] = max(peak, retained + written)
            spare[index] = needs[index] - written
        return spare


def depth_first(steps: Steps, positions: Sequence[int]) -> list[int]:
    """Return the order of the positions."""
    return list(positions)


def memory_first(steps: Steps, positions: Sequence[int]) -> list[int]:
    """Walk depth-first, and before each step first into the operand that needs the most memory."""
    spare, result = steps.transient_bytes(positions), dict[int, None]()
    used = {operand for index in positions for operand in steps.before[index]}
    for last in positions:
        stack = [last] if last not in used else []
        while stack:
            index = stack[-1]
            missing = [operand for operand in steps.before[index] if operand in spare and operand not in result]
            if missing:
                stack += sorted(missing, key=spare.__getitem__)
            else:
                result[stack.pop()] = None
    return list(result)


def least_added(steps: Steps, positions: Sequence[int]) -> list[int]:
    """Always run the ready step that adds the fewest bytes, or frees the most."""
    sizes, values = steps.values.sizes, steps.values
    members = set(positions)
    waits = {index: sum(operand in members for operand in steps.before[index]) for index in positions}
    users: dict[int, list[int]] = {index: [] for index in positions}
    unread, readers = [0] * len(sizes), [0] * len(sizes)  # the number of later readers, and the sum of their positions
    for index in positions:
        for operand in steps.before[index]:
            if operand in members:
                users[operand].append(index)
        for value in values.steps[index].reads:
            unread[value] += 1
            readers[value] += index
    for value in values.results:
        unread[value] += len(steps.nodes) + 1

    def added_bytes(index: int) -> int:
        reads, writes, *_ = values.steps[index]
        return sum([sizes[v] for v in writes]) - sum([sizes[v] for v in reads if unread[v] == 1])

    ready = [(added_bytes(index), index) for index in positions if not waits[index]]
    heapq.heapify(ready)
    result: dict[int, None] = {}
    while ready:
        index = heapq.heappop(ready)[1]
        if index in result:
            continue
        result[index] = None
        for value in values.steps[index].reads:
            unread[value] -= 1
            readers[value] -= index
            if unread[value] == 1 and not waits[readers[value]]:
                heapq.heappush(ready, (added_bytes(readers[value]), readers[value]))
        for user in users[index]:
            waits[user] -= 1
            if not waits[user]:
                heapq.heappush(ready, (added_bytes(user), user))
    return list(result)


def earliest_first(steps: Steps, positions: Sequence[int]) -> list[int]:
    """Run each step as early as possible, as if all ready steps ran at once.

    But a step that only waits to be used with others (such as a derivative of values of the forward pass alone) runs
    just before its user.
    """
    members = set(positions)
    before = {index: [operand for operand in steps.before[index] if operand in members] for index in positions}
    level: dict[int, int] = {}
    for index in positions:
        level[index] = 1 + max([level[operand] for operand in before[index]], default=0)
    latest = _latest(before, level, set())
    driven: set[int] = set()
    for index in positions:
        if any(operand in driven for operand in before[index]) or (not before[index] and latest[index] == level[index]):
            driven.add(index)
    return sorted(positions, key=_latest(before, level, driven).__getitem__)


def _latest(before: Mapping[int, Sequence[int]], level: Mapping[int, int], fixed: Collection[int]) -> dict[int, int]:
    """Return the last level of each step that delays no other; fixed steps and steps without users keep their level."""
    result = dict.fromkeys(before, len(before) + 1)
    for index in reversed(list(before)):
        if index in fixed or result[index] > len(before):
            result[index] = level[index]
        for operand in before[index]:
            result[operand] = min(result[operand], result[index] - 1)
    return result


WALKS: list[Walk] = [depth_first, memory_first, earliest_first, least_added]
