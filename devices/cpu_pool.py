"""A pool of CPU memory: large blocks that arrays have released are reused for new arrays.

New memory from the system costs a page fault for every few KiB at first access, which takes longer than most operators
run on the same amount of data. A block is an anonymous mapping. An array holds a :class:`_Lease` on it. Every view of
the array and every user of its buffer keeps the lease alive; when the lease is freed, so is the block. Memory in use is
therefore never allocated twice. Free blocks beyond the limit are returned to the system at the next allocation. If
sizes keep changing, free blocks of old sizes would accumulate. So before a block of a new size is created, free blocks
are returned until the total is close to the peak of memory in use. A loop that allocates the same sizes repeatedly
needs no new blocks.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections import OrderedDict, deque
from typing import Any

import numpy as np

from flowmx import settings
from flowmx.devices.arrays import Array, DType
from flowmx.errors import OutOfMemory

MIN_BYTES = 1 << 16
"""The smallest arrays in the pool, in bytes; the system's allocator caches smaller ones itself."""

_HUGE = 1 << 21
_SPARE = 1 << 24
"""Bytes of free blocks, in addition to the peak in use, that are kept when a new block is created."""
_PRIVATE = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)


class _Lease(np.ndarray[Any, Any]):
    """A lease on a block, as an array of its bytes; views keep it alive."""


class _Ticket(weakref.ref[_Lease]):
    """A weak reference to a lease, which returns the block when the lease is freed."""

    __slots__ = ("block",)
    block: mmap.mmap


class Pool:
    """Blocks of memory by size, each free or leased.

    There is no lock: at any call, a thread may be interrupted by a signal handler or finalizer that allocates, or that
    waits for another allocating thread. Containers are changed by single calls into C, and counters by statements
    without calls. The thread that removes a block from :attr:`_order` also subtracts it from the idle bytes.

    Attributes:
        limit: maximum total size of free blocks in bytes; the ones free for the longest time are returned first.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._idle = 0
        self._used = 0
        self._peak = 0  # maximum number of bytes in use at one time
        self._free: dict[int, list[mmap.mmap]] = {}
        # Blocks in the order they became free, by identity.
        self._order: OrderedDict[int, mmap.mmap] = OrderedDict()
        # A lease may end at any time, in any thread, even inside this class. Its end only appends its ticket here.
        self._returned: deque[_Ticket] = deque()
        self._tickets: dict[int, _Ticket] = {}

    @property
    def idle_bytes(self) -> int:
        """The total size of free blocks in bytes."""
        self._collect()
        return self._idle

    @property
    def used_bytes(self) -> int:
        """The total size of leased blocks in bytes."""
        self._collect()
        return self._used

    def array(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """Allocate an uninitialized C-contiguous array, aligned to pages.

        Raises:
            OutOfMemory: the system has too little memory.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        size = size_class(nbytes)
        self._collect()
        block = self._take(size)
        self._used += size
        if self._used > self._peak:
            self._peak = self._used
        if block is None:
            self._evict(max(0, self._peak + self._peak // 8 + _SPARE - self._used))
            try:
                block = _map(size)
            except OSError as error:
                self._used -= size
                self._peak = self._used
                raise OutOfMemory(
                    f"an array of shape {shape} and dtype {dtype.name} needs {nbytes} bytes, which the system "
                    f"refuses ({error.strerror}); {self._used} bytes of arrays are in use"
                ) from None
        lease = _Lease((size,), np.uint8, block)
        ticket = _Ticket(lease, self._returned.append)
        ticket.block = block
        self._tickets[id(ticket)] = ticket
        return np.ndarray(shape, dtype, lease)

    def clear(self) -> None:
        """Return all free blocks to the system."""
        self._collect()
        self._evict(0)

    def _take(self, size: int) -> mmap.mmap | None:
        """Return a free block of a size, or None."""
        blocks = self._free.get(size)
        try:
            block = blocks.pop() if blocks else None
        except IndexError:  # another thread was faster
            return None
        if block is not None and self._order.pop(id(block), None) is not None:
            self._idle -= size
        return block

    def _collect(self) -> None:
        """Collect returned blocks."""
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
            except ValueError:  # another thread is just taking or adding it
                pass


def size_class(nbytes: int) -> int:
    """Return the block size for `nbytes` bytes: at most an eighth more, in whole pages."""
    step = max(mmap.PAGESIZE, 1 << max(0, nbytes.bit_length() - 4))
    return -(-nbytes // step) * step


def _map(size: int) -> mmap.mmap:
    # Private: a shared mapping, which is mmap's default, would be shared with the children of a fork too.
    block = mmap.mmap(-1, size, flags=_PRIVATE)
    if size >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            block.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            pass  # the kernel does not support huge pages
    return block


_pool: Pool | None = None
_product, _empty = math.prod, np.empty  # local names: this saves attribute lookups for each array


def allocate(shape: tuple[int, ...], dtype: DType) -> Array:
    """Allocate an uninitialized C-contiguous array; a large one uses the pool."""
    if _product(shape) * dtype.itemsize < MIN_BYTES or not _PRIVATE or dtype.hasobject:
        return _empty(shape, dtype)
    return (_pool or _default_pool()).array(shape, dtype)


def _default_pool() -> Pool:
    global _pool
    _pool = _pool or Pool(settings.get().cpu_mem_pool_limit << 20)
    return _pool


def bytes_in_use() -> int:
    """Return the total size of blocks in use, in bytes."""
    return 0 if _pool is None else _pool.used_bytes


def clear() -> None:
    """Return unused memory to the system."""
    if _pool is not None:
        _pool.clear()
