"""Memory of a GPU: pool blocks as CuPy memory, for arrays and for temporary data of CuPy.

A :class:`Lease` is a kind of CuPy memory, so every view of an array keeps it alive; when no view is left, the block is
free. CuPy allocates its temporary data with an allocator that is set once. On a stream of this package, it uses the
device's pool, which counts the memory and protects it from other streams with tokens (see :mod:`devices.streams`).
On other streams, it uses the allocator that CuPy had before.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

from flowmx.devices.arrays import Array
from flowmx.devices.block_pool import Block
from flowmx.devices.cuda import library
from flowmx.devices.cuda.stream import CudaStream
from flowmx.devices.streams import current_stream


class CaptureState(threading.local):
    """The allocator of the calling thread's capture; None outside captures."""

    memory: Any = None


capture_state = CaptureState()


class NotCapturable(RuntimeError):
    """An operation in a capture that cannot be replayed."""


@functools.cache
def lease_type(cp: Any) -> Any:
    """Return the class of leases for a module that is CuPy or replaces it."""

    class Lease(cp.cuda.UnownedMemory):  # type: ignore[misc]
        """A lease on a block.

        Attributes:
            block: the block.
            owner: its device.
        """

        block: Block
        owner: Any

    return Lease


def block_of(array: Any) -> Block | None:
    """Return the block of an array, or None."""
    return None if array is None else getattr(array.data.mem, "block", None)


def address_of(array: Array) -> int:
    """Return the address of a CuPy array's first element."""
    memory: Any = array.data  # not NumPy's memoryview
    return int(memory.ptr)


def device_of(array: object) -> Any:
    """Return the device of an array in a pool block, or None."""
    return getattr(getattr(getattr(array, "data", None), "mem", None), "owner", None)


class RawAllocator:
    """The allocator of a pool's blocks, which uses CUDA directly.

    Args:
        device: the :class:`~flowmx.devices.cuda.device.CudaDevice`.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._runtime = device.xp.cuda.runtime

    def allocate(self, size: int) -> tuple[Any, int] | None:
        """Allocate memory; return the handle and the address, or None if there is no memory left."""
        with self._device.as_current():
            try:
                address = self._runtime.malloc(size)
            except self._device.errors as error:
                if getattr(error, "status", None) == library.OUT_OF_MEMORY:
                    return None
                raise
        return address, address

    def free(self, address: int) -> None:
        """Free memory, unless the device is lost."""
        if self._device.fatal_failure is None:
            with self._device.as_current():
                self._runtime.free(address)


_installed: dict[object, Any] = {}


def install(cp: Any) -> None:
    """Make CuPy allocate its temporary data from the pools (once for each module)."""
    if cp in _installed:
        return
    former = _installed[cp] = cp.cuda.get_allocator()
    pinned = cp.get_default_pinned_memory_pool().malloc

    def allocate(size: int) -> Any:
        stream = current_stream()
        return stream.device.memory(size) if isinstance(stream, CudaStream) else former(size)

    def allocate_pinned(size: int) -> Any:
        # The host memory of a captured copy may be freed or reused before a replay.
        if capture_state.memory is not None:
            raise NotCapturable("a copy from the host was attempted while a graph was captured")
        return pinned(size)

    cp.cuda.set_allocator(allocate)
    cp.cuda.set_pinned_memory_allocator(allocate_pinned)
