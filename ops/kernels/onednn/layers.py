"""Convolution, Deconvolution and FullyConnected with their gradients, and the packing of their weights, by oneDNN.

Their primitives are made in ``convolution.py`` and ``matmul.py``; this file gives the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from flowmx.ops.kernels.onednn.ends import PLAIN, ends_of
from flowmx.ops.kernels.onednn.kernel import Kernel, Make, PackedSize
from flowmx.ops.kernels.onednn.layouts import (
    KEPT,
    TYPES,
    Desc,
    Geometry,
    c_strides,
    dense,
    dense_vectors,
    plain,
    strided,
)
from flowmx.ops.kernels.onednn.library import DType
from flowmx.ops.kernels.onednn.matmul import SMALL_BY_VECTOR, FullyConnect, Gradient, packed_matrix, turned
from flowmx.ops.kernels.onednn.primitives import Call, Reorder
from flowmx.ops.kernels.onednn.vector import ConnectVector
from flowmx.ops.kernels.onednn.work import Work, plan
from flowmx.ops.math.products import SMALL
from flowmx.ops.nn.convolution import Convolution, Deconvolution
from flowmx.ops.nn.linear import FullyConnected
from flowmx.ops.registry.dtypes import DType as NumPyType
from flowmx.ops.registry.operators import Laid, Operator, Shape, kernel

Geometries = Sequence[Geometry]

# -- convolutions -----------------------------------------------------------------------------------------


def _convolution(op: Any, inputs: Geometries, outputs: Geometries) -> Work | None:
    ends, packed = ends_of(op, *inputs[2:]), getattr(op, "packed", False)
    if not dense_vectors(inputs[2 : len(inputs) - ends.added]):
        return None
    weight = dense(op.weight_shape(inputs[0].shape), inputs[1].dtype) if packed else inputs[1]
    addend = inputs[-1] if ends.added else None
    return plan(Forward, op.geometry, inputs[0], weight, outputs[0], ends, addend, packed)


def _convolution_data(op: Convolution, inputs: Geometries, outputs: Geometries) -> Work | None:
    return plan(BackwardData, op.geometry, inputs[0], inputs[1], outputs[0])


def _convolution_weight(op: Convolution, inputs: Geometries, outputs: Geometries) -> Work | None:
    if not dense_vectors(outputs[1:]):
        return None
    return plan(BackwardWeights, op.geometry, *inputs, outputs[0], *[each.dtype for each in outputs[1:]])


def _deconvolution(op: Deconvolution, inputs: Geometries, outputs: Geometries) -> Work | None:
    if not dense_vectors(inputs[2:]):
        return None
    windows = op.fitted(inputs[0][0][2:])[0]
    return plan(BackwardData, windows, inputs[0], inputs[1], outputs[0], *[each.dtype for each in inputs[2:]])


def _deconvolution_data(op: Deconvolution, inputs: Geometries, outputs: Geometries) -> Work | None:
    return plan(Forward, op.fitted(outputs[0][0][2:])[0], inputs[0], inputs[1], outputs[0], PLAIN)


def _deconvolution_weight(op: Deconvolution, inputs: Geometries, outputs: Geometries) -> Work | None:
    return plan(DeconvolutionWeights, op.fitted(inputs[1][0][2:])[0], inputs[1], inputs[0], outputs[0])


# -- products ---------------------------------------------------------------------------------------------


def _fully_connected(op: Any, inputs: Geometries, outputs: Geometries) -> Work | None:
    (data, weight, *rest), out = inputs, outputs[0]
    ends, packed = ends_of(op, *rest), getattr(op, "packed", False)
    if packed:
        weight = dense(op.weight_shape(data.shape), weight.dtype)
    size = prod(out.shape)
    rows, fits = size // op.num_hidden, _is_dense(out) and dense_vectors(rest[: len(rest) - ends.added])
    whole = getattr(op, "whole", False)
    if not fits or (not whole and size * weight.shape[1] < (SMALL_BY_VECTOR if rows == 1 else SMALL)):
        return None
    addend = rest[-1] if ends.added else None
    is_matrix = (
        not whole and _is_dense(weight) and not packed and all(each.dtype == DType.F32 for each in (*inputs, *outputs))
    )
    if rows == 1 and is_matrix and ends.then in ACTIVATIONS:
        return plan(ConnectVector, data, weight.shape, out.shape, ends, addend)
    return plan(FullyConnect, data, rows, weight, out, ends, addend, packed)


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
    left, right = turned(dense((rows, units), head.dtype)), dense((rows, width), data.dtype)
    return plan(Gradient, (head, data), left, right, dense(out.shape, out.dtype))


def _is_dense(array: Geometry) -> bool:
    return array.strides == c_strides(array.shape)


# -- packing ----------------------------------------------------------------------------------------------


class Pack(Work):
    """A copy of a weight in a kernel's layout, multiplied by a scale where there is one."""

    def __init__(self, given: Geometry, lies: Desc, mask: int, scale: Geometry | None) -> None:
        super().__init__()
        scaling = None if scale is None else (mask, plain(scale.shape, scale.dtype))
        self._copy = Reorder(self.room, strided(*given), lies, scaling)

    def calls(self, base: int, *addresses: int) -> list[Call]:
        weight, *scale, copy = addresses
        return [self._copy.at(base, weight, copy, *scale)]


def _filters_lie(op: Any, data: Shape, dtype: DType) -> Desc | None:
    ends = ends_of(op)._replace(scaled=False)
    given, weight, out = (dense(each, dtype) for each in (data, op.weight_shape(data), op.convolved(data)))
    return packed_filters(op.geometry, given, weight, out, ends)


def _matrix_lies(op: Any, data: Shape, dtype: DType) -> Desc | None:
    weight = dense(op.weight_shape(data), dtype)
    rows = prod(data) // weight.shape[1]
    return packed_matrix(rows, weight, ends_of(op)._replace(scaled=False), dtype, dtype)


def _pack_filters(op: Any, inputs: Geometries, outputs: Geometries) -> Work | None:
    lies = _filters_lie(op, op.data_shape, inputs[0].dtype)
    mask = 3 if op.num_group > 1 else 1
    return None if lies is None else Pack(grouped(op.geometry, inputs[0]), lies, mask, *_scale(op, inputs))


def _pack_matrix(op: Any, inputs: Geometries, outputs: Geometries) -> Work | None:
    lies = _matrix_lies(op, op.data_shape, inputs[0].dtype)
    return None if lies is None else Pack(turned(inputs[0]), lies, 2, *_scale(op, inputs))


def _scale(op: Any, inputs: Geometries) -> list[Geometry | None]:
    return [inputs[1] if op.scaled else None]


def _size(lies: Callable[[Any, Shape, DType], Desc | None]) -> PackedSize:
    """The elements of a copy in this layout; None where it would be that of the weight."""

    @lru_cache(KEPT)
    def size(op: Any, data: Shape, dtype: NumPyType) -> int | None:
        kind = TYPES[dtype]
        found = lies(op, data, kind)
        is_same = found is None or found == plain(op.weight_shape(data), kind)
        return None if found is None or is_same else -(-found.nbytes // kind.nbytes)

    return size


class _Packing(Kernel):
    """A kernel that only copies, which needs no workspace: none is asked for, since that makes the primitive."""

    def workspace(self, op: Operator, inputs: Sequence[Laid], outputs: Sequence[Laid]) -> int:
        return 0


KERNELS: dict[str, Make] = {
    "Convolution": _convolution,
    "_backward_Convolution_data": _convolution_data,
    "_backward_Convolution_weight": _convolution_weight,
    "_backward_Convolution_weight_bias": _convolution_weight,
    "Deconvolution": _deconvolution,
    "_backward_Deconvolution_data": _deconvolution_data,
    "_backward_Deconvolution_weight": _deconvolution_weight,
    "FullyConnected": _fully_connected,
    "_backward_FullyConnected_data": _fully_connected_data,
    "_backward_FullyConnected_weight": _fully_connected_weight,
    "_wide_backward_Convolution_weight": _convolution_weight,
    "_wide_backward_Deconvolution_weight": _deconvolution_weight,
    "_wide_backward_FullyConnected_weight": _fully_connected_weight,
}
for _name, _make in KERNELS.items():
    kernel("cpu", _name)(Kernel(_make))
for _name in ("_pack_Convolution", "_order_Convolution"):
    kernel("cpu", _name)(_Packing(_pack_filters))
kernel("cpu", "_pack_FullyConnected")(_Packing(_pack_matrix))
kernel("cpu", "_fused_Convolution")(Kernel(_convolution, _size(_filters_lie)))
kernel("cpu", "_fused_FullyConnected")(Kernel(_fully_connected, _size(_matrix_lies)))
