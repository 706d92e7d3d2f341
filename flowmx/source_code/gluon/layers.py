"""Gluon's code of layers, and of arithmetic that Python has operators for."""

from __future__ import annotations

from flowmx.source_code.description import Layer
from flowmx.source_code.gluon.calls import call
from flowmx.source_code.layouts import per_axis, square
from flowmx.source_code.reading import Code, Row, Site

__all__ = ["ROWS"]


def _dense(n: Site) -> Code:
    if not n.owns(*([1] if n.op.no_bias else [1, 2])):
        return call(n)
    rows = n.array(1).reshape(n.array(1).shape[0], -1)
    arguments = {
        "units": rows.shape[0], "in_units": rows.shape[1], "use_bias": not n.op.no_bias, "flatten": n.op.flatten,
    }  # fmt: skip
    state = n.state(weight=1) if n.op.no_bias else n.state(weight=1, bias=2)
    layer = Layer("nn.Dense", arguments, 1, {"use_bias": True, "flatten": True}, state, title="fc")
    return Code("{layer}({0})", {"layer": layer})


def _convolution(n: Site) -> Code:
    op, count = n.op, len(n.op.kernel)
    is_transposed = op.name == "Deconvolution"
    if not n.owns(*([1] if op.no_bias else [1, 2])) or any(getattr(op, "target_shape", ())):
        return call(n)
    arguments = {
        "channels": op.num_filter, "kernel_size": square(op.kernel), "strides": square(per_axis(op.stride, count, 1)),
        "padding": square(per_axis(op.pad, count, 0)), "dilation": square(per_axis(op.dilate, count, 1)),
        "groups": op.num_group, "in_channels": n.fixed(n.dims()[1], "the number of channels"),
        "use_bias": not op.no_bias,
    }  # fmt: skip
    defaults: dict[str, object] = {"strides": 1, "padding": 0, "dilation": 1, "groups": 1, "use_bias": True}
    if is_transposed:
        arguments["output_padding"] = square(per_axis(op.adj, count, 0))
        defaults["output_padding"] = 0
    kind = f"nn.Conv{count}D{'Transpose' if is_transposed else ''}"
    state = n.state(weight=1) if op.no_bias else n.state(weight=1, bias=2)
    title = "deconv" if is_transposed else "conv"
    return Code("{layer}({0})", {"layer": Layer(kind, arguments, 2, defaults, state, title=title)})


def _batch_norm(n: Site) -> Code:
    op = n.op
    if not n.owns(1, 2, 3, 4):
        return call(n)
    arguments = {
        "in_channels": n.array(1).shape[0], "axis": op.axis, "momentum": float(op.momentum), "epsilon": float(op.eps),
        "scale": not op.fix_gamma, "use_global_stats": op.use_global_stats,
    }  # fmt: skip
    defaults = {"axis": 1, "momentum": 0.9, "epsilon": 1e-5, "scale": True, "use_global_stats": False}
    state = n.state(gamma=1, beta=2, running_mean=3, running_var=4)
    return Code("{layer}({0})", {"layer": Layer("nn.BatchNorm", arguments, 0, defaults, state, title="bn")})


def _normalization(kind: str) -> Row:
    def row(n: Site) -> Code:
        if not n.owns(1, 2):
            return call(n)
        arguments: dict[str, object] = {"in_channels": n.array(1).shape[0], "epsilon": float(n.op.eps)}
        defaults: dict[str, object] = {"epsilon": 1e-5}
        if kind == "nn.LayerNorm":
            arguments["axis"], defaults["axis"] = n.op.axis, -1
        layer = Layer(kind, arguments, 0, defaults, n.state(gamma=1, beta=2), title="norm")
        return Code("{layer}({0})", {"layer": layer})

    return row


def _embedding(n: Site) -> Code:
    if not n.owns(1):
        return call(n)
    rows, size = n.array(1).shape
    layer = Layer("nn.Embedding", {"input_dim": rows, "output_dim": size}, 2, {}, n.state(weight=1), title="embedding")
    return Code("{layer}({0})", {"layer": layer})


def _dropout(n: Site) -> Code:
    if n.op.mode == "always":
        return call(n)
    arguments = {"rate": float(n.op.p), "axes": tuple(n.op.axes)}
    return Code("{layer}({0})", {"layer": Layer("nn.Dropout", arguments, 1, {"axes": ()}, title="dropout")})


def _activation(n: Site) -> Code | str:
    return f"F.{n.op.act_type}({{0}})" if n.op.act_type in ("relu", "sigmoid", "tanh") else call(n)


def _softmax_output(n: Site) -> Code:
    axis = -1 if n.op.preserve_shape else 1
    return Code(f"F.softmax({{0}}, axis={axis})", comment="to train, use SoftmaxCrossEntropyLoss on its input")


ROWS: dict[str, Row] = {
    "FullyConnected": _dense,
    "Convolution": _convolution,
    "Deconvolution": _convolution,
    "BatchNorm": _batch_norm,
    "LayerNorm": _normalization("nn.LayerNorm"),
    "InstanceNorm": _normalization("nn.InstanceNorm"),
    "Embedding": _embedding,
    "Dropout": _dropout,
    "Activation": _activation,
    "SoftmaxOutput": _softmax_output,
    "LinearRegressionOutput": "{0}",
    "MAERegressionOutput": "{0}",
    "LogisticRegressionOutput": "F.sigmoid({0})",
    "_copy": "{0}",
    "elemwise_add": "{0} + {1}",
    "elemwise_sub": "{0} - {1}",
    "elemwise_mul": "{0} * {1}",
    "elemwise_div": "{0} / {1}",
    "_plus_scalar": "{0} + {scalar}",
    "_minus_scalar": "{0} - {scalar}",
    "_rminus_scalar": "{scalar} - {0}",
    "_mul_scalar": "{0} * {scalar}",
    "_div_scalar": "{0} / {scalar}",
    "_rdiv_scalar": "{scalar} / {0}",
    "_power_scalar": "{0} ** {scalar}",
}
"""Layers and arithmetic."""
