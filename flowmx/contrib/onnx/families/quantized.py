"""Quantized operators. A byte represents ``(byte - zero point) * scale``.

Export writes the floating-point operator between DequantizeLinear and QuantizeLinear; runtimes fuse the three. Import
computes integer products in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowmx.contrib.onnx.converters import Unsupported, exporters, exports, imports
from flowmx.contrib.onnx.families.elementwise import to_even
from flowmx.contrib.onnx.families.layers import convolution
from flowmx.contrib.onnx.families.products import product
from flowmx.contrib.onnx.node_export import NodeExport, Value
from flowmx.contrib.onnx.node_import import NodeImport
from flowmx.ops.quantization.ranges import INT8, STEPS, UINT8, Range, largest, scale_of
from flowmx.ops.quantization.subgraph_layers import MAX_INT8, sums_in_int8
from flowmx.ops.registry.dtypes import FLOAT32, DType, name_of
from flowmx.ops.registry.operators import lookup
from flowmx.symbol import Symbol


def _along(n: NodeImport, index: int, rank: int, axis: int, dtype: str = "float32") -> Symbol:
    """Reshape a scale or zero point so that it broadcasts: one number, or one for each position on an axis."""
    symbol = n.make("Cast", n.symbol(index), dtype=dtype)
    dims = n.dims(index)
    if len(dims) > 1:
        raise Unsupported(
            f"its input {index} has {len(dims)} axes, expected one number, or one for each position on an axis"
        )
    shape = tuple(-1 if dims not in ((), (1,)) and i == axis else 1 for i in range(rank))
    return n.make("Reshape", symbol, shape=shape or (1,))


def _from_zero(n: NodeImport, index: int, zero: int, axis: int, dtype: str) -> Symbol:
    """Cast bytes to numbers and subtract their zero point."""
    x = n.make("Cast", n.symbol(index), dtype=dtype)
    return n.make("broadcast_sub", x, _along(n, zero, n.rank(index), axis, dtype)) if n.has(zero) else x


def _to_bytes(n: NodeImport, x: Symbol, zero: Symbol | None, dtype: Any) -> Symbol:
    """Round numbers in units of the scale, and cast them to bytes."""
    rounded = to_even(n, x)
    shifted = rounded if zero is None else n.make("broadcast_add", rounded, zero)
    limits = np.iinfo(dtype)
    return n.make("Cast", n.make("clip", shifted, a_min=limits.min, a_max=limits.max), dtype=name_of(dtype))


# -- export -----------------------------------------------------------------------------------------------


class _FloatNode(NodeExport):
    """The export of a node's floating-point operator."""

    def __init__(self, n: NodeExport, op: object, *inputs: str) -> None:
        self.__dict__.update(n.__dict__, op=op, inputs=inputs)

    def dtype(self, index: int = 0) -> DType:
        return FLOAT32

    def out_dtype(self, index: int = 0) -> DType:
        return FLOAT32

    def convert(self) -> str:
        """Convert the operator."""
        result = exporters()[self.op.name](self)
        return result if isinstance(result, str) else result[0]


def _dequantize_input(n: NodeExport, index: int, ends: Range) -> str:
    """Dequantize an input with a known range."""
    return _from_bytes(n, index, np.float32(1 / scale_of(n.dtype(index), largest(ends))))


def _from_bytes(n: NodeExport, index: int, unit: Value) -> str:
    return n.add("DequantizeLinear", n.inputs[index], unit, np.zeros((), n.dtype(index)))


def _quantize_value(n: NodeExport, value: str, ends: Range) -> list[str]:
    """Quantize a value with a known range. Return the bytes and the ends of the range."""
    result = _to_units(n, value, np.float32(1 / scale_of(n.out_dtype(), largest(ends))))
    return [result, *_constants(n, ends)]


def _to_units(n: NodeExport, value: str, unit: Value) -> str:
    return n.add("QuantizeLinear", value, unit, np.zeros((), n.out_dtype()))


def _constants(n: NodeExport, ends: Range) -> list[str]:
    return [n.value(np.full((1,), end, np.float32)) for end in ends]


def _unit(n: NodeExport, low: str, high: str, dtype: DType) -> tuple[str, str]:
    """Return the scale for a range that is measured at each call, and the magnitude of the range."""
    size = n.add("Max", n.add("Abs", low), n.add("Abs", high))
    steps = np.float32(STEPS[dtype])
    least = np.float32(np.finfo(np.float32).tiny)
    return n.add("Max", n.add("Div", size, steps), least), size


def _own_range(n: NodeExport) -> Range:
    """Return the calibrated range of a node.

    Raises:
        Unsupported: the node is not calibrated.
    """
    ends: Range | None = n.op.calibrated
    if ends is None:
        raise Unsupported("its range is computed in each call: quantize with calib_mode 'naive' or 'entropy'")
    return ends


@exports("_contrib_quantize_v2")
def _export_quantize(n: NodeExport) -> list[str]:
    result, x = n.out_dtype(), n.inputs[0]
    ends = n.op.known_range((n.dtype(), result), ())
    if n.dtype() != FLOAT32:
        return [x, *_constants(n, ends)]
    if ends is not None:
        return [_quantize_value(n, x, n.op.calibrated)[0], *_constants(n, ends)]
    low, high = (n.reduce(kind, x, None, False) for kind in ("ReduceMin", "ReduceMax"))
    unit, size = _unit(n, low, high, result)
    if result == INT8:
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
    is_single = n.dims(1) == (1,)
    scale = n.add("Reshape", n.inputs[1], np.zeros(0, np.int64)) if is_single else n.inputs[1]
    return n.add("DequantizeLinear", n.inputs[0], scale, axis=None if is_single else n.op.axis)


@exports("_contrib_dequantize")
def _export_dequantize(n: NodeExport) -> str:
    return _number(n, 0, 1)


def _number(n: NodeExport, index: int, low: int) -> str:
    """Dequantize an input. Its range is in the inputs from ``low`` on, and may be unknown."""
    if n.knows_range(low):
        return _dequantize_input(n, index, n.range(low))
    unit, _ = _unit(n, n.inputs[low], n.inputs[low + 1], n.dtype(index))
    return _from_bytes(n, index, n.add("Squeeze", unit, [0]))


@exports("_contrib_quantized_pooling", "_contrib_quantized_act", "_contrib_quantized_flatten")
def _export_unary(n: NodeExport) -> list[str]:
    """Export an operator that does not change the range; an unknown scale is replaced by 1."""
    name = n.op.name.removeprefix("_contrib_quantized_")
    plain = lookup({"pooling": "Pooling", "act": "Activation", "flatten": "Flatten"}[name])
    options = {attribute: getattr(n.op, attribute) for attribute in n.op.attributes() if plain.takes(attribute)}
    unit = np.float32(1 / scale_of(n.dtype(), largest(n.range(1)))) if n.knows_range(1) else np.float32(1)
    result = _FloatNode(n, plain.create(**options), _from_bytes(n, 0, unit)).convert()
    return [_to_units(n, result, unit), *n.inputs[1:]]


@exports("_contrib_quantized_concat")
def _export_concat(n: NodeExport) -> list[str]:
    count, result = n.op.num_args, n.out_dtype()
    lows, highs = n.inputs[count::2], n.inputs[count + 1 :: 2]
    joined = n.add("Concat", *[_number(n, index, count + 2 * index) for index in range(count)], axis=n.op.dim)
    if all(n.knows_range(count + 2 * index) for index in range(count)):
        return _quantize_value(n, joined, n.op.common_range([n.range(count + 2 * index) for index in range(count)]))
    zero = np.zeros(1, np.float32)
    low, high = n.add("Min", zero, *lows), n.add("Max", zero, *highs)
    unit, _ = _unit(n, low, high, result)
    return [_to_units(n, joined, n.add("Squeeze", unit, [0])), low, high]


@exports("_contrib_quantized_elemwise_add")
def _export_add(n: NodeExport) -> list[str]:
    ends, total = n.op.calibrated, n.add("Add", *[_number(n, index, 2 + 2 * index) for index in (0, 1)])
    if ends is not None:
        return _quantize_value(n, total, ends)
    sizes = [n.add("Max", *[n.add("Abs", end) for end in n.inputs[index : index + 2]]) for index in (2, 4)]
    size = n.add("Add", *sizes)
    steps = n.add("Div", np.float64(2147483648), n.cast(size, np.float64))
    whole = n.add("Round", n.add("Mul", n.cast(total, np.float64), steps))
    whole = n.add("Min", n.add("Max", whole, np.float64(-2147483648)), np.float64(2147483647))
    return [n.cast(whole, np.int32), n.add("Neg", size), size]


@exports("_sg_mkldnn_conv", "_sg_mkldnn_fully_connected")
def _export_part(n: NodeExport) -> str | list[str]:
    part = n.op
    if not part.quantized:
        raise Unsupported("it is fused but not quantized: exclude fewer operators, or export the float32 network")
    positions = {name: position for position, name in enumerate(part.inputs())}
    ends = None if n.out_dtype() == FLOAT32 else _own_range(n)
    of_data = n.range(positions[part.ranges_of_data()[0]])
    data_scale = scale_of(n.dtype(), largest(of_data))
    values = {name: n.content(positions[name]) for name in part.parameters_read()}
    filters = part.filters(np, values, data_scale)
    inputs = [_dequantize_input(n, 0, of_data), *_weights(n, filters, data_scale, n.rank() > 2 and not _flattens(part))]
    result = _FloatNode(n, _layer(part, filters), *inputs).convert() if _flattens(part) else _rows(n, inputs)
    if "sum" in positions:
        addend = n.range(positions["sum_min"])
        result = n.add("Add", result, _dequantize_input(n, positions["sum"], addend))
    if part.activation is not None:
        result = _FloatNode(n, part.activation, result).convert()
    if ends is None:
        return result
    if "sum" in positions and sums_in_int8(n.dtype(positions["sum"]), n.out_dtype()):
        most = np.float32(MAX_INT8 / scale_of(n.out_dtype(), largest(ends)))
        result = n.add("Clip", result, np.zeros((), np.float32), most)
    return _quantize_value(n, result, ends)


def _flattens(part: Any) -> bool:
    """Return whether the floating-point operator is exported as a layer, not as MatMul along the last axis."""
    return bool(getattr(part.layer, "flatten", True))


def _layer(part: Any, filters: Any) -> Any:
    values = {name: getattr(part.layer, name) for name in part.layer.attributes()}
    return type(part.layer).create(**{**values, "no_bias": filters.bias is None})


def _weights(n: NodeExport, filters: Any, data_scale: np.float32, is_transposed: bool) -> list[str]:
    """Dequantize weight and bias."""
    units = np.asarray(1 / filters.scales, np.float32)
    is_single = len(units) == 1
    whole = filters.weight.T.copy() if is_transposed else filters.weight
    weight = n.add(
        "DequantizeLinear", whole, units.reshape(()) if is_single else units,
        np.zeros(() if is_single else units.shape, np.int8), axis=None if is_single else int(is_transposed),
    )  # fmt: skip
    if filters.bias is None:
        return [weight]
    # Use one scale per output in all cases.
    bias_scales = np.broadcast_to(np.float32(1) / (filters.scales * data_scale), filters.bias.shape).astype(np.float32)
    bias = filters.bias.astype(np.int32)
    return [weight, n.add("DequantizeLinear", bias, bias_scales, np.zeros(bias_scales.shape, np.int32), axis=0)]


def _rows(n: NodeExport, inputs: list[str]) -> str:
    """Append the nodes of a matrix product along the last axis."""
    data, weight, *bias = inputs
    result = n.add("MatMul", data, weight)
    return n.add("Add", result, *bias) if bias else result


# -- import -----------------------------------------------------------------------------------------------


def _step(n: NodeImport, zero_dtype: DType) -> tuple[float, int] | None:
    """Return the scale and zero point of a conversion, or None if they are not known single numbers."""
    scale, zero = n.single(1), n.single(2) if n.has(2) else np.zeros((), zero_dtype)
    fits = scale is not None and zero is not None and scale.dtype == FLOAT32 and zero.dtype in (INT8, UINT8)
    return (float(scale), int(zero)) if fits and scale is not None and zero is not None else None


@imports("QuantizeLinear")
def _quantize(n: NodeImport) -> Symbol:
    result = n.dtype(2) if n.has(2) else UINT8
    step = _step(n, UINT8)
    if step is not None and n.dtype() == FLOAT32 and not n.attr("output_dtype", 0):
        return n.make("_quantize_linear", n.symbol(0), scale=step[0], zero=step[1], out_dtype=name_of(result))
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
    """Quantize with a scale that covers the range of the input, including 0."""
    x, all_axes = n.symbol(0), tuple(range(n.rank()))
    top = n.make("_maximum_scalar", n.make("max", x, axis=all_axes, keepdims=True), scalar=0)
    bottom = n.make("_minimum_scalar", n.make("min", x, axis=all_axes, keepdims=True), scalar=0)
    scale = n.make("_div_scalar", n.make("elemwise_sub", top, bottom), scalar=255)
    zero = to_even(n, n.make("negative", n.make("elemwise_div", bottom, scale)))
    result = _to_bytes(n, n.make("broadcast_div", x, scale), zero, np.dtype(np.uint8))
    return [
        result,
        n.make("Reshape", scale, shape=(1,)),
        n.make("Reshape", n.make("Cast", zero, dtype="uint8"), shape=(1,)),
    ]


@imports("MatMulInteger")
def _matmul_integer(n: NodeImport) -> Symbol:
    left = _from_zero(n, 0, 2, n.rank(0) - 2, "float64")
    return n.make("Cast", product(n, left, _from_zero(n, 1, 3, n.rank(1) - 1, "float64")), dtype="int32")


@imports("QLinearMatMul")
def _quantized_matmul(n: NodeImport) -> Symbol:
    """Convert QLinearMatMul. Inputs: a, its scale and zero point; b, its scale and zero point; those of the result."""
    left, right = _from_zero(n, 0, 2, n.rank(0) - 2, "float64"), _from_zero(n, 3, 5, n.rank(3) - 1, "float64")
    result = product(n, left, right)
    for index, axis in ((1, -2), (4, -1)):
        result = n.make("broadcast_mul", result, _along(n, index, n.rank(result), n.rank(result) + axis, "float64"))
    return _result(n, result, 6, -1)


@imports("ConvInteger")
def _conv_integer(n: NodeImport) -> Symbol:
    result = convolution(n, _from_zero(n, 0, 2, 1, "float64"), _from_zero(n, 1, 3, 0, "float64"))
    return n.make("Cast", result, dtype="int32")


@imports("QLinearConv")
def _quantized_conv(n: NodeImport) -> Symbol:
    """Convert QLinearConv. Inputs: x, its scale and zero point; the weight's; those of the result; the bias."""
    x, weight = _from_zero(n, 0, 2, 1, "float64"), _from_zero(n, 3, 5, 0, "float64")
    bias = [n.make("Cast", n.symbol(8), dtype="float64")] if n.has(8) else []
    result = convolution(n, x, weight, *bias)
    for index in (1, 4):
        result = n.make("broadcast_mul", result, _along(n, index, n.rank(result), 1, "float64"))
    return _result(n, result, 6, 1)


def _result(n: NodeImport, value: Symbol, scale: int, axis: int) -> Symbol:
    """Quantize a result with the scale at an input and the zero point at the next."""
    rank = n.rank(value)
    scaled = n.make("broadcast_div", value, _along(n, scale, rank, axis % rank, "float64"))
    return _to_bytes(n, scaled, _along(n, scale + 1, rank, axis % rank, "float64"), n.dtype(scale + 1))
