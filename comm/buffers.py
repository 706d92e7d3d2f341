"""A pool of receive buffers. They are reused, because the first access to new pages is much slower than the copy.

A block returns to the pool when the last reference to its memory is dropped; there is no explicit release.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np

__all__ = ["Pool", "allocate", "lease", "round_up"]

SMALL = 64 << 10
"""Blocks of fewer bytes are not reused."""

B = TypeVar("B")


def round_up(size: int) -> int:
    """Round a size up to one of four classes between powers of two, so that blocks can be reused."""
    step = max(1 << max(size.bit_length() - 3, 0), 4096)
    return -(-size // step) * step


def lease(array: Any, release: Callable[[], object]) -> memoryview:
    """Return a view of a block's bytes; `release` is called when the last view of them is freed."""
    view = np.frombuffer(array, np.uint8)
    weakref.finalize(view, release).atexit = False
    return view.data


class Pool(Generic[B]):
    """Free blocks by size, up to a total of ``capacity`` bytes.

    Finalizers return blocks from any thread and at any time. Deques are safe for that without a lock.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.free = 0
        self._blocks: dict[int, deque[B]] = {}

    def take(self, size: int) -> B | None:
        """Return a free block of exactly `size` bytes, or None."""
        try:
            block = self._blocks[size].pop()
        except (KeyError, IndexError):
            return None
        self.free -= size
        return block

    def give(self, size: int, block: B) -> None:
        """Add a free block, unless the limit is reached."""
        if self.free + size <= self.capacity:
            self.free += size
            self._blocks.setdefault(size, deque()).append(block)

    def clear(self) -> None:
        """Drop all blocks."""
        self._blocks, self.free = {}, 0


POOL: Pool[np.ndarray[Any, Any]] = Pool(512 << 20)


def allocate(size: int) -> memoryview:
    """Return writable, uninitialized memory of `size` bytes."""
    if size < SMALL:
        return memoryview(bytearray(size))
    block_size = round_up(size)
    block = POOL.take(block_size)
    if block is None:
        block = np.empty(block_size, np.uint8)
    return lease(block, lambda: POOL.give(block_size, block))[:size]
