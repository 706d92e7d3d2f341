"""Occupancy of the arenas of a plan over its steps; explanations, pictures and estimates are made from it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from flowmx.devices import Context
from flowmx.graph.node import Entry, Node
from flowmx.graph.plan import Plan
from flowmx.graph.planning.memory import Life


class Occupancy:
    """The places of a plan.

    Attributes:
        plan: the plan.
        steps: its steps, in order.
        forward: how many of them are the forward pass's.
        members: the values of each place, in the order in which they come to lie there; none for work space.
        contexts: the device of each place.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.steps = plan.steps()
        forward = set(plan.forward)
        self.forward = sum(node in forward for node in self.steps)
        self.members: list[list[Entry]] = [[] for _ in plan.lives]
        for entry, place in plan.place.items():
            self.members[place].append(entry)
        self.contexts = [plan.graph.context(self.node(place)) for place in range(len(plan.lives))]

    def node(self, place: int) -> Node:
        """The node that needs a place first."""
        members = self.members[place]
        return members[0].node if members else self.steps[self.plan.lives[place].first]

    def names(self, place: int) -> list[str]:
        """Labels of the values in a place."""
        found = [label(entry) for entry in self.members[place]]
        return found or [f"work space of {self.node(place).name}"]

    def places(self, context: Context | None) -> list[int]:
        """The places in the arena of a device."""
        return [place for place, other in enumerate(self.contexts) if other is context]

    def alive(self, context: Context | None) -> list[int]:
        """The bytes alive in the arena of a device at each step, and after the last one."""
        return alive([self.plan.lives[place] for place in self.places(context)], len(self.steps) + 1)

    def peak(self, context: Context | None) -> tuple[int, int]:
        """The most bytes alive at one step in the arena of a device, and the first such step."""
        found = self.alive(context)
        most = max(found)
        return most, found.index(most)

    def before(self) -> list[list[int]]:
        """For each place, those that last lay on its bytes before it."""
        lives, offsets = self.plan.lives, self.plan.arena.offsets
        grounds: dict[Context | None, _Ground] = {context: _Ground() for context in self.contexts}
        found: list[list[int]] = [[] for _ in lives]
        for place in sorted(range(len(lives)), key=lambda place: lives[place].first):
            start = offsets[place]
            found[place] = grounds[self.contexts[place]].cover(start, start + lives[place].size, place)
        return found


def alive(lives: Iterable[Life], steps: int) -> list[int]:
    """The bytes alive at each of so many steps."""
    change = [0] * (steps + 1)
    for life in lives:
        change[life.first] += life.size
        change[life.last + 1] -= life.size
    total, found = 0, []
    for each in change[:-1]:
        total += each
        found.append(total)
    return found


def label(entry: Entry) -> str:
    """The name of a value."""
    return entry.node.output_name(entry.index)


class _Ground:
    """Ranges of an arena, each with the value that lay there last."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._rest: list[tuple[int, int]] = []  # (stop, who), for each start

    def cover(self, start: int, stop: int, who: int) -> list[int]:
        """Put a value on a range; returns those that were there."""
        if start >= stop:
            return []
        low = bisect_right(self._starts, start) - 1
        if low < 0 or self._rest[low][0] <= start:
            low += 1
        high = bisect_left(self._starts, stop)
        old = [(begin, *rest) for begin, rest in zip(self._starts[low:high], self._rest[low:high], strict=True)]
        new = [(start, stop, who)]
        if old and old[0][0] < start:
            new.insert(0, (old[0][0], start, old[0][2]))
        if old and old[-1][1] > stop:
            new.append((stop, *old[-1][1:]))
        self._starts[low:high] = [begin for begin, _, _ in new]
        self._rest[low:high] = [(end, other) for _, end, other in new]
        return list(dict.fromkeys(other for _, _, other in old))
