"""Convolutions and products of bytes, where the processor sums them exactly; elsewhere the plain forwards run.

Sums, scales, bias, addend, activation and rounding are one primitive.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

from flowmx.ops.kernels.onednn.convolution import Forward, grouped, packed_filters
from flowmx.ops.kernels.onednn.ends import Ends
from flowmx.ops.kernels.onednn.kernel import Kernel
from flowmx.ops.kernels.onednn.layers import Pack
from flowmx.ops.kernels.onednn.layouts import (
    TYPES,
    Desc,
    Geometry,
    c_strides,
    channels_last_strides,
    dense,
    dense_vectors,
    loaded,
)
from flowmx.ops.kernels.onednn.library import Arg, DType, Unsupported
from flowmx.ops.kernels.onednn.matmul import SMALL_BY_VECTOR, FullyConnect, Product, turned
from flowmx.ops.kernels.onednn.work import Work, plan
from flowmx.ops.quantization.ranges import INT8, INT32, UINT8
from flowmx.ops.quantization.sums import Int8, Int8Convolution, Int8FullyConnected
from flowmx.ops.registry.dtypes import FLOAT32, dtype_named
from flowmx.ops.registry.dtypes import DType as NumPyType
from flowmx.ops.registry.operators import Shape, kernel

Geometries = Sequence[Geometry]
BYTES = frozenset([FLOAT32, INT32, INT8, UINT8])
"""The element types of these kernels' arrays."""
_LARGEST_PRODUCT = 255 * 128
_FIRST_TOO_LARGE = 1 << 31


def _refuse(implementation: str, terms: int) -> None:
    """Raise where sums of so many products would not be exact."""
    if not loaded().sums_bytes_exactly(implementation):
        raise Unsupported(f"oneDNN: {implementation} does not sum bytes exactly")
    if terms * _LARGEST_PRODUCT >= _FIRST_TOO_LARGE:
        raise Unsupported(f"oneDNN: {terms} products may be more than an int32 holds")


class Convolve(Forward):
    """A convolution of bytes and what follows it."""

    def __init__(self, windows: Any, data: Geometry, weight: Geometry, out: Geometry, ends: Ends, *more: Any) -> None:
        super().__init__(windows, data, weight, out, ends, *more)
        _refuse(self.implementation(), prod(weight.shape[1:]))

    def packed(self, windows: Any, data: Geometry, weight: Geometry, out: Geometry, ends: Ends) -> Desc | None:
        return packed_filters(windows, data, weight, out, _plainest(ends.mask))


def _plainest(mask: int | None) -> Ends:
    """The epilogue that packed weights are laid out for, the same whatever follows the sums."""
    return Ends(True, True, mask=mask)


class Connect(FullyConnect):
    """A product of bytes and what follows it."""

    def __init__(self, data: Geometry, rows: int, weight: Geometry, *more: Any) -> None:
        super().__init__(data, rows, weight, *more)
        _refuse(self.implementation(), weight.shape[1])

    def packed(self, rows: int, weight: Geometry, ends: Ends, data: DType, out: DType) -> Desc | None:
        return _packed(rows, weight, data, out)


@cache
def _packed(rows: int, weight: Geometry, data: DType, out: DType) -> Desc:
    """The layout, chosen once for each key, since packed copies are kept; the same whatever follows the sums."""
    units, width = weight.shape
    made = Product(dense((rows, width), data), weight.dtype, dense((rows, units), out), _plainest(2))
    return made.run.descriptor(Arg.WEIGHTS)


def _ends(op: Int8, mask: int, *addend: Geometry) -> Ends:
    """The epilogue of a layer, whose scales lie along some axes of its weight."""
    kind = addend[0].dtype if addend else None
    rounded = (op.low, op.high, op.inner, op.shift) if op.inner else None
    return Ends(not op.no_bias, op.scaled, op.added, op.then, op.edge, DType.F32, mask, kind, op.factor, rounded)


def _data(op: Int8) -> DType:
    return DType.U8 if op.unsigned else DType.S8


def _made(op: Int8) -> DType:
    return TYPES[dtype_named(op.made)]


# -- convolutions -----------------------------------------------------------------------------------------


def _mask(op: Any) -> int:
    return 3 if op.num_group > 1 else 1


def _convolution(op: Any, inputs: Geometries, outputs: Geometries) -> Work | None:
    data, weight, *rest = inputs
    addend = rest[len(rest) - op.added :]
    if not dense_vectors(rest[: len(rest) - op.added]):
        return None
    if op.packed:
        weight = dense(op.weight_shape(data.shape), DType.S8)
    ends = _ends(op, _mask(op), *addend)
    return plan(Convolve, op.geometry, data, weight, outputs[0], ends, addend[0] if addend else None, op.packed)


def _arrays(op: Any, data: Shape) -> tuple[Geometry, Geometry, Geometry]:
    """Data, weight and output, channels-last."""
    out = op.convolved(data)
    return (
        Geometry(data, channels_last_strides(data), _data(op)), dense(op.weight_shape(data), DType.S8),
        Geometry(out, channels_last_strides(out), _made(op)),
    )  # fmt: skip


def _filters(op: Any, data: Shape) -> Desc | None:
    """The layout of packed filters for data of a shape; None where sums are not exact."""
    arrays, ends = _arrays(op, data), _plainest(_mask(op))
    return None if plan(Convolve, op.geometry, *arrays, ends) is None else packed_filters(op.geometry, *arrays, ends)


def _reads_packed(op: Any, data: Shape) -> bool:
    """True where the layer's own primitive, with all that follows the sums, can read the packed filters."""
    *arrays, out = _arrays(op, data)
    addends = [out._replace(dtype=kind) for kind in (DType.S8, DType.U8)] if op.added else [None]
    return all(
        plan(Convolve, op.geometry, *arrays, out, _ends(op, _mask(op), *([each] if each else [])), each, True)
        for each in addends
    )


def _pack_filters(op: Any, inputs: Geometries, outputs: Geometries) -> Work | None:
    lies = _filters(op, op.data_shape)
    return None if lies is None else Pack(grouped(op.geometry, inputs[0]), lies, 0, None)


# -- products ---------------------------------------------------------------------------------------------


def _rows(op: Any, data: Shape) -> int:
    return prod(data[:1] if op.flatten else data[:-1])


def _fully_connected(op: Any, inputs: Geometries, outputs: Geometries) -> Work | None:
    (data, weight, *rest), out = inputs, outputs[0]
    if op.packed:
        weight = dense(op.weight_shape(data.shape), DType.S8)
    fits = out.strides == c_strides(out.shape) and dense_vectors(rest) and not op.added
    if not fits or (not op.packed and prod(out.shape) * weight.shape[1] < SMALL_BY_VECTOR):
        return None
    return plan(Connect, data, _rows(op, data.shape), weight, out, _ends(op, 2), None, op.packed)


def _matrix(op: Any, data: Shape) -> Desc | None:
    weight, rows = dense(op.weight_shape(data), DType.S8), _rows(op, data)
    if rows * prod(weight.shape) < SMALL_BY_VECTOR:
        return None
    out, ends = dense((rows, op.num_hidden), _made(op)), _plainest(2)
    if plan(Connect, dense((rows, weight.shape[1]), _data(op)), rows, weight, out, ends, None, True) is None:
        return None
    return _packed(rows, weight, _data(op), _made(op))


def _pack_matrix(op: Any, inputs: Geometries, outputs: Geometries) -> Work | None:
    lies = _matrix(op, op.data_shape)
    return None if lies is None else Pack(turned(inputs[0]), lies, 0, None)


def _filters_size(op: Any, data: Shape, dtype: NumPyType) -> int | None:
    found = _filters(op, data)
    return None if found is None or not _reads_packed(op, data) else found.nbytes


def _matrix_size(op: Any, data: Shape, dtype: NumPyType) -> int | None:
    found = _matrix(op, data)
    return None if found is None else found.nbytes


kernel("cpu", Int8Convolution.name)(Kernel(_convolution, _filters_size, BYTES))
kernel("cpu", Int8FullyConnected.name)(Kernel(_fully_connected, _matrix_size, BYTES))
kernel("cpu", "_pack_int8_Convolution")(Kernel(_pack_filters, None, BYTES))
kernel("cpu", "_pack_int8_FullyConnected")(Kernel(_pack_matrix, None, BYTES))
