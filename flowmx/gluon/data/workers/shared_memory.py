"""Serialization into shared memory: arrays are stored as they are, without pickling.

The layout: the number of arrays and the length of the pickle; the offset and length of each array; the pickle of
everything else; the arrays.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import struct
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from flowmx import ndarray as nd
from flowmx.ndarray import NDArray
from flowmx.ops.registry.operators import Array

_ALIGNMENT = 64
_HEAD = struct.Struct("<QQ")
_EXTENT = struct.Struct("<QQ")
"""The offset and length of an array."""


class Parts(NamedTuple):
    """An object, split into a pickle and arrays.

    Attributes:
        pickled: the object without the content of its arrays.
        arrays: the content of its arrays.
        offsets: the offset of each array.
        size: the total number of bytes.
    """

    pickled: bytes
    arrays: Sequence[memoryview]
    offsets: Sequence[int]
    size: int


class _Pickler(pickle.Pickler):
    """A pickler that omits the content of arrays, NDArrays included."""

    def reducer_override(self, obj: object) -> Any:
        if type(obj) is NDArray and obj.context.device_type != "gpu":
            obj.wait_to_read()
            return _as_ndarray, (np.ascontiguousarray(obj._host()).reshape(obj.shape),)
        if type(obj) is np.ndarray and not (obj.flags.c_contiguous or obj.flags.f_contiguous or obj.dtype.hasobject):
            return _identity, (np.ascontiguousarray(obj),)
        return NotImplemented


def _as_ndarray(data: Array) -> NDArray:
    is_sharable = data.flags.writeable and data.flags.c_contiguous
    return nd.from_numpy(data) if is_sharable else nd.array(data, dtype=data.dtype)


def _identity(data: object) -> Any:
    return data


def split(value: object) -> Parts:
    """Split an object into a pickle and arrays.

    Raises:
        pickle.PicklingError, AttributeError, TypeError: the object cannot be pickled.
    """
    buffers: list[pickle.PickleBuffer] = []
    out = io.BytesIO()
    _Pickler(out, 5, buffer_callback=buffers.append).dump(value)
    arrays = [buffer.raw() for buffer in buffers]
    pickled = out.getvalue()
    end = _HEAD.size + _EXTENT.size * len(arrays) + len(pickled)
    offsets = []
    for array in arrays:
        end = -(-end // _ALIGNMENT) * _ALIGNMENT
        offsets.append(end)
        end += array.nbytes
    return Parts(pickled, arrays, offsets, end)


def write(parts: Parts, memory: Any) -> None:
    """Write an object into memory, which must be large enough."""
    view = memoryview(memory)
    _HEAD.pack_into(view, 0, len(parts.arrays), len(parts.pickled))
    position = _HEAD.size
    for offset, array in zip(parts.offsets, parts.arrays, strict=True):
        _EXTENT.pack_into(view, position, offset, array.nbytes)
        position += _EXTENT.size
        if array.nbytes:
            # NumPy copies without the interpreter's lock.
            target = np.frombuffer(view, np.uint8, array.nbytes, offset)
            np.copyto(target, np.frombuffer(array, np.uint8))
    view[position : position + len(parts.pickled)] = parts.pickled


def read(memory: Any) -> Any:
    """Read an object from memory; its arrays use the memory, and keep it alive."""
    view = memoryview(memory)
    count, length = _HEAD.unpack_from(view)
    start = _HEAD.size + _EXTENT.size * count
    extents = _EXTENT.iter_unpack(view[_HEAD.size : start])
    buffers = [view[offset : offset + size] for offset, size in extents]
    return pickle.loads(view[start : start + length], buffers=buffers)


def new_file(size: int, name: str) -> int:
    """Return the descriptor of anonymous memory, or of a deleted file: nothing remains after a crash."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create(name)
    else:  # pragma: no cover - not Linux
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def map_memory(descriptor: int, size: int, private: bool = False) -> mmap.mmap:
    """Map the memory of a descriptor; with ``private``, writes stay in this process."""
    return mmap.mmap(descriptor, size, mmap.MAP_PRIVATE if private else mmap.MAP_SHARED)
