"""Blocks of memory for the arenas of plans that run for one call at a time, each on whichever block is free.

Plans for many shapes then need as much as the largest of them, not the sum: a block serves every plan that fits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import numpy as np

from flowmx.graph.tied import Tied


class Block:
    """A block of memory, and the plans tied to it; a plan is tied to the block on which it ran last."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        self.users: WeakSet[Tied] = WeakSet()


class Blocks:
    """The free blocks of one device.

    Args:
        allocate: makes memory of so many bytes.
    """

    def __init__(self, allocate: Callable[[int], Any]) -> None:
        self._allocate = allocate
        self._free: list[Block] = []
        self._lock = threading.RLock()  # a block may be given back from a finalizer, at any time

    def take(self, nbytes: int, tied: Tied, liked: Block | None) -> Block:
        """A block of at least so many bytes for a plan: the liked one where it is free, else the smallest that fits.

        Args:
            nbytes: how many.
            tied: the plan, which is not tied to the one that it liked any more where it gets another.
            liked: the block that it ran on last.
        """
        with self._lock:
            block = self._fitting(nbytes, liked)
            if block is None:
                self._drop_blocks()
        if block is None:
            block = Block(self._allocate(nbytes))
        with self._lock:
            if liked is not None and liked is not block:
                liked.users.discard(tied)
            block.users.add(tied)
        return block

    def _fitting(self, nbytes: int, liked: Block | None) -> Block | None:
        """A free block that is large enough, free no more; None where there is none (locked)."""
        fitting = [block for block in self._free if block.memory.nbytes >= nbytes]
        if not fitting:
            return None
        block = liked if liked in fitting else min(fitting, key=lambda block: block.memory.nbytes)
        self._free.remove(block)
        return block

    def _drop_blocks(self) -> None:
        """Drop all free blocks, which are too small: the new one serves whatever they did (locked).

        Their plans release them under the lock: none can take another block meanwhile, and begin to run on it.
        """
        dropped, self._free = self._free, []
        for block in dropped:
            for tied in list(block.users):
                tied.unsettle()
            block.memory = None

    def give(self, block: Block) -> None:
        """Return a block to the free ones."""
        with self._lock:
            self._free.append(block)

    @property
    def idle_bytes(self) -> int:
        """Bytes of the free blocks."""
        with self._lock:
            return sum(block.memory.nbytes for block in self._free)


def bytes_on(device: Any) -> Callable[[int], Any]:
    """A function that allocates blocks on a device: given a size in bytes, it returns a uint8 array of that length."""
    return lambda nbytes: device.allocate((nbytes,), np.dtype(np.uint8))
