"""Quantized numbers: bytes that stand for ``(byte - zero point) * scale``. Integer products are computed in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowmx.contrib.onnx.families.elementwise import to_even
from flowmx.contrib.onnx.families.layers import convolved
from flowmx.contrib.onnx.families.products import product
from flowmx.contrib.onnx.node_import import NodeImport
from flowmx.contrib.onnx.table import Unsupported, imports
from flowmx.ops.registry.dtypes import name_of
from flowmx.symbol import Symbol


def _along(n: NodeImport, at: int, rank: int, axis: int, dtype: str = "float32") -> Symbol:
    """A scale or a zero point in a shape that broadcasts: one for all, or one for each place on an axis."""
    symbol = n.make("Cast", n.symbol(at), dtype=dtype)
    dims = n.dims(at)
    if len(dims) > 1:
        raise Unsupported(f"its input {at} has {len(dims)} axes, expected one number, or one for each place on an axis")
    shape = tuple(-1 if dims not in ((), (1,)) and each == axis else 1 for each in range(rank))
    return n.make("Reshape", symbol, shape=shape or (1,))


def _from_zero(n: NodeImport, at: int, zero: int, axis: int, dtype: str) -> Symbol:
    """Bytes as numbers from their zero point on."""
    x = n.make("Cast", n.symbol(at), dtype=dtype)
    return n.make("broadcast_sub", x, _along(n, zero, n.rank(at), axis, dtype)) if n.has(zero) else x


def _to_bytes(n: NodeImport, x: Symbol, zero: Symbol | None, dtype: Any) -> Symbol:
    """Numbers in units of the scale as bytes."""
    rounded = to_even(n, x)
    moved = rounded if zero is None else n.make("broadcast_add", rounded, zero)
    limits = np.iinfo(dtype)
    return n.make("Cast", n.make("clip", moved, a_min=limits.min, a_max=limits.max), dtype=name_of(dtype))


@imports("QuantizeLinear")
def _quantize(n: NodeImport) -> Symbol:
    rank, axis = n.rank(), n.axis(1) if n.rank() else 0
    scaled = n.make("broadcast_div", n.make("Cast", n.symbol(0), dtype="float32"), _along(n, 1, rank, axis))
    zero = _along(n, 2, rank, axis) if n.has(2) else None
    return _to_bytes(n, scaled, zero, n.dtype(2) if n.has(2) else np.dtype(np.uint8))


@imports("DequantizeLinear")
def _dequantize(n: NodeImport) -> Symbol:
    axis = n.axis(1) if n.rank() else 0
    return n.make("broadcast_mul", _from_zero(n, 0, 2, axis, "float32"), _along(n, 1, n.rank(), axis))


@imports("DynamicQuantizeLinear")
def _dynamic(n: NodeImport) -> list[Symbol]:
    """Bytes whose scale covers the numbers that there are, with 0 among them."""
    x, every = n.symbol(0), tuple(range(n.rank()))
    top = n.make("_maximum_scalar", n.make("max", x, axis=every, keepdims=True), scalar=0)
    bottom = n.make("_minimum_scalar", n.make("min", x, axis=every, keepdims=True), scalar=0)
    scale = n.make("_div_scalar", n.make("elemwise_sub", top, bottom), scalar=255)
    zero = to_even(n, n.make("negative", n.make("elemwise_div", bottom, scale)))
    made = _to_bytes(n, n.make("broadcast_div", x, scale), zero, np.dtype(np.uint8))
    return [
        made,
        n.make("Reshape", scale, shape=(1,)),
        n.make("Reshape", n.make("Cast", zero, dtype="uint8"), shape=(1,)),
    ]


@imports("MatMulInteger")
def _matmul_integer(n: NodeImport) -> Symbol:
    left = _from_zero(n, 0, 2, n.rank(0) - 2, "float64")
    return n.make("Cast", product(n, left, _from_zero(n, 1, 3, n.rank(1) - 1, "float64")), dtype="int32")


@imports("QLinearMatMul")
def _quantized_matmul(n: NodeImport) -> Symbol:
    """Inputs: a, its scale, its zero point; the same of b; scale and zero point of the result."""
    left, right = _from_zero(n, 0, 2, n.rank(0) - 2, "float64"), _from_zero(n, 3, 5, n.rank(3) - 1, "float64")
    made = product(n, left, right)
    for at, axis in ((1, -2), (4, -1)):
        made = n.make("broadcast_mul", made, _along(n, at, n.rank(made), n.rank(made) + axis, "float64"))
    return _result(n, made, 6, -1)


@imports("ConvInteger")
def _conv_integer(n: NodeImport) -> Symbol:
    made = convolved(n, _from_zero(n, 0, 2, 1, "float64"), _from_zero(n, 1, 3, 0, "float64"))
    return n.make("Cast", made, dtype="int32")


@imports("QLinearConv")
def _quantized_conv(n: NodeImport) -> Symbol:
    """Inputs: x, its scale, its zero point; the same of the weight; scale and zero point of the result; the bias."""
    x, weight = _from_zero(n, 0, 2, 1, "float64"), _from_zero(n, 3, 5, 0, "float64")
    bias = [n.make("Cast", n.symbol(8), dtype="float64")] if n.has(8) else []
    made = convolved(n, x, weight, *bias)
    for at in (1, 4):
        made = n.make("broadcast_mul", made, _along(n, at, n.rank(made), 1, "float64"))
    return _result(n, made, 6, 1)


def _result(n: NodeImport, made: Symbol, scale: int, axis: int) -> Symbol:
    """Numbers as bytes with the scale and the zero point that stand last."""
    rank = n.rank(made)
    scaled = n.make("broadcast_div", made, _along(n, scale, rank, axis % rank, "float64"))
    return _to_bytes(n, scaled, _along(n, scale + 1, rank, axis % rank, "float64"), n.dtype(scale + 1))
