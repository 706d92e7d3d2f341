"""Layouts of arrays, for NumPy and for oneDNN: shapes, strides, memory descriptors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from flowmx.ops.kernels.llvm.code import DATA
from flowmx.ops.kernels.llvm.compiler import knows_arrays
from flowmx.ops.kernels.onednn.library import ANY_LAYOUT, Dims, DType, Handle, Library, Unsupported, library

Array = Any
Shape = tuple[int, ...]

KEPT = 2048
"""The most descriptors, and the most plans of primitives, that are kept."""
FLOAT32 = np.dtype(np.float32)


def loaded() -> Library:
    """The library.

    Raises:
        Unsupported: it is missing.
    """
    found = library()
    if found is None:
        raise Unsupported("oneDNN is not installed")
    return found


class Desc:
    """A memory descriptor: a shape and how its elements lie in memory."""

    def __init__(self, handle: Handle) -> None:
        lib = loaded()
        self.handle = lib.own(self, "memory_desc", handle)
        self.nbytes = lib.size(handle)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Desc) and (other is self or loaded().equal(self.handle, other.handle))

    __hash__ = None  # type: ignore[assignment]


@lru_cache(KEPT)
def strided(shape: Shape, strides: Shape, dtype: DType = DType.F32) -> Desc:
    """Elements at these strides (counted in elements)."""
    rank = len(shape)
    return Desc(loaded().create("memory_desc_create_with_strides", rank, Dims(*shape), int(dtype), Dims(*strides)))


def plain(shape: Shape, dtype: DType = DType.F32) -> Desc:
    """Elements in C order."""
    return strided(shape, c_strides(shape), dtype)


def channels_last(shape: Shape) -> Desc:
    """(batch, channels, *size) with the channels contiguous in memory."""
    return strided(shape, channels_last_strides(shape))


@lru_cache(KEPT)
def any_layout(shape: Shape) -> Desc:
    """Elements as the primitive likes them best."""
    return Desc(loaded().create("memory_desc_create_with_tag", len(shape), Dims(*shape), int(DType.F32), ANY_LAYOUT))


def c_strides(shape: Shape) -> Shape:
    """Strides of C order, in elements."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(1, length)
    return tuple(reversed(strides))


def channels_last_strides(shape: Shape) -> Shape:
    """Strides of channels-last order, in elements."""
    moved = c_strides((shape[0], *shape[2:], shape[1]))
    return (moved[0], moved[-1], *moved[1:-1])


Geometry = tuple[Shape, Shape]
"""Shape and strides (in elements) of an array."""


def geometry(array: Array) -> Geometry:
    """The shape and strides (in elements) of a float32 array."""
    return array.shape, tuple([stride >> 2 for stride in array.strides])


def dense(shape: Shape) -> Geometry:
    """The shape and strides (in elements) of an array in C order."""
    return shape, c_strides(shape)


def is_channels_last(array: Geometry) -> bool:
    """Tell whether the channels (axis 1) are contiguous, and not only because no other axis has elements."""
    shape, strides = array
    return len(shape) > 2 and strides == channels_last_strides(shape) and strides != c_strides(shape)


def dense_vectors(vectors: Sequence[Geometry]) -> bool:
    """Tell whether each of these vectors is contiguous."""
    return all(strides == (1,) or shape == (1,) for shape, strides in vectors)


def _pointer(array: Array) -> int:
    return array.ctypes.data  # type: ignore[no-any-return]


def _pointer_of_head(array: Array) -> int:
    return _at(id(array) + DATA).value or 0


_at = ctypes.c_void_p.from_address
pointer: Callable[[Array], int] = _pointer_of_head if knows_arrays() else _pointer
"""The address of the first element: from where an array object keeps it, since to ask it costs as much as a product."""


def suits(*arrays: Array) -> bool:
    """Tell whether a kernel takes these arrays: float32 and not empty."""
    return all(array.dtype == FLOAT32 and array.size > 0 for array in arrays)


def dims(values: Sequence[int]) -> Any:
    """Numbers as ``dnnl_dims_t``."""
    return Dims(*values)
