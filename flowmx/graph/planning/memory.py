"""Packing values into one arena: each lives from one step to another, and those that live together lie apart.

Pure: sizes and steps go in, offsets come out. The least that any packing needs is the largest sum of sizes alive
at one step (:func:`lower_bound`); finding a packing that small is hard in general, but on the schedules of
networks simple orders come within a few percent, so several are tried and the best is taken.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

ALIGNMENT = 64
"""Bytes: a cache line, and the longest vector register."""
_CAREFUL = 4000
"""Values up to which orders are tried that take time quadratic in their number."""
_GOOD = 1.005
"""Packings within this factor of the lower bound are not improved further."""
_TRIES = 24
_PAIRS = 4
"""Pairs of values that an order may look at for each byte to save: a small arena is not worth a long search."""


class Life(NamedTuple):
    """One value: its bytes, and the first and last step at which they are needed."""

    size: int
    first: int
    last: int


class Packing(NamedTuple):
    """The offset of each value in bytes, and the size of the whole."""

    offsets: list[int]
    size: int


def aligned(size: int) -> int:
    """The size rounded up so that what follows is aligned."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def lower_bound(lives: Iterable[Life]) -> int:
    """The largest sum of bytes alive at one step."""
    events: dict[int, int] = {}
    for life in lives:
        events[life.first] = events.get(life.first, 0) + life.size
        events[life.last + 1] = events.get(life.last + 1, 0) - life.size
    alive = most = 0
    for step in sorted(events):
        alive += events[step]
        most = max(most, alive)
    return most


def pack(lives: Sequence[Life], rough: bool = False) -> Packing:
    """Find offsets for the values, all aligned.

    Args:
        lives: the values.
        rough: take the first that are found.
    """
    rounded = [Life(aligned(life.size), life.first, life.last) for life in lives]
    bound = lower_bound(rounded)
    best = _sweep(rounded)
    orders: list[Callable[[int], Any]] = [
        lambda at: (-rounded[at].size, rounded[at].first),
        lambda at: (rounded[at].first - rounded[at].last, -rounded[at].size),
        lambda at: -rounded[at].size * (rounded[at].last - rounded[at].first + 1),
    ]
    if len(rounded) > _CAREFUL or rough:
        return best
    enough = max(bound * _GOOD, bound + len(rounded) ** 2 / _PAIRS)
    for order in orders:
        if best.size <= enough:
            return best
        best = min(best, _improved(rounded, sorted(range(len(rounded)), key=order), enough), key=lambda p: p.size)
    return best


def apart(lives: Sequence[Life]) -> Packing:
    """Each value in a place that it shares with none."""
    offsets, size = [], 0
    for life in lives:
        offsets.append(size)
        size += aligned(life.size)
    return Packing(offsets, size)


def _improved(lives: Sequence[Life], order: list[int], enough: float) -> Packing:
    """Place in this order; then again and again with what ended up on top placed first, until it takes so few bytes."""
    best = found = _place(lives, order)
    tried = {tuple(order)}
    for _ in range(_TRIES if len(lives) <= _CAREFUL // 4 else 4):
        if best.size <= enough:
            break
        highest = max(order, key=lambda at: found.offsets[at] + lives[at].size)
        if order[0] == highest:
            break
        order = [highest, *(at for at in order if at != highest)]
        if tuple(order) in tried:
            break  # from here on all orders would come again
        tried.add(tuple(order))
        found = _place(lives, order)
        best = min(best, found, key=lambda p: p.size)
    return best


def _place(lives: Sequence[Life], order: Sequence[int]) -> Packing:
    """One value after the other into the tightest gap among those that live at the same time."""
    offsets, total = [0] * len(lives), 0
    placed: list[tuple[int, int, int, int]] = []  # (start, stop, first, last), in order
    for at in order:
        size, first, last = lives[at]
        top, offset, tightest = 0, None, 0
        for start, stop, begins, ends in placed:
            if begins <= last and ends >= first:
                gap = start - top
                if gap >= size and (offset is None or gap < tightest):
                    offset, tightest = top, gap
                    if gap == size:
                        break
                if stop > top:
                    top = stop
        offsets[at] = top if offset is None else offset
        insort(placed, (offsets[at], offsets[at] + size, first, last))
        total = max(total, offsets[at] + size)
    return Packing(offsets, total)


def _sweep(lives: Sequence[Life]) -> Packing:
    """Go through the steps as an allocator does: the smallest free range that fits, joined again when freed."""
    offsets, free = [0] * len(lives), _Free()
    ending: list[tuple[int, int]] = []
    for at in sorted(range(len(lives)), key=lambda at: (lives[at].first, -lives[at].size)):
        life = lives[at]
        while ending and ending[0][0] < life.first:
            _, ended = heapq.heappop(ending)
            free.give(offsets[ended], offsets[ended] + lives[ended].size)
        if life.size:
            offsets[at] = free.take(life.size)
            heapq.heappush(ending, (life.last, at))
    return Packing(offsets, free.total)


class _Free:
    """The free ranges of an arena that grows as needed: found by their size, and joined with their neighbours.

    Attributes:
        total: the arena's size.
    """

    def __init__(self) -> None:
        self.total = 0
        self._by_size: list[tuple[int, int]] = []  # (size, start), in order
        self._stops: dict[int, int] = {}
        self._starts: dict[int, int] = {}

    def take(self, size: int) -> int:
        """The start of so many bytes: of the smallest range that fits, else the arena's end is moved."""
        at = bisect_left(self._by_size, (size, 0))
        if at < len(self._by_size):
            length, start = self._by_size[at]
            self._remove(start)
            if length > size:
                self._add(start + size, start + length)
            return start
        start = self._starts.get(self.total, self.total)
        if start < self.total:
            self._remove(start)
        self.total = start + size
        return start

    def give(self, start: int, stop: int) -> None:
        """Free a range."""
        if stop in self._stops:
            stop = self._remove(stop)
        if start in self._starts:
            start = self._starts[start]
            self._remove(start)
        self._add(start, stop)

    def _add(self, start: int, stop: int) -> None:
        insort(self._by_size, (stop - start, start))
        self._stops[start], self._starts[stop] = stop, start

    def _remove(self, start: int) -> int:
        """Take a range out; returns where it stops."""
        stop = self._stops.pop(start)
        del self._starts[stop]
        del self._by_size[bisect_left(self._by_size, (stop - start, start))]
        return stop
