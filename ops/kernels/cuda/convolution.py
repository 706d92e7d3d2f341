"""Convolution, Deconvolution and their gradients by cuDNN.

All of them are three: ``correlate`` (the forward), ``spread`` (the gradient of the data) and ``weigh`` (that of the
weight), as in :mod:`flowmx.ops.nn.windows`. Images are taken as they lie; a filter that lies otherwise is copied. What
a fused layer does with its result, a scale, a bias, an addend and an activation, is one more kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowmx import settings
from flowmx.ops.compiled.fused import Given
from flowmx.ops.formulas.expressions import Expr, number, placeholder, where
from flowmx.ops.kernels.cuda import dnn
from flowmx.ops.kernels.cuda.elementwise import Loop
from flowmx.ops.kernels.cuda.elementwise_source import kept
from flowmx.ops.kernels.cuda.layouts import Format, empty, format_of, laid, lies, plainly, planar, tensor
from flowmx.ops.kernels.llvm import functions
from flowmx.ops.nn.windows import Geometry
from flowmx.ops.registry.dtypes import BY_NAME, DType
from flowmx.ops.registry.operators import Array, Run, kernel


def channels_last() -> frozenset[DType]:
    """The element types whose images are better channels-last: tensor cores read them so."""
    return frozenset(BY_NAME[name] for name in _TENSOR_CORES if name in BY_NAME) if dnn.is_there() else frozenset()


_TENSOR_CORES = ("float32", "float16", "bfloat16")
_TUNES = ("off", "limited_workspace", "fastest")


def _build(method: str, names: tuple[str, str], g: Geometry) -> Callable[[Any, list[Any]], Sequence[Any]]:
    """The operation of a graph."""
    images = (1,) * (2 - len(g.kernel))  # sequences are images that are 1 high
    pads = [0] * len(images) + list(g.pad)
    places: dict[str, Any] = {
        "pre_padding": pads, "post_padding": pads, "stride": [*images, *g.stride], "dilation": [*images, *g.dilate],
    }  # fmt: skip

    def build(graph: Any, given: list[Any]) -> Sequence[Any]:
        operands: dict[str, Any] = dict(zip(names, given, strict=True))
        return [getattr(graph, method)(**operands, **places)]

    return build


_METHODS = {
    "correlate": ("conv_fprop", ("image", "weight")),
    "spread": ("conv_dgrad", ("loss", "filter")),
    "weigh": ("conv_wgrad", ("image", "loss")),
}


def convolve(run: Run, kind: str, op: Any, g: Geometry, one: Array, other: Array, out: Array) -> bool:
    """Run one of the three convolutions; False, and nothing is done, where cuDNN cannot.

    Args:
        run: what a forward may ask for.
        kind: which: ``correlate`` of data and weight, ``spread`` of head and weight, ``weigh`` of data and head.
        op: the operator, for its tuning mode.
        g: how the windows lie.
        one: the first operand.
        other: the second.
        out: the result.
    """
    xp = run.xp
    fits = one.dtype == other.dtype == out.dtype and kept(out.dtype) is not None and len(g.kernel) <= 3
    if not fits or not (one.size and other.size and out.size):
        return False
    arrays = [planar(each) for each in (one, other, out)]
    images = {"correlate": (0, 2), "spread": (0, 2), "weigh": (0, 1)}[kind]
    form = format_of([arrays[at] for at in images])
    given = [laid(xp, each, form) for each in arrays[:2]]
    target = arrays[2] if lies(arrays[2], form) else empty(xp, arrays[2].shape, out.dtype, form)
    asked = _asked(kind, op, g, form, [*given, target])
    if not dnn.run(xp, asked, [*given, target]):
        return False
    if target is not arrays[2]:
        xp.copyto(arrays[2], target)
    return True


def _asked(kind: str, op: Any, g: Geometry, form: Format, arrays: Sequence[Array]) -> dnn.Asked:
    method, names = _METHODS[kind]
    tune = op.cudnn_tune or _TUNES[settings.get().cudnn_autotune_default]
    limit = dnn.NO_LIMIT if tune == "fastest" else op.workspace << 20
    one, other, out = [tensor(each, form) for each in arrays]
    return dnn.Asked(_build(method, names, g), (kind, g), (one, other), (out,), limit, tune != "off")


# -- what fused layers do with their result ----------------------------------------------------------------

_loops: dict[Any, Loop] = {}


def finish(op: Any, run: Run, parts: Given, made: Array, out: Array) -> bool:
    """Compute ``then(scale * made + bias + addend)``; False, and nothing is done, where no kernel can."""
    then, edge = getattr(op, "then", ""), getattr(op, "edge", 0.0)
    vector = [1] * out.ndim
    vector[op.bias_axis() % out.ndim] = -1
    given = [None if each is None else each.reshape(vector) for each in (parts.scale, parts.bias)] + [parts.addend]
    present = tuple(each is not None for each in given)
    key = (present, then, edge, out.dtype)
    loop = _loops.get(key)
    if loop is None:
        loop = _loops.setdefault(key, _ends(present, then, edge, out.dtype))
    return loop.is_exact and loop.run(run.xp, [], [made, *[each for each in given if each is not None], out])


def _ends(present: Sequence[bool], then: str, edge: float, dtype: Any) -> Loop:
    value, count = placeholder(0), 1
    for is_there, is_scale in zip(present, (True, False, False), strict=True):
        if is_there:
            value = value * placeholder(count) if is_scale else value + placeholder(count)
            count += 1
    return Loop([_activated(value, then, edge)], [dtype] * (count + 1))


def _activated(x: Expr, then: str, edge: float) -> Expr:
    if then == "relu":
        return where(x < 0.0, 0.0, x)
    if then == "leaky":
        return where(x < 0.0, x * number(edge), x)
    if then == "clip":
        return where(x < 0.0, 0.0, where(x > number(edge), number(edge), x))
    return x if not then else functions.sigmoid(x) if then == "sigmoid" else functions.tanh(x)


def _parts(op: Any, inputs: Sequence[Array]) -> Given:
    if hasattr(op, "parts"):
        given: Given = op.parts(inputs)
        return given
    return Given(inputs[0], inputs[1], None if op.no_bias else inputs[2], None, None)


# -- the kernels -------------------------------------------------------------------------------------------


@kernel("gpu", "Convolution")
@kernel("gpu", "_fused_Convolution")
def convolution(op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """The forward, with what is fused into it."""
    parts, out = _parts(op, inputs), outputs[0]
    does_more = any(each is not None for each in parts[2:]) or bool(getattr(op, "then", ""))
    # The addend may be where the output is.
    made = empty(run.xp, out.shape, out.dtype, format_of([planar(out)])) if parts.addend is not None else out
    done = convolve(run, "correlate", op, op.geometry, parts.data, parts.weight, made)
    if not done or (does_more and not finish(op, run, parts, made, out)):
        plainly(op, run, inputs, outputs)


def _gradient(kind: str, operands: tuple[int, int], geometry: Callable[..., Geometry]) -> Callable[..., None]:
    """A kernel that is one of the three alone."""

    def compute(op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        one, other = (inputs[at] for at in operands)
        if not convolve(run, kind, op, geometry(op, inputs, outputs), one, other, outputs[0]):
            plainly(op, run, inputs, outputs)

    return compute


def _own(op: Any, inputs: Sequence[Array], outputs: Sequence[Array]) -> Geometry:
    windows: Geometry = op.geometry
    return windows


def _fitted(which: str, at: int) -> Callable[..., Geometry]:
    """The windows of a Deconvolution, by the size of its data, which is one of the inputs or the output."""

    def geometry(op: Any, inputs: Sequence[Array], outputs: Sequence[Array]) -> Geometry:
        windows: Geometry = op.fitted({"input": inputs, "output": outputs}[which][at].shape[2:])[0]
        return windows

    return geometry


kernel("gpu", "_backward_Convolution_data")(_gradient("spread", (0, 1), _own))
kernel("gpu", "_backward_Convolution_weight")(_gradient("weigh", (1, 0), _own))
kernel("gpu", "_backward_Deconvolution_data")(_gradient("correlate", (0, 1), _fitted("output", 0)))
kernel("gpu", "_backward_Deconvolution_weight")(_gradient("weigh", (0, 1), _fitted("input", 1)))


@kernel("gpu", "_backward_Convolution_weight_bias")
def convolution_weight_bias(op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """The gradients of the weight and of the bias."""
    head, data = inputs
    if not convolve(run, "weigh", op, op.geometry, data, head, outputs[0]):
        plainly(op, run, inputs, outputs)
        return
    head.sum(axis=(0, *range(2, head.ndim)), out=outputs[1])


@kernel("gpu", "Deconvolution")
def deconvolution(op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """The forward, which is the gradient of a convolution for its data."""
    windows = op.fitted(inputs[0].shape[2:])[0]
    if not convolve(run, "spread", op, windows, inputs[0], inputs[1], outputs[0]):
        plainly(op, run, inputs, outputs)
    elif not op.no_bias:
        out, bias = outputs[0], inputs[2]
        run.xp.add(out, bias.reshape(-1, *(1,) * (out.ndim - 2)), out=out)
