"""Packing of values into one arena: each lives from one step to another, and values alive together do not overlap.

The input is sizes and steps, the output is offsets. A lower bound is the largest sum of sizes alive at one step
(:func:`lower_bound`). Finding a packing that small is hard in general, but on the schedules of networks simple orders
come within a few percent; several are tried and the best is used.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

ALIGNMENT = 64
"""The alignment of values in bytes: a cache line, and the longest vector register."""
_QUADRATIC_LIMIT = 4000
"""The maximum number of values for which orders that take quadratic time are tried."""
_GOOD = 1.005
"""Packings within this factor of the lower bound are not improved further."""
_ATTEMPTS = 24
_PAIRS_PER_BYTE = 4
"""The number of pairs of values that an order may visit per byte to save; small arenas need no long search."""
_PAGE = 4096
"""Bytes above the lower bound that are not worth a search for an order, if they are few compared with the bound."""


class Life(NamedTuple):
    """A value: its size in bytes, and the first and last step that need it."""

    size: int
    first: int
    last: int


class Packing(NamedTuple):
    """The offset of each value in bytes, and the total size."""

    offsets: list[int]
    size: int


def align(size: int) -> int:
    """Round a size up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def lower_bound(lives: Iterable[Life]) -> int:
    """Return the largest sum of bytes alive at one step."""
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
    """Return aligned offsets for the values.

    Args:
        lives: the values.
        rough: return the first packing.
    """
    rounded = [Life(align(life.size), life.first, life.last) for life in lives]
    bound = lower_bound(rounded)
    best = _sweep(rounded)
    orders: list[Callable[[int], Any]] = [
        lambda index: (-rounded[index].size, rounded[index].first),
        lambda index: (rounded[index].first - rounded[index].last, -rounded[index].size),
        lambda index: -rounded[index].size * (rounded[index].last - rounded[index].first + 1),
    ]
    if len(rounded) > _QUADRATIC_LIMIT or rough:
        return best
    good_size = max(bound * _GOOD, bound + max(min(_PAGE, bound / 16), len(rounded) ** 2 / _PAIRS_PER_BYTE))
    for order in orders:
        if best.size <= good_size:
            return best
        best = min(best, _improve(rounded, sorted(range(len(rounded)), key=order), good_size), key=lambda p: p.size)
    return best


def pack_separately(lives: Sequence[Life]) -> Packing:
    """Place each value separately."""
    offsets, size = [], 0
    for life in lives:
        offsets.append(size)
        size += align(life.size)
    return Packing(offsets, size)


def _improve(lives: Sequence[Life], order: list[int], good_size: float) -> Packing:
    """Place in this order; then repeatedly place the topmost value first, until the size is at most ``good_size``."""
    best = packing = _place(lives, order)
    tried = {tuple(order)}
    for _ in range(_ATTEMPTS if len(lives) <= _QUADRATIC_LIMIT // 4 else 4):
        if best.size <= good_size:
            break
        highest = max(order, key=lambda index: packing.offsets[index] + lives[index].size)
        if order[0] == highest:
            break
        order = [highest, *(index for index in order if index != highest)]
        if tuple(order) in tried:
            break  # the orders would repeat from here on
        tried.add(tuple(order))
        packing = _place(lives, order)
        best = min(best, packing, key=lambda p: p.size)
    return best


def _place(lives: Sequence[Life], order: Sequence[int]) -> Packing:
    """Place each value in turn into the tightest gap among those alive at the same time."""
    offsets, total = [0] * len(lives), 0
    placed: list[tuple[int, int, int, int]] = []  # (start, stop, first, last), in order
    for index in order:
        size, first, last = lives[index]
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
        offsets[index] = top if offset is None else offset
        insort(placed, (offsets[index], offsets[index] + size, first, last))
        total = max(total, offsets[index] + size)
    return Packing(offsets, total)


def _sweep(lives: Sequence[Life]) -> Packing:
    """Process the steps like an allocator: take the smallest free range that fits, and merge ranges when freed."""
    offsets, free = [0] * len(lives), _Free()
    ending: list[tuple[int, int]] = []
    for index in sorted(range(len(lives)), key=lambda index: (lives[index].first, -lives[index].size)):
        life = lives[index]
        while ending and ending[0][0] < life.first:
            _, ended = heapq.heappop(ending)
            free.release(offsets[ended], offsets[ended] + lives[ended].size)
        if life.size:
            offsets[index] = free.take(life.size)
            heapq.heappush(ending, (life.last, index))
    return Packing(offsets, free.total)


class _Free:
    """The free ranges of a growing arena, ordered by size, and merged with adjacent ones.

    Attributes:
        total: the size of the arena.
    """

    def __init__(self) -> None:
        self.total = 0
        self._by_size: list[tuple[int, int]] = []  # (size, start), in order
        self._stops: dict[int, int] = {}
        self._starts: dict[int, int] = {}

    def take(self, size: int) -> int:
        """Return the start of ``size`` bytes: from the smallest range that fits, or by growing the arena."""
        index = bisect_left(self._by_size, (size, 0))
        if index < len(self._by_size):
            length, start = self._by_size[index]
            self._remove(start)
            if length > size:
                self._add(start + size, start + length)
            return start
        start = self._starts.get(self.total, self.total)
        if start < self.total:
            self._remove(start)
        self.total = start + size
        return start

    def release(self, start: int, stop: int) -> None:
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
        """Remove a range; return its end."""
        stop = self._stops.pop(start)
        del self._starts[stop]
        del self._by_size[bisect_left(self._by_size, (stop - start, start))]
        return stop
