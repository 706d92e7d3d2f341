"""Receive buffers, which are reused: the first touch of fresh pages costs many times the copy.

A block returns to the pool when nothing refers to its memory any more, without an explicit release.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np

__all__ = ["Pool", "fresh", "leased", "round_up"]

SMALL = 64 << 10
"""Bytes below which a block is not kept for reuse."""

B = TypeVar("B")


def round_up(size: int) -> int:
    """The size of the block for `size` bytes: one of four classes between powers of two, so that blocks are reused."""
    step = max(1 << max(size.bit_length() - 3, 0), 4096)
    return -(-size // step) * step


def leased(array: Any, back: Callable[[], object]) -> memoryview:
    """The bytes of a block; `back` is called when the last view of them is freed."""
    lease = np.frombuffer(array, np.uint8)
    weakref.finalize(lease, back).atexit = False
    return lease.data


class Pool(Generic[B]):
    """Free blocks by size, up to a limit of bytes.

    Finalizers give blocks back in whatever thread they run, and in the middle of anything: deques need no lock.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.free = 0
        self._blocks: dict[int, deque[B]] = {}

    def take(self, size: int) -> B | None:
        """A free block of exactly `size` bytes, if there is one."""
        try:
            block = self._blocks[size].pop()
        except (KeyError, IndexError):
            return None
        self.free -= size
        return block

    def give(self, size: int, block: B) -> None:
        """Keep a block, unless too much is kept already."""
        if self.free + size <= self.most:
            self.free += size
            self._blocks.setdefault(size, deque()).append(block)

    def clear(self) -> None:
        """Let go of all blocks."""
        self._blocks, self.free = {}, 0


POOL: Pool[np.ndarray[Any, Any]] = Pool(512 << 20)


def fresh(size: int) -> memoryview:
    """Writable memory of `size` bytes, of any content."""
    if size < SMALL:
        return memoryview(bytearray(size))
    rounded = round_up(size)
    block = POOL.take(rounded)
    if block is None:
        block = np.empty(rounded, np.uint8)
    return leased(block, lambda: POOL.give(rounded, block))[:size]
