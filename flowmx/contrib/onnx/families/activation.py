"""Activations, and output layers, which are activations in prediction."""

from __future__ import annotations

import math

from flowmx.contrib.onnx.converters import Unsupported, exports, imports
from flowmx.contrib.onnx.node_export import NodeExport
from flowmx.contrib.onnx.node_import import NodeImport
from flowmx.ops.registry.operators import lookup
from flowmx.symbol import Symbol


@exports("Activation")
def _activation(n: NodeExport) -> str:
    name = "_softrelu" if n.op.act_type == "softrelu" else n.op.act_type
    return n.add(lookup(name).onnx, n.inputs[0])


@exports("LeakyReLU")
def _leaky(n: NodeExport) -> str:
    op, x = n.op, n.inputs[0]
    if op.act_type == "leaky":
        return n.add("LeakyRelu", x, alpha=op.slope)
    if op.act_type == "rrelu":  # prediction uses the mean slope
        return n.add("LeakyRelu", x, alpha=(op.lower_bound + op.upper_bound) / 2)
    if op.act_type == "elu":
        return n.add("Elu", x, alpha=op.slope)
    if op.act_type == "selu":
        return n.add("Selu", x)
    return _prelu(n) if op.act_type == "prelu" else _gelu(n)


def _prelu(n: NodeExport) -> str:
    """Reshape the slopes of the channels so that they broadcast along axis 1."""
    slopes, (count,) = n.inputs[1], n.dims(1)
    if count != 1 and n.rank() > 2:
        slopes = n.reshape(slopes, (count,), (count, *[1] * (n.rank() - 2)))
    return n.add("PRelu", n.inputs[0], slopes)


def _gelu(n: NodeExport) -> str:
    x = n.inputs[0]
    if n.opset >= 20:
        return n.add("Gelu", x)
    gate = n.add("Add", n.add("Erf", n.add("Div", x, n.number(math.sqrt(2)))), n.number(1))
    return n.add("Mul", n.add("Mul", x, gate), n.number(0.5))


@exports("silu")
def _silu(n: NodeExport) -> str:
    return n.add("Mul", n.inputs[0], n.add("Sigmoid", n.inputs[0]))


@exports("gelu_tanh")
def _gelu_tanh(n: NodeExport) -> str:
    x = n.inputs[0]
    if n.opset >= 20:
        return n.add("Gelu", x, approximate="tanh")
    cubes = n.add("Mul", n.add("Mul", n.add("Mul", x, x), x), n.number(0.044715))
    wave = n.add("Tanh", n.add("Mul", n.add("Add", x, cubes), n.number(math.sqrt(2 / math.pi))))
    return n.add("Mul", n.add("Mul", x, n.add("Add", wave, n.number(1))), n.number(0.5))


@imports("LeakyRelu", "Elu")
def _import_leaky(n: NodeImport) -> Symbol:
    kind, slope = {"LeakyRelu": ("leaky", 0.01), "Elu": ("elu", 1.0)}[n.kind]
    return n.make("LeakyReLU", n.symbol(0), act_type=kind, slope=n.attr("alpha", slope))


@imports("Selu")
def _import_selu(n: NodeImport) -> Symbol:
    if abs(n.attr("alpha", 1.6732632) - 1.6732632) > 1e-5 or abs(n.attr("gamma", 1.0507010) - 1.0507010) > 1e-5:
        raise Unsupported("its alpha and gamma differ from the defaults")
    return n.make("LeakyReLU", n.symbol(0), act_type="selu")


@imports("PRelu")
def _import_prelu(n: NodeImport) -> Symbol:
    if not n.is_known(1):
        raise Unsupported("its slope is computed, expected a constant")
    slopes = n.array(1)
    # After aligning the shapes at the right, only the channel axis may be longer than 1.
    aligned = (1,) * (n.rank() - slopes.ndim) + slopes.shape
    if slopes.size > 1 and (len(aligned) < 2 or aligned[1] != slopes.size):
        raise Unsupported(f"its slope has the shape {slopes.shape}, expected one for each channel (axis 1)")
    gamma = n.symbol(1) if slopes.ndim == 1 else n.parameter(slopes.reshape(-1), "gamma")
    return n.make("LeakyReLU", n.symbol(0), gamma, act_type="prelu")


@imports("Gelu")
def _import_gelu(n: NodeImport) -> Symbol:
    if n.attr("approximate", "none") == "none":
        return n.make("LeakyReLU", n.symbol(0), act_type="gelu")
    return n.make("gelu_tanh", n.symbol(0))


# -- softmax -----------------------------------------------------------------------------------------------


@exports("softmax", "log_softmax", "softmin")
def _softmax(n: NodeExport) -> str:
    op, x = n.op, n.inputs[0]
    if op.temperature not in (None, 1.0):
        x = n.add("Div", x, n.number(op.temperature))
    if op.name == "softmin":
        x = n.add("Neg", x)
    if getattr(op, "use_length", False):
        return _masked_softmax(n, x)
    result = n.add("LogSoftmax" if op.name == "log_softmax" else "Softmax", x, axis=op.axis)
    return result if n.out_dtype() == n.dtype() else n.cast(result, n.out_dtype())


def _masked_softmax(n: NodeExport, x: str) -> str:
    """Add a softmax over the first ``length`` elements of the axis; the others are 0."""
    if n.op.name == "log_softmax":
        raise Unsupported("log_softmax with use_length is not supported")
    axis, rank = n.op.axis % n.rank(), n.rank()
    positions = n.add("Range", 0, n.add("Squeeze", n.shape((n.dims()[axis],)), [0]), 1)
    shape = tuple(-1 if index == axis else 1 for index in range(rank))
    positions = n.add("Reshape", positions, shape)
    lengths = n.add("Unsqueeze", n.as_int64(1), [axis])
    inside = n.add("Less", positions, lengths)
    lowest = n.number(-1e30)
    result = n.add("Softmax", n.add("Where", inside, x, lowest), axis=axis)
    return n.add("Where", inside, result, n.number(0))


@imports("Softmax", "LogSoftmax")
def _import_softmax(n: NodeImport) -> Symbol:
    name = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}[n.kind]
    return n.make(name, n.symbol(0), axis=int(n.attr("axis", -1)))


@exports("SoftmaxActivation")
def _softmax_activation(n: NodeExport) -> str:
    return n.add("Softmax", n.inputs[0], axis=n.op.axis())


@exports("SoftmaxOutput")
def _softmax_output(n: NodeExport) -> str:
    if n.op.preserve_shape:
        return n.add("Softmax", n.inputs[0], axis=-1)
    return _flat_softmax(n, n.op.multi_output)


def _flat_softmax(n: NodeExport, over_channels: bool) -> str:
    """Add a softmax over axis 1, or over all elements of a sample."""
    if over_channels or n.rank() == 2:
        return n.add("Softmax", n.inputs[0], axis=1)
    flat = n.add("Softmax", n.add("Flatten", n.inputs[0], axis=1), axis=1)
    return n.add("Reshape", flat, n.add("Shape", n.inputs[0]))


@imports("Celu")
def _celu(n: NodeImport) -> Symbol:
    alpha, x = n.attr("alpha", 1.0), n.symbol(0)
    below = n.make("expm1", n.make("_div_scalar", n.make("_minimum_scalar", x, scalar=0), scalar=alpha))
    return n.make("elemwise_add", n.make("relu", x), n.make("_mul_scalar", below, scalar=alpha))


@imports("ThresholdedRelu")
def _thresholded_relu(n: NodeImport) -> Symbol:
    above = n.make("_greater_scalar", n.symbol(0), scalar=n.attr("alpha", 1.0))
    return n.make("elemwise_mul", n.symbol(0), above)


@imports("Shrink")
def _shrink(n: NodeImport) -> Symbol:
    """Move elements beyond ``lambd`` towards 0 by ``bias``; the others become 0."""
    x, limit, bias = n.symbol(0), n.attr("lambd", 0.5), n.attr("bias", 0.0)
    above = n.make("elemwise_mul", n.make("_minus_scalar", x, scalar=bias), n.make("_greater_scalar", x, scalar=limit))
    below = n.make("elemwise_mul", n.make("_plus_scalar", x, scalar=bias), n.make("_lesser_scalar", x, scalar=-limit))
    return n.make("elemwise_add", above, below)


@imports("Hardmax")
def _hardmax(n: NodeImport) -> Symbol:
    """Return 1 at the first maximum along an axis, else 0."""
    axis = n.axis(-1)
    length = n.fixed(n.dims()[axis], "the length of its axis")
    hot = n.make("one_hot", n.make("argmax", n.symbol(0), axis=axis), depth=length, dtype=n.dtype().name)
    order = list(range(n.rank() - 1))
    order.insert(axis, n.rank() - 1)
    return n.make("transpose", hot, axes=tuple(order))
