"""Objects in shared memory: their arrays lie there as they are, and are not pickled.

The layout: how many arrays there are and the length of the pickle; for each array its offset and length; the pickle of
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

_ALIGNED = 64
_HEAD = struct.Struct("<QQ")
_PLACE = struct.Struct("<QQ")


class Parts(NamedTuple):
    """An object, taken apart.

    Attributes:
        pickled: everything but the content of arrays.
        arrays: that.
        places: the offset of each.
        size: bytes that all takes.
    """

    pickled: bytes
    arrays: Sequence[memoryview]
    places: Sequence[int]
    size: int


class _Pickler(pickle.Pickler):
    """Leaves the content of arrays out, NDArrays' too."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is NDArray and obj.context.device_type != "gpu":
            obj.wait_to_read()
            return _as_ndarray, (np.ascontiguousarray(obj._host()).reshape(obj.shape),)
        if type(obj) is np.ndarray and not (obj.flags.c_contiguous or obj.flags.f_contiguous or obj.dtype.hasobject):
            return _same, (np.ascontiguousarray(obj),)
        return NotImplemented


def _as_ndarray(data: np.ndarray[Any, Any]) -> NDArray:
    sharable = data.flags.writeable and data.flags.c_contiguous
    return nd.from_numpy(data) if sharable else nd.array(data, dtype=data.dtype)


def _same(data: Any) -> Any:
    return data


def apart(value: Any) -> Parts:
    """Take an object apart.

    Raises:
        pickle.PicklingError, AttributeError, TypeError: it can not be pickled.
    """
    buffers: list[pickle.PickleBuffer] = []
    out = io.BytesIO()
    _Pickler(out, 5, buffer_callback=buffers.append).dump(value)
    arrays = [each.raw() for each in buffers]
    pickled = out.getvalue()
    at = _HEAD.size + _PLACE.size * len(arrays) + len(pickled)
    places = []
    for array in arrays:
        at = -(-at // _ALIGNED) * _ALIGNED
        places.append(at)
        at += array.nbytes
    return Parts(pickled, arrays, places, at)


def write(parts: Parts, memory: Any) -> None:
    """Write an object into memory that is large enough."""
    view = memoryview(memory)
    _HEAD.pack_into(view, 0, len(parts.arrays), len(parts.pickled))
    at = _HEAD.size
    for place, array in zip(parts.places, parts.arrays, strict=True):
        _PLACE.pack_into(view, at, place, array.nbytes)
        at += _PLACE.size
        if array.nbytes:
            # NumPy copies without the interpreter's lock.
            target = np.frombuffer(view, np.uint8, array.nbytes, place)
            np.copyto(target, np.frombuffer(array, np.uint8))
    view[at : at + len(parts.pickled)] = parts.pickled


def read(memory: Any) -> Any:
    """The object in memory; its arrays use the memory, and keep it alive."""
    view = memoryview(memory)
    count, length = _HEAD.unpack_from(view)
    at = _HEAD.size + _PLACE.size * count
    places = _PLACE.iter_unpack(view[_HEAD.size : at])
    return pickle.loads(view[at : at + length], buffers=[view[start : start + size] for start, size in places])


def new_file(size: int, name: str) -> int:
    """The descriptor of memory without a name, or of a file that has lost its own: what dies leaves nothing behind."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create(name)
    else:  # pragma: no cover - not Linux
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def mapped(descriptor: int, size: int, private: bool = False) -> mmap.mmap:
    """The memory behind a descriptor; ``private``: writes stay in this process."""
    return mmap.mmap(descriptor, size, mmap.MAP_PRIVATE if private else mmap.MAP_SHARED)
