"""A pool of CPU memory: big blocks that arrays have released are given to new ones.

Memory fresh from the system costs a page fault for every few KiB that are touched first, more than most
operators take for the same bytes. A block is an anonymous mapping. What an array gets is a :class:`_Lease` on
it: every view of the array, and whatever took the array's buffer, keeps the lease alive, and when nobody does
any more the block is free. So memory in use is never handed out twice. What is free beyond the limit goes back to
the system when an array is asked for next. Where sizes keep changing, free blocks of the old ones would pile up: a
block of a new size is made only after as much of what is free has gone back as keeps the whole near the most that was
ever in use at one time. A loop that asks for the same sizes again and again needs no new block.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections import OrderedDict, deque
from typing import Any

import numpy as np

from flowmx import settings

LEAST = 1 << 16
"""Bytes from which arrays come from the pool; the system's allocator keeps smaller ones at hand itself."""

_HUGE = 1 << 21
_SPARE = 1 << 24
"""Bytes that free blocks may take besides the peak in use, before a new block is made."""
_PRIVATE = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)


class _Lease(np.ndarray[Any, Any]):
    """The right to use a block, as an array of its bytes; views of it hold on to it."""


class _Ticket(weakref.ref[_Lease]):
    """A weak reference to a lease, which returns the block when the lease is freed."""

    __slots__ = ("block",)
    block: mmap.mmap


class Pool:
    """Blocks of memory by size, each free or leased.

    There is no lock, since a thread may be stopped at any call, for a signal handler or a finaliser that allocates, or
    waits for another thread that does. Each container is changed by single calls into C, and what is counted is counted
    by statements in which nothing is called: whoever takes a block out of :attr:`_order` counts it as no longer idle.

    Attributes:
        limit: most bytes of free blocks to keep; the ones free for the longest time go first.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._idle = 0
        self._used = 0
        self._most = 0  # that was ever in use at one time
        self._free: dict[int, list[mmap.mmap]] = {}
        # Blocks in the order they became free, by identity.
        self._order: OrderedDict[int, mmap.mmap] = OrderedDict()
        # A lease may end at any time, in any thread, even inside this class. All that happens then is that its
        # ticket is appended here.
        self._returned: deque[_Ticket] = deque()
        self._tickets: dict[int, _Ticket] = {}

    @property
    def idle_bytes(self) -> int:
        """Bytes of free blocks that are kept."""
        self._collect()
        return self._idle

    @property
    def used_bytes(self) -> int:
        """Bytes of the blocks that are leased."""
        self._collect()
        return self._used

    def array(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A new, uninitialised, C-contiguous array, aligned to pages."""
        nbytes = math.prod(shape) * dtype.itemsize
        size = size_class(nbytes)
        self._collect()
        block = self._take(size)
        self._used += size
        if self._used > self._most:
            self._most = self._used
        if block is None:
            self._evict(max(0, self._most + self._most // 8 + _SPARE - self._used))
            block = _map(size)
        lease = _Lease((size,), np.uint8, block)
        ticket = _Ticket(lease, self._returned.append)
        ticket.block = block
        self._tickets[id(ticket)] = ticket
        return np.ndarray(shape, dtype, lease)

    def clear(self) -> None:
        """Give all free blocks back to the system."""
        self._collect()
        self._evict(0)

    def _take(self, size: int) -> mmap.mmap | None:
        """A free block of a size, if there is one."""
        blocks = self._free.get(size)
        try:
            block = blocks.pop() if blocks else None
        except IndexError:  # another thread was faster
            return None
        if block is not None and self._order.pop(id(block), None) is not None:
            self._idle -= size
        return block

    def _collect(self) -> None:
        """Take in returned blocks."""
        while self._returned:
            try:
                ticket = self._returned.popleft()
            except IndexError:  # another thread was faster
                break
            self._tickets.pop(id(ticket), None)
            block = getattr(ticket, "block", None)
            if block is None:
                continue
            size = len(block)
            blocks = self._free.setdefault(size, [])
            self._order[id(block)] = block
            self._idle += size
            self._used -= size
            blocks.append(block)
        if self._idle > self.limit:
            self._evict(self.limit)

    def _evict(self, limit: int) -> None:
        while self._idle > limit and self._order:
            try:
                _, block = self._order.popitem(last=False)
            except KeyError:  # another thread was faster
                return
            size = len(block)
            self._idle -= size
            try:
                self._free[size].remove(block)
            except ValueError:  # it has just been taken, or is just being put in
                pass


def size_class(nbytes: int) -> int:
    """The size of block for so many bytes: at most an eighth more, in whole pages."""
    step = max(mmap.PAGESIZE, 1 << max(0, nbytes.bit_length() - 4))
    return -(-nbytes // step) * step


def _map(size: int) -> mmap.mmap:
    # Private: a shared mapping, which is mmap's default, would be shared with the children of a fork too.
    block = mmap.mmap(-1, size, flags=_PRIVATE)
    if size >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            block.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            pass  # the kernel has none
    return block


_pool: Pool | None = None
_product, _empty = math.prod, np.empty  # without looking them up for each array


def allocate(shape: tuple[int, ...], dtype: Any) -> Any:
    """A new, uninitialised, C-contiguous array; from the pool where it is big."""
    if _product(shape) * dtype.itemsize < LEAST or not _PRIVATE or dtype.hasobject:
        return _empty(shape, dtype)
    return (_pool or _make()).array(shape, dtype)


def _make() -> Pool:
    global _pool
    _pool = _pool or Pool(settings.get().cpu_mem_pool_limit << 20)
    return _pool


def in_use() -> int:
    """Bytes of the blocks that arrays use."""
    return 0 if _pool is None else _pool.used_bytes


def clear() -> None:
    """Give the memory that no array uses back to the system."""
    if _pool is not None:
        _pool.clear()
