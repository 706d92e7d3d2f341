"""Pinned host memory: what a GPU copies from and to while the host and its kernels go on.

Copies of ordinary memory pass through pinned blocks, which are used again once the token of their copy is done. Arrays
of ``mx.cpu_pinned()`` lie in pinned memory themselves, and need none.
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
"""Most bytes that go through one block: while the GPU copies one, the host fills another."""
_LEAST = 1 << 12
_MOST = 1 << 28
"""Bytes of blocks after which those in flight are waited for."""


class PinnedBytes(np.ndarray[Any, Any]):
    """Pinned memory as an array of its bytes; views of it hold on to it."""


def is_pinned(array: Any) -> bool:
    """Tell whether an array lies in pinned memory."""
    while array is not None and type(array) is not PinnedBytes:
        array = getattr(array, "base", None)
    return array is not None


def pinned_bytes(pointer: Any, size: int) -> PinnedBytes:
    """CuPy's pinned memory as an array."""
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
        """Take a block of at least so many bytes, which nothing uses."""
        size = max(_LEAST, 1 << math.ceil(math.log2(nbytes)))
        with self._lock:
            free = self._blocks.setdefault(size, deque())
            if free and (self.nbytes + size > _MOST or free[0][1].done()):
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
        """Use a block again once a token is done."""
        with self._lock:
            self._blocks[block.size].append((block, token))


class PinnedDevice(CPUDevice):
    """The CPU, whose arrays lie in pinned memory (``mx.cpu_pinned()``)."""

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
