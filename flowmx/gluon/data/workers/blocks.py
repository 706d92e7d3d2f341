"""Blocks of shared memory for batches: allocated by a worker, and reused when the loader has released a batch.

A new block costs a page fault for every few KiB on both sides, more than the copy itself. Both sides identify a
worker's blocks by number. An array in the loader's process keeps a `_Lease` alive; when that ends, the block is free.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from flowmx.gluon.data.workers import shared_memory
from flowmx.gluon.data.workers.messages import Result

_MAX_FREE = 8
"""The number of free blocks of a worker that are kept."""
_MAX_LEASES = 24
"""The number of a worker's blocks that arrays may use at a time; further batches are copied. It limits the number of
open file descriptors, one for each block."""
_COPY_LIMIT = 1 << 15
"""Bytes up to which a batch is always copied, which is cheaper than a lease."""
_STEPS = 8
"""The number of block sizes between two powers of two."""


class Block(NamedTuple):
    """Shared memory, with its descriptor if the loader does not have it yet."""

    number: int
    memory: mmap.mmap
    descriptor: int = -1


class WorkerBlocks:
    """A worker's blocks, in the worker."""

    def __init__(self) -> None:
        self._all: dict[int, mmap.mmap] = {}
        self._free: list[int] = []
        self._next = 0

    def take(self, size: int) -> Block:
        """Return a free block of at least ``size`` bytes, or a new one."""
        fitting = [number for number in self._free if len(self._all[number]) >= size]
        if fitting:
            number = min(fitting, key=lambda candidate: len(self._all[candidate]))
            self._free.remove(number)
            return Block(number, self._all[number])
        number, self._next = self._next, self._next + 1
        capacity = _round_up(size)
        descriptor = shared_memory.new_file(capacity, "flowmx-batch")
        self._all[number] = shared_memory.map_memory(descriptor, capacity)
        return Block(number, self._all[number], descriptor)

    def give_back(self, free: tuple[int, ...], drop: tuple[int, ...]) -> None:
        """Mark blocks as free, and drop others."""
        self._free += free
        for number in drop:
            del self._all[number]


def _round_up(size: int) -> int:
    """Round a size up to whole pages and to eighths of a power of two, so that similar sizes share blocks."""
    step = max(mmap.PAGESIZE, 1 << max(0, (size - 1).bit_length()) >> _STEPS.bit_length())
    return -(-max(size, 1) // step) * step


class _Lease(np.ndarray[Any, Any]):
    """The right to use a block, as an array of its bytes; derived objects keep it alive."""


class _Ticket(weakref.ref[_Lease]):
    """A weak reference that is returned when its lease ends."""

    __slots__ = ("number",)
    number: int


class LoaderBlocks:
    """A worker's blocks, in the loader's process."""

    def __init__(self) -> None:
        self._all: dict[int, mmap.mmap] = {}
        self._returned: deque[_Ticket] = deque()  # appended by C code in the thread where a lease ends
        self._tickets: dict[int, _Ticket] = {}
        self._free: set[int] = set()
        self._returns: tuple[list[int], list[int]] = ([], [])

    def open(self, result: Result) -> Any:
        """Return the object in a worker's result."""
        if result.descriptor >= 0:
            try:
                self._all[result.block] = shared_memory.map_memory(result.descriptor, result.capacity)
            finally:
                os.close(result.descriptor)
        self._free.discard(result.block)
        memory = self._all[result.block]
        self._collect()
        if result.size <= _COPY_LIMIT or len(self._tickets) >= _MAX_LEASES:
            copied = bytearray(memory[: result.size])
            self._release(result.block)
            return shared_memory.read(copied)
        lease = _Lease((result.size,), np.uint8, memory)
        ticket = _Ticket(lease, self._returned.append)
        ticket.number = result.block
        self._tickets[result.block] = ticket
        return shared_memory.read(lease)

    def take_returns(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the blocks released since the last call: those to reuse, and those that the worker must drop."""
        self._collect()
        (free, drop), self._returns = self._returns, ([], [])
        return tuple(free), tuple(drop)

    def _collect(self) -> None:
        while self._returned:
            number = self._returned.popleft().number
            del self._tickets[number]
            self._release(number)

    def _release(self, number: int) -> None:
        free, drop = self._returns
        if len(self._free) < _MAX_FREE:
            self._free.add(number)
            free.append(number)
        else:
            del self._all[number]
            drop.append(number)
