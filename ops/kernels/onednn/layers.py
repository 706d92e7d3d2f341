"""Convolution, Deconvolution and FullyConnected with their gradients, and the packing of their weights, by oneDNN.

``convolution.py`` and ``matmul.py`` make the primitives; this file prepares their arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

from flowmx.ops.kernels.llvm.vector_product import ACTIVATIONS
from flowmx.ops.kernels.onednn.convolution import (
    BackwardData,
    BackwardWeights,
    DeconvolutionWeights,
    Forward,
    grouped,
    packed_filters,
)
from flowmx.ops.kernels.onednn.epilogue import PLAIN, epilogue_of
from flowmx.ops.kernels.onednn.kernel import Make, PrimitiveKernel
from flowmx.ops.kernels.onednn.layouts import (
    FLOATS,
    KEPT,
    TYPES,
    Desc,
    Geometry,
    c_strides,
    channels_last,
    dense,
    dense_vectors,
    layout_number,
    plain,
    strided,
)
from flowmx.ops.kernels.onednn.library import DType
from flowmx.ops.kernels.onednn.matmul import SMALL_BY_VECTOR, FullyConnect, Gradient, packed_matrix, transposed
from flowmx.ops.kernels.onednn.panels import PackPanels, PanelProduct, packed_length
from flowmx.ops.kernels.onednn.primitives import Call, Reorder
from flowmx.ops.kernels.onednn.vector import MAX_ROWS, ConnectVectors
from flowmx.ops.kernels.onednn.winograd import TransformFilters, Winograd
from flowmx.ops.kernels.onednn.winograd import filters_layout as winograd_layout
from flowmx.ops.kernels.onednn.work import Work, plan
from flowmx.ops.math.matmul import SMALL
from flowmx.ops.nn.convolution import Convolution, Deconvolution
from flowmx.ops.nn.linear import FullyConnected
from flowmx.ops.registry.dtypes import DType as NumPyType
from flowmx.ops.registry.kernels import ArrayLayout, PackedSize, register_kernel
from flowmx.ops.registry.operators import Operator, Shape

Geometries = Sequence[Geometry]

# -- convolutions -----------------------------------------------------------------------------------------


def _convolution(op: Any, inputs: Geometries, outputs: Geometries) -> Work | None:
    epilogue, packed = epilogue_of(op, *inputs[2:]), getattr(op, "packed", False)
    if not dense_vectors(inputs[2 : len(inputs) - epilogue.has_addend]):
        return None
    weight = dense(op.weight_shape(inputs[0].shape), inputs[1].dtype) if packed else inputs[1]
    addend = inputs[-1] if epilogue.has_addend else None
    if packed and op.panels:
        return plan(PanelProduct, inputs[0], outputs[0], weight.shape[:2], epilogue, addend, channels_last)
    if packed and op.winograd:
        return plan(Winograd, op.geometry, inputs[0], outputs[0], epilogue, addend, op.winograd)
    return plan(Forward, op.geometry, inputs[0], weight, outputs[0], epilogue, addend, packed)


def _convolution_data(op: Convolution, inputs: Geometries, outputs: Geometries) -> Work | None:
    return plan(BackwardData, op.geometry, inputs[0], inputs[1], outputs[0])


def _convolution_weight(op: Convolution, inputs: Geometries, outputs: Geometries) -> Work | None:
    if not dense_vectors(outputs[1:]):
        return None
    return plan(BackwardWeights, op.geometry, *inputs, outputs[0], *[each.dtype for each in outputs[1:]])


def _deconvolution(op: Deconvolution, inputs: Geometries, outputs: Geometries) -> Work | None:
    if not dense_vectors(inputs[2:]):
        return None
    windows = op.fit(inputs[0][0][2:])[0]
    return plan(BackwardData, windows, inputs[0], inputs[1], outputs[0], *[each.dtype for each in inputs[2:]])


def _deconvolution_data(op: Deconvolution, inputs: Geometries, outputs: Geometries) -> Work | None:
    return plan(Forward, op.fit(outputs[0][0][2:])[0], inputs[0], inputs[1], outputs[0], PLAIN)


def _deconvolution_weight(op: Deconvolution, inputs: Geometries, outputs: Geometries) -> Work | None:
    return plan(DeconvolutionWeights, op.fit(inputs[1][0][2:])[0], inputs[1], inputs[0], outputs[0])


# -- products ---------------------------------------------------------------------------------------------


def _fully_connected(op: FullyConnected, inputs: Geometries, outputs: Geometries) -> Work | None:
    """Return the product of a layer that is large enough to be faster by oneDNN."""
    rows = prod(outputs[0].shape) // op.num_hidden
    is_large = op.num_hidden * prod(inputs[0].shape) >= (SMALL_BY_VECTOR if rows == 1 else SMALL)
    return _connect(op, inputs, outputs) if is_large or getattr(op, "whole", False) else None


def _connect(op: Any, inputs: Geometries, outputs: Geometries) -> Work | None:
    """Return the product of a layer of any size."""
    (data, weight, *rest), out = inputs, outputs[0]
    epilogue, packed = epilogue_of(op, *rest), getattr(op, "packed", False)
    if packed:
        weight = dense(op.weight_shape(data.shape), weight.dtype)
    rows = prod(out.shape) // op.num_hidden
    whole = getattr(op, "whole", False)
    if not (_is_dense(out) and dense_vectors(rest[: len(rest) - epilogue.has_addend])):
        return None
    addend = rest[-1] if epilogue.has_addend else None
    if packed and op.panels:
        return plan(PanelProduct, data, out, weight.shape, epilogue, addend, plain)
    is_matrix = (
        not whole and _is_dense(weight) and not packed and all(each.dtype == DType.F32 for each in (*inputs, *outputs))
    )
    is_small = rows <= MAX_ROWS and rows * prod(weight.shape) < SMALL
    if (rows == 1 or is_small) and is_matrix and epilogue.activation in ACTIVATIONS:
        return plan(ConnectVectors, data, weight.shape, out.shape, epilogue, addend)
    return plan(FullyConnect, data, rows, weight, out, epilogue, addend, packed)


def _fully_connected_data(op: FullyConnected, inputs: Geometries, outputs: Geometries) -> Work | None:
    (head, weight, _), out = inputs, outputs[0]
    units, width = weight.shape
    rows = prod(out.shape) // width
    if not _is_dense(out) or rows == 1 or rows * width * units < SMALL:
        return None
    left, right = dense((rows, units), head.dtype), dense((units, width), weight.dtype)
    return plan(Gradient, (head, weight), left, right, dense((rows, width), out.dtype))


def _fully_connected_weight(op: FullyConnected, inputs: Geometries, outputs: Geometries) -> Work | None:
    (head, data), out = inputs, outputs[0]
    units, width = out.shape
    rows = prod(head.shape) // units
    if not _is_dense(out) or rows * units * width < SMALL:
        return None
    left, right = transposed(dense((rows, units), head.dtype)), dense((rows, width), data.dtype)
    return plan(Gradient, (head, data), left, right, dense(out.shape, out.dtype))


def _is_dense(array: Geometry) -> bool:
    return array.strides == c_strides(array.shape)


# -- packing ----------------------------------------------------------------------------------------------


class Pack(Work):
    """A copy of a weight in a kernel's layout, multiplied by an optional scale."""

    def __init__(self, weight: Geometry, layout: Desc, mask: int, scale: Geometry | None) -> None:
        super().__init__()
        scaling = None if scale is None else (mask, plain(scale.shape, scale.dtype))
        self._copy = Reorder(self.workspace, strided(*weight), layout, scaling)

    def calls(self, base: int, *addresses: int) -> list[Call]:
        weight, *scale, copy = addresses
        return [self._copy.at(base, weight, copy, *scale)]


def _filters_layout(op: Any, data: Shape, dtype: DType) -> Desc | None:
    if op.winograd:
        return winograd_layout(data[1], op.num_filter, op.winograd)
    epilogue = epilogue_of(op)._replace(has_scale=False)
    data_geometry, weight, out = (dense(each, dtype) for each in (data, op.weight_shape(data), op.output_shape(data)))
    return packed_filters(op.geometry, data_geometry, weight, out, epilogue)


def _matrix_layout(op: Any, data: Shape, dtype: DType) -> Desc | None:
    weight = dense(op.weight_shape(data), dtype)
    rows = prod(data) // weight.shape[1]
    return packed_matrix(rows, weight, epilogue_of(op)._replace(has_scale=False), dtype, dtype)


def _pack_filters(op: Any, inputs: Geometries, outputs: Geometries) -> Work | None:
    if op.panels:
        return _pack_panels(op, inputs)
    if op.winograd:
        return plan(TransformFilters, inputs[0], op.winograd, *_scale(op, inputs))
    layout = _filters_layout(op, op.data_shape, inputs[0].dtype)
    mask = 3 if op.num_group > 1 else 1
    return None if layout is None else Pack(grouped(op.geometry, inputs[0]), layout, mask, *_scale(op, inputs))


def _pack_panels(op: Any, inputs: Geometries) -> Work | None:
    shape = inputs[0].shape[:2]
    is_plain = inputs[0] == dense(inputs[0].shape) and dense_vectors(inputs[1:])
    return plan(PackPanels, shape, op.scaled) if is_plain else None


def _pack_matrix(op: Any, inputs: Geometries, outputs: Geometries) -> Work | None:
    if op.panels:
        return _pack_panels(op, inputs)
    layout = _matrix_layout(op, op.data_shape, inputs[0].dtype)
    return None if layout is None else Pack(transposed(inputs[0]), layout, 2, *_scale(op, inputs))


def _scale(op: Any, inputs: Geometries) -> list[Geometry | None]:
    return [inputs[1] if op.scaled else None]


def _size(find_layout: Callable[[Any, Shape, DType], Desc | None]) -> PackedSize:
    """Return the elements of a copy in this layout; None if the layout equals the weight's."""

    @lru_cache(KEPT)
    def size(op: Any, data: Shape, dtype: NumPyType) -> int | None:
        kind = TYPES[dtype]
        if op.panels:
            return packed_length(*op.weight_shape(data)[:2])
        layout = find_layout(op, data, kind)
        is_same = layout is None or layout == plain(op.weight_shape(data), kind)
        return None if layout is None or is_same else -(-layout.nbytes // kind.nbytes)

    return size


class Packing(PrimitiveKernel):
    """A kernel that only copies and needs no workspace; asking for its workspace would make the primitive."""

    def __init__(
        self, make: Make, find_layout: Callable[[Any, Shape, DType], Desc | None], dtypes: Container[NumPyType] = FLOATS
    ) -> None:
        super().__init__(make, dtypes=dtypes)
        self._find_layout = find_layout

    def content_key(self, op: Any, dtype: NumPyType | None) -> Hashable | None:
        """Return the key of a copy: its layout, which may be the same for data of many shapes."""
        kind = None if dtype is None else TYPES.get(dtype)
        if kind is None:
            return None
        weight, groups = op.weight_shape(op.data_shape), getattr(op, "num_group", 1)
        layout: Hashable = "panels"
        if not getattr(op, "panels", False):
            chosen = self._find_layout(op, op.data_shape, kind)
            if chosen is None:
                return None
            layout = layout_number(chosen), getattr(op, "winograd", 0)
        return layout, weight, groups, getattr(op, "scaled", False), op.size

    def workspace(self, op: Operator, inputs: Sequence[ArrayLayout], outputs: Sequence[ArrayLayout]) -> int:
        return 0


KERNELS: dict[str, Make] = {
    "Convolution": _convolution,
    "_backward_Convolution_data": _convolution_data,
    "_backward_Convolution_weight": _convolution_weight,
    "_backward_Convolution_weight_bias": _convolution_weight,
    "Deconvolution": _deconvolution,
    "_backward_Deconvolution_data": _deconvolution_data,
    "_backward_Deconvolution_weight": _deconvolution_weight,
    "_backward_FullyConnected_data": _fully_connected_data,
    "_backward_FullyConnected_weight": _fully_connected_weight,
    "_wide_backward_Convolution_weight": _convolution_weight,
    "_wide_backward_Deconvolution_weight": _deconvolution_weight,
    "_wide_backward_FullyConnected_weight": _fully_connected_weight,
}
for _name, _make in KERNELS.items():
    register_kernel("cpu", _name, PrimitiveKernel(_make))
for _name in ("_pack_Convolution", "_order_Convolution"):
    register_kernel("cpu", _name, Packing(_pack_filters, _filters_layout))
register_kernel("cpu", "_pack_FullyConnected", Packing(_pack_matrix, _matrix_layout))
register_kernel("cpu", "_fused_Convolution", PrimitiveKernel(_convolution, _size(_filters_layout)))
register_kernel(
    "cpu", "_fused_FullyConnected", PrimitiveKernel(_fully_connected, _size(_matrix_layout), make_tied=_connect)
)
register_kernel("cpu", "FullyConnected", PrimitiveKernel(_fully_connected, make_tied=_connect))
