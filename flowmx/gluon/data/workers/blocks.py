"""Blocks of shared memory that batches come home in: made by a worker, and used again when a batch is forgotten.

A fresh block costs a page fault for every few KiB on both sides, more than the copy itself. A worker's blocks are known
to both by number. An array in the loader's process holds on to a `_Lease`; when that has ended, the block is free.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from flowmx.gluon.data.workers import shared
from flowmx.gluon.data.workers.messages import Result

_KEPT = 8
"""Free blocks of a worker that are kept."""
_LENT = 24
"""Blocks of a worker that arrays may use at a time; more batches are copied. Each takes a descriptor."""
_COPIED = 1 << 15
"""Bytes up to which a batch is copied in any case: that takes less than a lease."""
_STEPS = 8


class Block(NamedTuple):
    """Shared memory, and its descriptor where the other side has still to get it."""

    number: int
    memory: mmap.mmap
    descriptor: int = -1


class Made:
    """A worker's own blocks."""

    def __init__(self) -> None:
        self._all: dict[int, mmap.mmap] = {}
        self._free: list[int] = []
        self._next = 0

    def take(self, size: int) -> Block:
        """A block of at least a size: a free one, or a new one."""
        fitting = [number for number in self._free if len(self._all[number]) >= size]
        if fitting:
            number = min(fitting, key=lambda each: len(self._all[each]))
            self._free.remove(number)
            return Block(number, self._all[number])
        number, self._next = self._next, self._next + 1
        capacity = _rounded(size)
        descriptor = shared.new_file(capacity, "flowmx-batch")
        self._all[number] = shared.mapped(descriptor, capacity)
        return Block(number, self._all[number], descriptor)

    def give_back(self, free: tuple[int, ...], drop: tuple[int, ...]) -> None:
        """Use these again, and give those up."""
        self._free += free
        for number in drop:
            del self._all[number]


def _rounded(size: int) -> int:
    """A size that others near it share: whole pages, in eighths of a power of two."""
    step = max(mmap.PAGESIZE, 1 << max(0, (size - 1).bit_length()) >> _STEPS.bit_length())
    return -(-max(size, 1) // step) * step


class _Lease(np.ndarray[Any, Any]):
    """The right to use a block, as an array of its bytes; what is made of it holds on to it."""


class _Ticket(weakref.ref[_Lease]):
    """Comes back when its lease has ended."""

    __slots__ = ("number",)
    number: int


class Seen:
    """The blocks of a worker, in the loader's process."""

    def __init__(self) -> None:
        self._all: dict[int, mmap.mmap] = {}
        self._returned: deque[_Ticket] = deque()  # a lease ends in any thread: code in C notes it here
        self._tickets: dict[int, _Ticket] = {}
        self._free: set[int] = set()
        self._news: tuple[list[int], list[int]] = ([], [])

    def open(self, result: Result) -> Any:
        """The object that a worker answered with."""
        if result.descriptor >= 0:
            try:
                self._all[result.block] = shared.mapped(result.descriptor, result.capacity)
            finally:
                os.close(result.descriptor)
        self._free.discard(result.block)
        memory = self._all[result.block]
        self._collect()
        if result.size <= _COPIED or len(self._tickets) >= _LENT:
            copied = bytearray(memory[: result.size])
            self._release(result.block)
            return shared.read(copied)
        lease = _Lease((result.size,), np.uint8, memory)
        ticket = _Ticket(lease, self._returned.append)
        ticket.number = result.block
        self._tickets[result.block] = ticket
        return shared.read(lease)

    def news(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The blocks that the worker may use again, and those that it shall give up, since this was asked last."""
        self._collect()
        (free, drop), self._news = self._news, ([], [])
        return tuple(free), tuple(drop)

    def _collect(self) -> None:
        while self._returned:
            number = self._returned.popleft().number
            del self._tickets[number]
            self._release(number)

    def _release(self, number: int) -> None:
        free, drop = self._news
        if len(self._free) < _KEPT:
            self._free.add(number)
            free.append(number)
        else:
            del self._all[number]
            drop.append(number)
