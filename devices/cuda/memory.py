"""Memory of a GPU: blocks of a pool as CuPy sees them, for arrays and for what CuPy itself needs meanwhile.

A :class:`Lease` is CuPy's own kind of memory, so that every view of an array holds on to it; when none is left, the
block is free. CuPy asks for its temporaries through an allocator that is set once: what is asked for on one of our
streams comes from the device's pool, is counted, and is kept from other streams by tokens; anything else goes on to
the allocator that was there.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

from flowmx.devices.blocks import Block
from flowmx.devices.cuda import library
from flowmx.devices.cuda.stream import CudaStream
from flowmx.devices.streams import current_stream


class Capturing(threading.local):
    """The allocator of the capture that the calling thread makes; None outside of captures."""

    memory: Any = None


capturing = Capturing()


class NotCapturable(RuntimeError):
    """An operation within a capture that can not be replayed."""


@functools.cache
def lease_type(cp: Any) -> Any:
    """The class of leases, for a module that is or stands for CuPy."""

    class Lease(cp.cuda.UnownedMemory):  # type: ignore[misc]
        """The right to use a block.

        Attributes:
            block: the block.
            home: its device.
        """

        block: Block
        home: Any

    return Lease


def block_of(array: Any) -> Block | None:
    """The block that holds an array, as far as it has one."""
    return None if array is None else getattr(array.data.mem, "block", None)


def home_of(array: Any) -> Any:
    """The device of an array, where it lies in one of our blocks."""
    return getattr(getattr(getattr(array, "data", None), "mem", None), "home", None)


class Raw:
    """The allocator of a pool's blocks: CUDA's own.

    Args:
        device: the :class:`~flowmx.devices.cuda.device.CudaDevice`.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._runtime = device.xp.cuda.runtime

    def take(self, size: int) -> tuple[Any, int] | None:
        """Allocate so many bytes; return the handle and the address, or None where there is no memory left."""
        with self._device.selected():
            try:
                address = self._runtime.malloc(size)
            except self._device.errors as error:
                if getattr(error, "status", None) == library.OUT_OF_MEMORY:
                    return None
                raise
        return address, address

    def give(self, address: int) -> None:
        """Free memory, unless the device is lost."""
        if self._device.lost is None:
            with self._device.selected():
                self._runtime.free(address)


_installed: dict[Any, Any] = {}


def install(cp: Any) -> None:
    """Make CuPy allocate its temporaries from our pools (once for each module)."""
    if cp in _installed:
        return
    before = _installed[cp] = cp.cuda.get_allocator()
    pinned = cp.get_default_pinned_memory_pool().malloc

    def allocate(size: int) -> Any:
        stream = current_stream()
        return stream.device.memory(size) if isinstance(stream, CudaStream) else before(size)

    def allocate_pinned(size: int) -> Any:
        # What a captured copy reads from the host would be gone, or another's, when it is replayed.
        if capturing.memory is not None:
            raise NotCapturable("a copy from the host was asked for while a graph was captured")
        return pinned(size)

    cp.cuda.set_allocator(allocate)
    cp.cuda.set_pinned_memory_allocator(allocate_pinned)
