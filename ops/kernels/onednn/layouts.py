"""Layouts of arrays, for NumPy and for oneDNN: shapes, strides, memory descriptors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Container, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from flowmx.ops.kernels.llvm.assembly import DATA
from flowmx.ops.kernels.llvm.compiler import knows_arrays
from flowmx.ops.kernels.onednn.library import ANY_LAYOUT, Dims, DType, Handle, Library, Unsupported, library
from flowmx.ops.registry.dtypes import BY_NAME, FLOAT32

PANEL = 64
"""The columns of a panel."""
_IN_PANELS = 524
"""``dnnl_aCB16b64c``."""

Array = Any
Shape = tuple[int, ...]

KEPT = 2048
"""The maximum number of cached descriptors, and of cached plans."""

TYPES: dict[np.dtype[Any], DType] = {
    BY_NAME[name]: dtype
    for name, dtype in {
        "float32": DType.F32, "bfloat16": DType.BF16, "float16": DType.F16, "int32": DType.S32, "int8": DType.S8,
        "uint8": DType.U8,
    }.items()
    if name in BY_NAME
}  # fmt: skip
"""The element types that oneDNN supports."""


class _Floats(Container[np.dtype[Any]]):
    """float32, and bfloat16 if the processor multiplies it, which is checked at the first use."""

    def __contains__(self, dtype: object) -> bool:
        return dtype == FLOAT32 or dtype in native_16bit_dtypes()


FLOATS = _Floats()
"""The default element types of a kernel."""


def library_or_raise() -> Library:
    """Return the library.

    Raises:
        Unsupported: the library is missing.
    """
    lib = library()
    if lib is None:
        raise Unsupported("oneDNN is not installed")
    return lib


@cache
def native_16bit_dtypes() -> frozenset[np.dtype[Any]]:
    """Return the 16-bit element types that the processor multiplies: bfloat16, or none."""
    lib, name = library(), "bfloat16"
    return frozenset([BY_NAME[name]] if lib and name in BY_NAME and lib.multiplies(DType.BF16) else [])


class Desc:
    """A memory descriptor: a shape and a memory layout."""

    def __init__(self, handle: Handle) -> None:
        lib = library_or_raise()
        self.handle = lib.own(self, "memory_desc", handle)
        self.nbytes = lib.size(handle)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Desc) and (other is self or library_or_raise().equal(self.handle, other.handle))

    __hash__ = None  # type: ignore[assignment]


@lru_cache(KEPT)
def strided(shape: Shape, strides: Shape, dtype: DType = DType.F32) -> Desc:
    """Return the descriptor of an array with these strides, in elements."""
    rank = len(shape)
    return Desc(
        library_or_raise().create("memory_desc_create_with_strides", rank, Dims(*shape), int(dtype), Dims(*strides))
    )


def plain(shape: Shape, dtype: DType = DType.F32) -> Desc:
    """Return the descriptor of an array in C order."""
    return strided(shape, c_strides(shape), dtype)


def channels_last(shape: Shape, dtype: DType = DType.F32) -> Desc:
    """Return the descriptor of (batch, channels, *size) with the channels contiguous in memory."""
    return strided(shape, channels_last_strides(shape), dtype)


@lru_cache(KEPT)
def any_layout(shape: Shape, dtype: DType = DType.F32) -> Desc:
    """Return the descriptor that leaves the layout to the primitive."""
    return Desc(
        library_or_raise().create("memory_desc_create_with_tag", len(shape), Dims(*shape), int(dtype), ANY_LAYOUT)
    )


_interned: list[Desc] = []
"""The descriptors that have an index, in order."""


def layout_number(layout: Desc) -> int:
    """Return an index that identifies a descriptor; equal descriptors have the same index."""
    for number, each in enumerate(_interned):
        if each == layout:
            return number
    _interned.append(layout)
    return len(_interned) - 1


def in_panels(shape: Shape) -> Desc:
    """Return the descriptor of matrices, (batch, rows, columns) of float32, in panels of 64 columns.

    A panel contains its columns of each row, row after row. The number of rows must be divisible by 16.
    """
    return Desc(
        library_or_raise().create("memory_desc_create_with_tag", len(shape), Dims(*shape), int(DType.F32), _IN_PANELS)
    )


def c_strides(shape: Shape) -> Shape:
    """Return the strides of C order, in elements."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(1, length)
    return tuple(reversed(strides))


def channels_last_strides(shape: Shape) -> Shape:
    """Return the strides of channels-last order, in elements."""
    strides = c_strides((shape[0], *shape[2:], shape[1]))
    return (strides[0], strides[-1], *strides[1:-1])


class Geometry(NamedTuple):
    """Shape and strides (in elements) of an array, and the type of its elements."""

    shape: Shape
    strides: Shape
    dtype: DType = DType.F32


def geometry(array: Array) -> Geometry:
    """Return the geometry of an array with an element type of ``TYPES``."""
    dtype = array.dtype
    size = dtype.itemsize
    return _new_tuple(Geometry, (array.shape, tuple([stride // size for stride in array.strides]), TYPES[dtype]))


_new_tuple = tuple.__new__  # a named tuple's constructor takes as long as everything else


def dense(shape: Shape, dtype: DType = DType.F32) -> Geometry:
    """Return the geometry of an array in C order."""
    return Geometry(shape, c_strides(shape), dtype)


def is_channels_last(array: Geometry) -> bool:
    """Return whether the channels (axis 1) are contiguous, and not only because all other axes have length 1."""
    shape, strides, _ = array
    return len(shape) > 2 and strides == channels_last_strides(shape) and strides != c_strides(shape)


def dense_vectors(vectors: Sequence[Geometry]) -> bool:
    """Return whether each of these vectors is contiguous."""
    return all(strides == (1,) or shape == (1,) for shape, strides, _ in vectors)


def _pointer(array: Array) -> int:
    address: int = array.ctypes.data
    return address


def _pointer_of_head(array: Array) -> int:
    return _at(id(array) + DATA).value or 0


_at = ctypes.c_void_p.from_address
pointer: Callable[[Array], int] = _pointer_of_head if knows_arrays() else _pointer
"""The address of the first element, read from the array object: ``array.ctypes`` takes as long as a product."""


def suits(*arrays: Array, among: Container[np.dtype[Any]] = FLOATS) -> bool:
    """Return whether a kernel supports these arrays: not empty, with element types in ``among``."""
    return all(array.dtype in among and array.size > 0 for array in arrays)


def dims(values: Sequence[int]) -> Any:
    """Return numbers as ``dnnl_dims_t``."""
    return Dims(*values)
