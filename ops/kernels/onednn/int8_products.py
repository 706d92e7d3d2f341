"""int8 convolutions and matrix products, if the processor accumulates them exactly; otherwise the fallbacks run.

Sums, scales, bias, addend, activation and rounding are one primitive.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

from flowmx.ops.kernels.onednn.convolution import Forward, grouped, packed_filters
from flowmx.ops.kernels.onednn.epilogue import Epilogue
from flowmx.ops.kernels.onednn.kernel import PrimitiveKernel
from flowmx.ops.kernels.onednn.layers import Pack, Packing
from flowmx.ops.kernels.onednn.layouts import (
    TYPES,
    Desc,
    Geometry,
    c_strides,
    channels_last_strides,
    dense,
    dense_vectors,
    library_or_raise,
)
from flowmx.ops.kernels.onednn.library import Arg, DType, Unsupported
from flowmx.ops.kernels.onednn.matmul import SMALL_BY_VECTOR, FullyConnect, Product, transposed
from flowmx.ops.kernels.onednn.work import Work, plan
from flowmx.ops.quantization.int8_layers import Int8, Int8Convolution, Int8FullyConnected
from flowmx.ops.quantization.ranges import INT8, INT32, UINT8
from flowmx.ops.registry.dtypes import FLOAT32, dtype_named
from flowmx.ops.registry.dtypes import DType as NumPyType
from flowmx.ops.registry.kernels import register_kernel
from flowmx.ops.registry.operators import Shape

if TYPE_CHECKING:
    from flowmx.ops.nn.convolution import Convolution
    from flowmx.ops.nn.linear import FullyConnected

Geometries = Sequence[Geometry]
INT8_DTYPES = frozenset([FLOAT32, INT32, INT8, UINT8])
"""The element types that these kernels support."""
_LARGEST_PRODUCT = 255 * 128
_FIRST_TOO_LARGE = 1 << 31


def _check_exactness(implementation: str, terms: int) -> None:
    """Raise :class:`Unsupported` if sums of this many products would not be exact."""
    if not library_or_raise().sums_int8_exactly(implementation):
        raise Unsupported(f"oneDNN: {implementation} does not sum int8 products exactly")
    if terms * _LARGEST_PRODUCT >= _FIRST_TOO_LARGE:
        raise Unsupported(f"oneDNN: {terms} products may overflow an int32")


class Convolve(Forward):
    """A fused int8 convolution."""

    def __init__(
        self, windows: Any, data: Geometry, weight: Geometry, out: Geometry, epilogue: Epilogue, *extra: Any
    ) -> None:  # fmt: skip
        super().__init__(windows, data, weight, out, epilogue, *extra)
        _check_exactness(self.implementation(), prod(weight.shape[1:]))

    def packed(self, windows: Any, data: Geometry, weight: Geometry, out: Geometry, epilogue: Epilogue) -> Desc | None:
        return packed_filters(windows, data, weight, out, _packing_epilogue(epilogue.mask))


def _packing_epilogue(mask: int | None) -> Epilogue:
    """Return the epilogue for which packed weights are laid out, independent of the fused operations."""
    return Epilogue(True, True, mask=mask)


class Connect(FullyConnect):
    """A fused int8 matrix product."""

    def __init__(self, data: Geometry, rows: int, weight: Geometry, *extra: Any) -> None:
        super().__init__(data, rows, weight, *extra)
        _check_exactness(self.implementation(), weight.shape[1])

    def packed(self, rows: int, weight: Geometry, epilogue: Epilogue, data: DType, out: DType) -> Desc | None:
        return _packed_layout(rows, weight, data, out)


@cache
def _packed_layout(rows: int, weight: Geometry, data: DType, out: DType) -> Desc:
    """Return the layout of packed weights, independent of the fused operations.

    It is chosen once per key, since packed copies are reused.
    """
    units, width = weight.shape
    work = Product(dense((rows, width), data), weight.dtype, dense((rows, units), out), _packing_epilogue(2))
    return work.run.descriptor(Arg.WEIGHTS)


def _epilogue(op: Int8, mask: int, *addend: Geometry) -> Epilogue:
    """Return the epilogue of a layer with scales along some axes of its weight."""
    kind = addend[0].dtype if addend else None
    rounded = (op.low, op.high, op.inner, op.shift) if op.inner else None
    return Epilogue(
        not op.no_bias,
        op.scaled,
        op.has_addend,
        op.activation,
        op.activation_bound,
        DType.F32,
        mask,
        kind,
        op.factor,
        rounded,
    )


def _data(op: Int8) -> DType:
    return DType.U8 if op.unsigned else DType.S8


def _out_type(op: Int8) -> DType:
    return TYPES[dtype_named(op.out_dtype)]


# -- convolutions -----------------------------------------------------------------------------------------


def _mask(op: Convolution) -> int:
    return 3 if op.num_group > 1 else 1


def _convolution(op: Any, inputs: Geometries, outputs: Geometries) -> Work | None:
    data, weight, *rest = inputs
    addend = rest[len(rest) - op.has_addend :]
    if not dense_vectors(rest[: len(rest) - op.has_addend]):
        return None
    if op.packed:
        weight = dense(op.weight_shape(data.shape), DType.S8)
    epilogue = _epilogue(op, _mask(op), *addend)
    return plan(Convolve, op.geometry, data, weight, outputs[0], epilogue, addend[0] if addend else None, op.packed)


def _arrays(op: Any, data: Shape) -> tuple[Geometry, Geometry, Geometry]:
    """Return the geometries of data, weight and output, channels-last."""
    out = op.output_shape(data)
    return (
        Geometry(data, channels_last_strides(data), _data(op)), dense(op.weight_shape(data), DType.S8),
        Geometry(out, channels_last_strides(out), _out_type(op)),
    )  # fmt: skip


def _packed_filter_layout(op: Any, data: Shape, dtype: DType = DType.S8) -> Desc | None:
    """Return the layout of packed filters for data of a shape; None if sums are not exact."""
    arrays, epilogue = _arrays(op, data), _packing_epilogue(_mask(op))
    return (
        None
        if plan(Convolve, op.geometry, *arrays, epilogue) is None
        else packed_filters(op.geometry, *arrays, epilogue)
    )


def _reads_packed(op: Any, data: Shape) -> bool:
    """Return whether the layer's primitive, with all fused operations, can read the packed filters."""
    *arrays, out = _arrays(op, data)
    addends = [out._replace(dtype=kind) for kind in (DType.S8, DType.U8)] if op.has_addend else [None]
    return all(
        plan(Convolve, op.geometry, *arrays, out, _epilogue(op, _mask(op), *([each] if each else [])), each, True)
        for each in addends
    )


def _pack_filters(op: Any, inputs: Geometries, outputs: Geometries) -> Work | None:
    layout = _packed_filter_layout(op, op.data_shape)
    return None if layout is None else Pack(grouped(op.geometry, inputs[0]), layout, 0, None)


# -- products ---------------------------------------------------------------------------------------------


def _rows(op: FullyConnected, data: Shape) -> int:
    return prod(data[:1] if op.flatten else data[:-1])


def _fully_connected(op: Any, inputs: Geometries, outputs: Geometries) -> Work | None:
    (data, weight, *rest), out = inputs, outputs[0]
    if op.packed:
        weight = dense(op.weight_shape(data.shape), DType.S8)
    is_supported = out.strides == c_strides(out.shape) and dense_vectors(rest) and not op.has_addend
    if not is_supported or (not op.packed and prod(out.shape) * weight.shape[1] < SMALL_BY_VECTOR):
        return None
    return plan(Connect, data, _rows(op, data.shape), weight, out, _epilogue(op, 2), None, op.packed)


def _packed_weight_layout(op: Any, data: Shape, dtype: DType = DType.S8) -> Desc | None:
    weight, rows = dense(op.weight_shape(data), DType.S8), _rows(op, data)
    if rows * prod(weight.shape) < SMALL_BY_VECTOR:
        return None
    out, epilogue = dense((rows, op.num_hidden), _out_type(op)), _packing_epilogue(2)
    if plan(Connect, dense((rows, weight.shape[1]), _data(op)), rows, weight, out, epilogue, None, True) is None:
        return None
    return _packed_layout(rows, weight, _data(op), _out_type(op))


def _pack_matrix(op: Any, inputs: Geometries, outputs: Geometries) -> Work | None:
    layout = _packed_weight_layout(op, op.data_shape)
    return None if layout is None else Pack(transposed(inputs[0]), layout, 0, None)


def _filters_size(op: object, data: Shape, dtype: NumPyType) -> int | None:
    layout = _packed_filter_layout(op, data)
    return None if layout is None or not _reads_packed(op, data) else layout.nbytes


def _matrix_size(op: object, data: Shape, dtype: NumPyType) -> int | None:
    layout = _packed_weight_layout(op, data)
    return None if layout is None else layout.nbytes


register_kernel("cpu", Int8Convolution.name, PrimitiveKernel(_convolution, _filters_size, INT8_DTYPES))
register_kernel("cpu", Int8FullyConnected.name, PrimitiveKernel(_fully_connected, _matrix_size, INT8_DTYPES))
register_kernel("cpu", "_pack_int8_Convolution", Packing(_pack_filters, _packed_filter_layout, INT8_DTYPES))
register_kernel("cpu", "_pack_int8_FullyConnected", Packing(_pack_matrix, _packed_weight_layout, INT8_DTYPES))
