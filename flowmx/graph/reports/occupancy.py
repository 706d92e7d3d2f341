"""Occupancy of the arenas of a plan over its steps, for explanations, pictures and estimates."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING

from flowmx.devices import Context
from flowmx.graph.node import Entry, Node
from flowmx.graph.planning.arena_packing import Life

if TYPE_CHECKING:
    from flowmx.graph.plan import Plan


class Occupancy:
    """The places of a plan.

    Attributes:
        plan: the plan.
        steps: its steps, in order.
        forward: the number of forward steps.
        members: the values of each place, in order; empty for a workspace.
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
        """Return the node that first needs a place."""
        members = self.members[place]
        return members[0].node if members else self.steps[self.plan.lives[place].first]

    def names(self, place: int) -> list[str]:
        """Return labels of the values in a place."""
        labels = [label(entry) for entry in self.members[place]]
        return labels or [f"workspace of {self.node(place).name}"]

    def places(self, context: Context | None) -> list[int]:
        """Return the places in the arena of a device."""
        return [place for place, other in enumerate(self.contexts) if other is context]

    def alive(self, context: Context | None) -> list[int]:
        """Return the bytes alive in the arena of a device at each step, and after the last one."""
        return alive([self.plan.lives[place] for place in self.places(context)], len(self.steps) + 1)

    def peak(self, context: Context | None) -> tuple[int, int]:
        """Return the maximum number of bytes alive at one step in the arena of a device, and the first such step."""
        totals = self.alive(context)
        peak = max(totals)
        return peak, totals.index(peak)

    def previous_places(self) -> list[list[int]]:
        """Return, for each place, the places that previously used its bytes."""
        lives, offsets = self.plan.lives, self.plan.arena.offsets
        covers: dict[Context | None, _Cover] = {context: _Cover() for context in self.contexts}
        result: list[list[int]] = [[] for _ in lives]
        for place in sorted(range(len(lives)), key=lambda place: lives[place].first):
            start = offsets[place]
            result[place] = covers[self.contexts[place]].cover(start, start + lives[place].size, place)
        return result


def alive(lives: Iterable[Life], steps: int) -> list[int]:
    """Return the bytes alive at each of ``steps`` steps."""
    change = [0] * (steps + 1)
    for life in lives:
        change[life.first] += life.size
        change[life.last + 1] -= life.size
    total, totals = 0, []
    for delta in change[:-1]:
        total += delta
        totals.append(total)
    return totals


def label(entry: Entry) -> str:
    """Return the name of a value."""
    return entry.node.output_name(entry.index)


class _Cover:
    """Ranges of an arena, each with the number of its latest value."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._rest: list[tuple[int, int]] = []  # (stop, number), for each start

    def cover(self, start: int, stop: int, number: int) -> list[int]:
        """Put a value on a range; return the values that were there."""
        if start >= stop:
            return []
        low = bisect_right(self._starts, start) - 1
        if low < 0 or self._rest[low][0] <= start:
            low += 1
        high = bisect_left(self._starts, stop)
        old = [(begin, *rest) for begin, rest in zip(self._starts[low:high], self._rest[low:high], strict=True)]
        new = [(start, stop, number)]
        if old and old[0][0] < start:
            new.insert(0, (old[0][0], start, old[0][2]))
        if old and old[-1][1] > stop:
            new.append((stop, *old[-1][1:]))
        self._starts[low:high] = [begin for begin, _, _ in new]
        self._rest[low:high] = [(end, other) for _, end, other in new]
        return list(dict.fromkeys(other for _, _, other in old))
