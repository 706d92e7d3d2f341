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
    """A block of memory, and the plans that were tied to it."""

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

    def take(self, nbytes: int, liked: Block | None) -> Block:
        """A block of at least so many bytes: the one liked best where it is free, else the smallest that fits."""
        with self._lock:
            fitting = [block for block in self._free if block.memory.nbytes >= nbytes]
            if fitting:
                block = liked if liked in fitting else min(fitting, key=lambda block: block.memory.nbytes)
                self._free.remove(block)
                return block
            # All are too small: the new one serves whatever they did.
            gone, self._free = self._free, []
        for block in gone:
            for tied in list(block.users):
                tied.unsettle()
            block.memory = None
        return Block(self._allocate(nbytes))

    def give(self, block: Block) -> None:
        """Say that a block is free again."""
        with self._lock:
            self._free.append(block)

    @property
    def idle_bytes(self) -> int:
        """Bytes of the free blocks."""
        with self._lock:
            return sum(block.memory.nbytes for block in self._free)


def bytes_on(device: Any) -> Callable[[int], Any]:
    """What allocates blocks on a device."""
    return lambda nbytes: device.allocate((nbytes,), np.dtype(np.uint8))
