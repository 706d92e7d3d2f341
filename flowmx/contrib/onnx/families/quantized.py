"""Quantized numbers: bytes that stand for ``(byte - zero point) * scale``.

Written, each quantized operator is the one of real numbers between conversions, which runtimes put together again.
Read, integer products are computed in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowmx.contrib.onnx.converters import Unsupported, exporters, exports, imports
from flowmx.contrib.onnx.families.elementwise import to_even
from flowmx.contrib.onnx.families.layers import convolved
from flowmx.contrib.onnx.families.products import product
from flowmx.contrib.onnx.node_export import NodeExport, Value
from flowmx.contrib.onnx.node_import import NodeImport
from flowmx.ops.quantization.fused import MOST_OF_INT8, sums_in_int8
from flowmx.ops.quantization.ranges import INT8, STEPS, UINT8, Range, largest, scale_of
from flowmx.ops.registry.dtypes import FLOAT32, DType, name_of
from flowmx.ops.registry.operators import lookup
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


# -- writing -----------------------------------------------------------------------------------------------


class _OfReals(NodeExport):
    """A node as one of an operator on real numbers."""

    def __init__(self, n: NodeExport, op: Any, *inputs: str) -> None:
        self.__dict__.update(n.__dict__, op=op, inputs=inputs)

    def dtype(self, at: int = 0) -> DType:
        return FLOAT32

    def out_dtype(self, at: int = 0) -> DType:
        return FLOAT32

    def written(self) -> str:
        """Write it by the converter of the operator."""
        made = exporters()[self.op.name](self)
        return made if isinstance(made, str) else made[0]


def _real(n: NodeExport, at: int, ends: Range) -> str:
    """An input of bytes of a known range as real numbers."""
    return _from_bytes(n, at, np.float32(1 / scale_of(n.dtype(at), largest(ends))))


def _from_bytes(n: NodeExport, at: int, unit: Value) -> str:
    return n.add("DequantizeLinear", n.inputs[at], unit, np.zeros((), n.dtype(at)))


def _byte(n: NodeExport, value: str, ends: Range) -> list[str]:
    """Real numbers as bytes of a known range, and its ends."""
    made = _to_units(n, value, np.float32(1 / scale_of(n.out_dtype(), largest(ends))))
    return [made, *_constants(n, ends)]


def _to_units(n: NodeExport, value: str, unit: Value) -> str:
    return n.add("QuantizeLinear", value, unit, np.zeros((), n.out_dtype()))


def _constants(n: NodeExport, ends: Range) -> list[str]:
    return [n.value(np.full((1,), end, np.float32)) for end in ends]


def _unit(n: NodeExport, low: str, high: str, dtype: DType) -> tuple[str, str]:
    """The real number of a step for a range that is found at each call, and the range's magnitude."""
    size = n.add("Max", n.add("Abs", low), n.add("Abs", high))
    steps = np.float32(STEPS[dtype])
    least = np.float32(np.finfo(np.float32).tiny)
    return n.add("Max", n.add("Div", size, steps), least), size


def _own_range(n: NodeExport) -> Range:
    """The range of a node that knows it.

    Raises:
        Unsupported: it does not.
    """
    ends: Range | None = n.op.calibrated
    if ends is None:
        raise Unsupported("its range is found at each call: quantize with calib_mode 'naive' or 'entropy'")
    return ends


@exports("_contrib_quantize_v2")
def _export_quantize(n: NodeExport) -> list[str]:
    made, x = n.out_dtype(), n.inputs[0]
    ends = n.op.known_range((n.dtype(), made), ())
    if n.dtype() != FLOAT32:
        return [x, *_constants(n, ends)]
    if ends is not None:
        return [_byte(n, x, n.op.calibrated)[0], *_constants(n, ends)]
    low, high = (n.reduce(kind, x, None, False) for kind in ("ReduceMin", "ReduceMax"))
    unit, size = _unit(n, low, high, made)
    if made == INT8:
        low, high = n.add("Neg", size), size
    return [_to_units(n, x, unit), *(n.add("Reshape", end, [1]) for end in (low, high))]


@exports("_quantize_linear")
def _export_quantize_linear(n: NodeExport) -> str:
    return n.add("QuantizeLinear", n.inputs[0], np.float32(n.op.scale), np.asarray(n.op.zero, n.out_dtype()))


@exports("_dequantize_linear")
def _export_dequantize_linear(n: NodeExport) -> str:
    return n.add("DequantizeLinear", n.inputs[0], np.float32(n.op.scale), np.asarray(n.op.zero, n.dtype()))


@exports("_dequantize_constant")
def _export_constant(n: NodeExport) -> str:
    alone = n.dims(1) == (1,)
    scale = n.add("Reshape", n.inputs[1], np.zeros(0, np.int64)) if alone else n.inputs[1]
    return n.add("DequantizeLinear", n.inputs[0], scale, axis=None if alone else n.op.axis)


@exports("_contrib_dequantize")
def _export_dequantize(n: NodeExport) -> str:
    return _number(n, 0, 1)


def _number(n: NodeExport, at: int, low: int) -> str:
    """An input of bytes as real numbers, by the range from an input on, whether that is known or not."""
    if n.knows_range(low):
        return _real(n, at, n.range(low))
    unit, _ = _unit(n, n.inputs[low], n.inputs[low + 1], n.dtype(at))
    return _from_bytes(n, at, n.add("Squeeze", unit, [0]))


@exports("_contrib_quantized_pooling", "_contrib_quantized_act", "_contrib_quantized_flatten")
def _export_unary(n: NodeExport) -> list[str]:
    """Write what leaves the range as it is: in units of a step, whatever that is."""
    name = n.op.name.removeprefix("_contrib_quantized_")
    plain = lookup({"pooling": "Pooling", "act": "Activation", "flatten": "Flatten"}[name])
    given = {each: getattr(n.op, each) for each in n.op.attributes() if plain.takes(each)}
    unit = np.float32(1 / scale_of(n.dtype(), largest(n.range(1)))) if n.knows_range(1) else np.float32(1)
    made = _OfReals(n, plain.create(**given), _from_bytes(n, 0, unit)).written()
    return [_to_units(n, made, unit), *n.inputs[1:]]


@exports("_contrib_quantized_concat")
def _export_concat(n: NodeExport) -> list[str]:
    count, made = n.op.num_args, n.out_dtype()
    lows, highs = n.inputs[count::2], n.inputs[count + 1 :: 2]
    joined = n.add("Concat", *[_number(n, at, count + 2 * at) for at in range(count)], axis=n.op.dim)
    if all(n.knows_range(count + 2 * at) for at in range(count)):
        return _byte(n, joined, n.op.whole_range([n.range(count + 2 * at) for at in range(count)]))
    zero = np.zeros(1, np.float32)
    low, high = n.add("Min", zero, *lows), n.add("Max", zero, *highs)
    unit, _ = _unit(n, low, high, made)
    return [_to_units(n, joined, n.add("Squeeze", unit, [0])), low, high]


@exports("_contrib_quantized_elemwise_add")
def _export_add(n: NodeExport) -> list[str]:
    ends, total = n.op.calibrated, n.add("Add", *[_number(n, at, 2 + 2 * at) for at in (0, 1)])
    if ends is not None:
        return _byte(n, total, ends)
    sizes = [n.add("Max", *[n.add("Abs", end) for end in n.inputs[at : at + 2]]) for at in (2, 4)]
    size = n.add("Add", *sizes)
    steps = n.add("Div", np.float64(2147483648), n.cast(size, np.float64))
    whole = n.add("Round", n.add("Mul", n.cast(total, np.float64), steps))
    whole = n.add("Min", n.add("Max", whole, np.float64(-2147483648)), np.float64(2147483647))
    return [n.cast(whole, np.int32), n.add("Neg", size), size]


@exports("_sg_mkldnn_conv", "_sg_mkldnn_fully_connected")
def _export_part(n: NodeExport) -> str | list[str]:
    part = n.op
    if not part.quantized:
        raise Unsupported("it is fused, but not quantized: exclude less, or write the network of float32")
    at = {name: position for position, name in enumerate(part.inputs())}
    ends = None if n.out_dtype() == FLOAT32 else _own_range(n)
    of_data = n.range(at[part.ranges_of_data()[0]])
    data_scale = scale_of(n.dtype(), largest(of_data))
    given = {name: n.content(at[name]) for name in part.parameters_read()}
    filters = part.filters(np, given, data_scale)
    inputs = [_real(n, 0, of_data), *_weights(n, filters, data_scale, n.rank() > 2 and not _flattens(part))]
    made = _OfReals(n, _layer(part, filters), *inputs).written() if _flattens(part) else _rows(n, inputs)
    if "sum" in at:
        addend = n.range(at["sum_min"])
        made = n.add("Add", made, _real(n, at["sum"], addend))
    if part.then is not None:
        made = _OfReals(n, part.then, made).written()
    if ends is None:
        return made
    if "sum" in at and sums_in_int8(n.dtype(at["sum"]), n.out_dtype()):
        most = np.float32(MOST_OF_INT8 / scale_of(n.out_dtype(), largest(ends)))
        made = n.add("Clip", made, np.zeros((), np.float32), most)
    return _byte(n, made, ends)


def _flattens(part: Any) -> bool:
    """True for convolutions, and for products of examples."""
    return bool(getattr(part.layer, "flatten", True))


def _layer(part: Any, filters: Any) -> Any:
    given = {name: getattr(part.layer, name) for name in part.layer.attributes()}
    return type(part.layer).create(**{**given, "no_bias": filters.bias is None})


def _weights(n: NodeExport, filters: Any, data_scale: np.float32, is_turned: bool) -> list[str]:
    """Weight and bias of real numbers, from whole ones."""
    units = np.asarray(1 / filters.scales, np.float32)
    alone = len(units) == 1
    whole = filters.whole.T.copy() if is_turned else filters.whole
    weight = n.add(
        "DequantizeLinear", whole, units.reshape(()) if alone else units,
        np.zeros(() if alone else units.shape, np.int8), axis=None if alone else int(is_turned),
    )  # fmt: skip
    if filters.bias is None:
        return [weight]
    # A scale for each number, so that it is one for each output in all cases.
    each = np.broadcast_to(np.float32(1) / (filters.scales * data_scale), filters.bias.shape).astype(np.float32)
    bias = filters.bias.astype(np.int32)
    return [weight, n.add("DequantizeLinear", bias, each, np.zeros(each.shape, np.int32), axis=0)]


def _rows(n: NodeExport, inputs: list[str]) -> str:
    """A product along the last axis."""
    data, weight, *bias = inputs
    made = n.add("MatMul", data, weight)
    return n.add("Add", made, *bias) if bias else made


# -- reading -----------------------------------------------------------------------------------------------


def _step(n: NodeImport, zero_dtype: DType) -> tuple[float, int] | None:
    """Scale and zero point of a conversion; None where they are not two numbers that are known."""
    scale, zero = n.single(1), n.single(2) if n.has(2) else np.zeros((), zero_dtype)
    fits = scale is not None and zero is not None and scale.dtype == FLOAT32 and zero.dtype in (INT8, UINT8)
    return (float(scale), int(zero)) if fits and scale is not None and zero is not None else None


@imports("QuantizeLinear")
def _quantize(n: NodeImport) -> Symbol:
    made = n.dtype(2) if n.has(2) else UINT8
    step = _step(n, UINT8)
    if step is not None and n.dtype() == FLOAT32 and not n.attr("output_dtype", 0):
        return n.make("_quantize_linear", n.symbol(0), scale=step[0], zero=step[1], made=name_of(made))
    rank, axis = n.rank(), n.axis(1) if n.rank() else 0
    scaled = n.make("broadcast_div", n.make("Cast", n.symbol(0), dtype="float32"), _along(n, 1, rank, axis))
    zero = _along(n, 2, rank, axis) if n.has(2) else None
    return _to_bytes(n, scaled, zero, n.dtype(2) if n.has(2) else np.dtype(np.uint8))


@imports("DequantizeLinear")
def _dequantize(n: NodeImport) -> Symbol:
    step = _step(n, n.dtype())
    if step is not None and n.dtype() in (INT8, UINT8):
        return n.make("_dequantize_linear", n.symbol(0), scale=step[0], zero=step[1])
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
