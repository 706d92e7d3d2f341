"""Pinned host memory, from and to which a GPU copies while the host and its kernels continue.

Copies of ordinary memory use pinned blocks, which are reused when the token of their copy is done. Arrays of
``mx.cpu_pinned()`` are in pinned memory and need no such blocks.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from typing import Any

import numpy as np

from flowmx.devices.context import Context
from flowmx.devices.cpu_device import CPUDevice
from flowmx.devices.streams import Token

CHUNK = 1 << 24
"""Maximum size of one block in bytes: while the GPU copies it, the host fills another."""
_MIN_BLOCK = 1 << 12
_MAX_TOTAL = 1 << 28
"""Bytes of blocks above which the host waits for a block in use instead of creating one."""


class PinnedBytes(np.ndarray[Any, Any]):
    """Pinned memory as an array of its bytes; views keep it alive."""


def is_pinned(array: object) -> bool:
    """Return whether an array is in pinned memory."""
    while array is not None and type(array) is not PinnedBytes:
        array = getattr(array, "base", None)
    return array is not None


def pinned_bytes(pointer: Any, size: int) -> PinnedBytes:
    """Return CuPy's pinned memory as an array."""
    return PinnedBytes((size,), np.uint8, pointer)


class Staging:
    """Pinned blocks by size, free or with the token of the copy that uses them.

    Args:
        cp: CuPy.
    """

    def __init__(self, cp: Any) -> None:
        self._cuda = cp.cuda
        self._blocks: dict[int, deque[tuple[PinnedBytes, Token]]] = {}
        self._lock = threading.RLock()
        self.nbytes = 0

    def take(self, nbytes: int) -> PinnedBytes:
        """Return an unused block of at least `nbytes` bytes."""
        size = max(_MIN_BLOCK, 1 << math.ceil(math.log2(nbytes)))
        with self._lock:
            free = self._blocks.setdefault(size, deque())
            if free and (self.nbytes + size > _MAX_TOTAL or free[0][1].done()):
                block, token = free.popleft()
            else:
                token = None
                self.nbytes += size
        if token is None:
            memory = self._cuda.PinnedMemory(size, self._cuda.runtime.hostAllocPortable)
            return pinned_bytes(self._cuda.PinnedMemoryPointer(memory, 0), size)
        token.finish()
        return block

    def give(self, block: PinnedBytes, token: Token) -> None:
        """Make a block reusable once a token is done."""
        with self._lock:
            self._blocks[block.size].append((block, token))


class PinnedDevice(CPUDevice):
    """The CPU with arrays in pinned memory (``mx.cpu_pinned()``)."""

    def __init__(self, context: Context, cp: Any) -> None:
        super().__init__(context)
        self._pool = cp.cuda.PinnedMemoryPool()

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> Any:
        dtype = np.dtype(dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        if not nbytes:
            return np.empty(shape, dtype)
        return np.ndarray(shape, dtype, pinned_bytes(self._pool.malloc(nbytes), nbytes))

    def empty_cache(self) -> None:
        self._pool.free_all_blocks()
