"""Arrays that share memory with other libraries: NumPy arrays and DLPack capsules."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from flowmx import devices
from flowmx.ndarray.array import NDArray
from flowmx.ndarray.core import allocate
from flowmx.ndarray.creation import array
from flowmx.ndarray.dlpack import array_of_dlpack
from flowmx.ops.registry.dtypes import as_dtype
from flowmx.ops.registry.operators import Array

__all__ = ["from_dlpack", "from_numpy", "to_dlpack_for_read", "to_dlpack_for_write"]


def from_numpy(ndarray: Array, zero_copy: bool = True) -> NDArray:
    """Create an array on the CPU with the content and dtype of a NumPy array.

    Args:
        ndarray: the NumPy array.
        zero_copy: share its memory. The NumPy array becomes read-only, since the engine may write to the memory at any
            time. Memory that NumPy may not write to, such as a file mapped for reading, stays read-only: a write to
            the array fails, and a wait for the array raises the error.

    Raises:
        ValueError: ``zero_copy`` is set, and the array is not C-contiguous.
    """
    if not zero_copy:
        return array(ndarray, devices.cpu(), ndarray.dtype)
    as_dtype(ndarray.dtype)
    if not ndarray.flags.c_contiguous:
        raise ValueError("from_numpy: to share memory the array must be C-contiguous; use zero_copy=False")
    shared = ndarray.view(np.ndarray)
    if not shared.flags.writeable and _is_owned_by_numpy(shared):
        shared = np.asarray(_WritableMemory(shared))
    ndarray.flags.writeable = False
    return _from_memory(shared)


def _is_owned_by_numpy(data: Array) -> bool:
    """Return whether NumPy allocated the memory: it is writable then, even if the array's flag says that it is not."""
    while isinstance(data.base, np.ndarray):
        data = data.base
    return data.flags.owndata


class _WritableMemory:
    """Adapter that makes read-only memory writable for NumPy; the owner allows writes."""

    def __init__(self, data: Array) -> None:
        self._data = data  # keeps the memory alive
        self.__array_interface__ = {
            **data.__array_interface__,
            "data": (data.__array_interface__["data"][0], False),
        }


def from_dlpack(dlpack: object) -> NDArray:
    """Create an array on the CPU that shares memory with a DLPack capsule, or an object with ``__dlpack__``.

    Raises:
        BufferError: the memory is not on the CPU, the dtype is unsupported, or the capsule is invalid or was used.
    """
    data = array_of_dlpack(dlpack)
    if not data.flags.c_contiguous:
        return array(data, devices.cpu(), data.dtype)
    return _from_memory(data if data.flags.writeable else np.asarray(_WritableMemory(data)).view(data.dtype))


def to_dlpack_for_read(data: NDArray) -> Any:
    """Return a DLPack capsule to read from. Block until the content is computed."""
    return data.to_dlpack_for_read()


def to_dlpack_for_write(data: NDArray) -> Any:
    """Return a DLPack capsule for writing; block until no pending operation reads or writes the array."""
    return data.to_dlpack_for_write()


def _from_memory(data: Any) -> NDArray:
    """Create an array on the CPU that uses this memory."""
    return cast("NDArray", allocate(devices.get(devices.cpu()), data.shape, data.dtype, data))
