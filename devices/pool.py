"""A pool of CPU memory: big blocks that arrays have let go of are given to new ones.

Memory fresh from the system costs a page fault for every few KiB that are touched first, more than most
operators take for the same bytes. A block is an anonymous mapping. What an array gets is a :class:`_Lease` on
it: every view of the array, and whatever took the array's buffer, keeps the lease alive, and when nobody does
any more it puts the block back. So memory in use is never handed out twice.
"""

from __future__ import annotations

import math
import mmap
import os
import threading
from collections import OrderedDict, deque
from typing import Any

import numpy as np

from flowmx import settings

LEAST = 1 << 16
"""Bytes from which arrays come from the pool; the system's allocator keeps smaller ones at hand itself."""

_HUGE = 1 << 21
_PRIVATE = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)


class _Lease(np.ndarray[Any, Any]):
    """The right to use a block, as an array of its bytes; views of it hold on to it."""

    pool: Pool
    block: mmap.mmap

    def __del__(self) -> None:
        block = self.__dict__.get("block")
        if block is not None:
            self.pool.give_back(block)


class Pool:
    """Blocks of memory by size, each free or leased.

    Attributes:
        limit: most bytes of free blocks to keep; the ones free for the longest time go first.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.idle_bytes = 0
        self._free: dict[int, list[mmap.mmap]] = {}
        # Blocks in the order they became free, by identity.
        self._order: OrderedDict[int, mmap.mmap] = OrderedDict()
        # A lease may end at any time, in any thread, even inside this class: there it only leaves its block.
        self._returned: deque[mmap.mmap] = deque()
        self._lock = threading.Lock()

    def array(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A new, uninitialised, C-contiguous array, aligned to pages."""
        nbytes = math.prod(shape) * dtype.itemsize
        size = size_class(nbytes)
        with self._lock:
            self._collect()
            blocks = self._free.get(size)
            block = blocks.pop() if blocks else None
            if block is not None:
                del self._order[id(block)]
                self.idle_bytes -= size
        if block is None:
            block = _map(size)
        lease = _Lease((size,), np.uint8, block)
        lease.pool, lease.block = self, block
        return np.ndarray(shape, dtype, lease)

    def give_back(self, block: mmap.mmap) -> None:
        """Take a block whose lease has ended."""
        self._returned.append(block)
        if self._lock.acquire(blocking=False):
            try:
                self._collect()
            finally:
                self._lock.release()

    def clear(self) -> None:
        """Give all free blocks back to the system."""
        with self._lock:
            self._collect()
            self._evict(0)

    def _collect(self) -> None:
        """Sort in what has been returned (locked)."""
        while self._returned:
            block = self._returned.popleft()
            self._free.setdefault(len(block), []).append(block)
            self._order[id(block)] = block
            self.idle_bytes += len(block)
        if self.idle_bytes > self.limit:
            self._evict(self.limit)

    def _evict(self, limit: int) -> None:
        while self.idle_bytes > limit:
            _, block = self._order.popitem(last=False)
            self._free[len(block)].remove(block)
            self.idle_bytes -= len(block)


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


def allocate(shape: tuple[int, ...], dtype: Any) -> Any:
    """A new, uninitialised, C-contiguous array; from the pool where it is big."""
    if math.prod(shape) * dtype.itemsize < LEAST or not _PRIVATE or dtype.hasobject:
        return np.empty(shape, dtype)
    return (_pool or _make()).array(shape, dtype)


def _make() -> Pool:
    global _pool
    _pool = _pool or Pool(settings.get().cpu_mem_pool_limit << 20)
    return _pool


def clear() -> None:
    """Give the memory that no array uses back to the system."""
    if _pool is not None:
        _pool.clear()


def _after_fork() -> None:
    """In the child of a fork no thread is left that could hold the lock, or sort in what was returned."""
    if _pool is not None:
        _pool._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
