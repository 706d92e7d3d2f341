"""Convolution, Deconvolution and their gradients by cuDNN.

There are three computations, as in :mod:`flowmx.ops.nn.windows`: ``correlate`` (the forward), ``spread`` (the gradient
of the data) and ``weight_gradient`` (the gradient of the weight). Images are used in their layout; filters in another
layout are copied. The scale, bias, addend and activation of a fused layer take one more kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flowmx import settings
from flowmx.ops.compiled.fused_layers import LayerInputs
from flowmx.ops.formulas.expressions import Expr, number, placeholder, where
from flowmx.ops.kernels.cuda import dnn
from flowmx.ops.kernels.cuda.elementwise import Loop
from flowmx.ops.kernels.cuda.elementwise_source import memory_type
from flowmx.ops.kernels.cuda.layouts import (
    Format,
    as_images,
    empty,
    format_of,
    has_layout,
    in_layout,
    run_fallback,
    tensor,
)
from flowmx.ops.kernels.llvm import math_functions
from flowmx.ops.nn.windows import Geometry
from flowmx.ops.registry.dtypes import BY_NAME, DType
from flowmx.ops.registry.kernels import kernel
from flowmx.ops.registry.operators import Array, Run

if TYPE_CHECKING:
    from flowmx.ops.nn.convolution import Convolution, Deconvolution


def channels_last() -> frozenset[DType]:
    """Return the element types for which channels-last images are faster, since tensor cores read them this way."""
    return frozenset(BY_NAME[name] for name in _TENSOR_CORES if name in BY_NAME) if dnn.is_installed() else frozenset()


_TENSOR_CORES = ("float32", "float16", "bfloat16")
_TUNES = ("off", "limited_workspace", "fastest")


def _build(method: str, names: tuple[str, str], g: Geometry) -> Callable[[Any, list[Any]], Sequence[Any]]:
    """Return a function that adds the operation to a graph."""
    images = (1,) * (2 - len(g.kernel))  # sequences are images of height 1
    pads = [0] * len(images) + list(g.pad)
    places: dict[str, object] = {
        "pre_padding": pads, "post_padding": pads, "stride": [*images, *g.stride], "dilation": [*images, *g.dilate],
    }  # fmt: skip

    def build(graph: object, tensors: Sequence[object]) -> Sequence[Any]:
        operands: dict[str, object] = dict(zip(names, tensors, strict=True))
        return [getattr(graph, method)(**operands, **places)]

    return build


_METHODS = {
    "correlate": ("conv_fprop", ("image", "weight")),
    "spread": ("conv_dgrad", ("loss", "filter")),
    "weight_gradient": ("conv_wgrad", ("image", "loss")),
}


def convolve(run: Run, kind: str, op: object, g: Geometry, first: Array, second: Array, out: Array) -> bool:
    """Run one of the three convolutions; return False, without effect, if cuDNN cannot.

    Args:
        run: the context of the forward.
        kind: ``correlate`` of data and weight, ``spread`` of head and weight, or ``weight_gradient`` of data and head.
        op: the operator, for its tuning mode.
        g: the geometry of the windows.
        first: the first operand.
        second: the second operand.
        out: the result.
    """
    xp = run.xp
    is_supported = (
        first.dtype == second.dtype == out.dtype and memory_type(out.dtype) is not None and len(g.kernel) <= 3
    )
    if not is_supported or not (first.size and second.size and out.size):
        return False
    arrays = [as_images(each) for each in (first, second, out)]
    images = {"correlate": (0, 2), "spread": (0, 2), "weight_gradient": (0, 1)}[kind]
    form = format_of([arrays[index] for index in images])
    operands = [in_layout(xp, each, form) for each in arrays[:2]]
    target = arrays[2] if has_layout(arrays[2], form) else empty(xp, arrays[2].shape, out.dtype, form)
    request = _request(kind, op, g, form, [*operands, target])
    if not dnn.run(xp, request, [*operands, target]):
        return False
    if target is not arrays[2]:
        xp.copyto(arrays[2], target)
    return True


def _request(kind: str, op: Any, g: Geometry, form: Format, arrays: Sequence[Array]) -> dnn.GraphRequest:
    method, names = _METHODS[kind]
    tune = op.cudnn_tune or _TUNES[settings.get().cudnn_autotune_default]
    limit = dnn.NO_LIMIT if tune == "fastest" else op.workspace << 20
    first, second, out = [tensor(each, form) for each in arrays]
    return dnn.GraphRequest(_build(method, names, g), (kind, g), (first, second), (out,), limit, tune != "off")


# -- fused operations on the result ------------------------------------------------------------------------

_loops: dict[object, Loop] = {}


def finish(op: Any, run: Run, parts: LayerInputs, result: Array, out: Array) -> bool:
    """Compute ``activation(scale * result + bias + addend)``; return False, without effect, if no kernel can."""
    activation, activation_bound = getattr(op, "activation", ""), getattr(op, "activation_bound", 0.0)
    vector = [1] * out.ndim
    vector[op.bias_axis() % out.ndim] = -1
    vectors = [None if each is None else each.reshape(vector) for each in (parts.scale, parts.bias)] + [parts.addend]
    present = tuple(each is not None for each in vectors)
    key = (present, activation, activation_bound, out.dtype)
    loop = _loops.get(key)
    if loop is None:
        loop = _loops.setdefault(key, _epilogue_loop(present, activation, activation_bound, out.dtype))
    return loop.is_exact and loop.run(run.xp, [], [result, *[each for each in vectors if each is not None], out])


def _epilogue_loop(present: Sequence[bool], activation: str, activation_bound: float, dtype: DType) -> Loop:
    value, count = placeholder(0), 1
    for is_installed, is_scale in zip(present, (True, False, False), strict=True):
        if is_installed:
            value = value * placeholder(count) if is_scale else value + placeholder(count)
            count += 1
    return Loop([_activate(value, activation, activation_bound)], [dtype] * (count + 1))


def _activate(x: Expr, activation: str, activation_bound: float) -> Expr:
    if activation == "relu":
        return where(x < 0.0, 0.0, x)
    if activation == "leaky":
        return where(x < 0.0, x * number(activation_bound), x)
    if activation == "clip":
        return where(x < 0.0, 0.0, where(x > number(activation_bound), number(activation_bound), x))
    if activation == "swish":
        return x * math_functions.sigmoid(x)
    return x if not activation else math_functions.sigmoid(x) if activation == "sigmoid" else math_functions.tanh(x)


def _parts(op: Any, inputs: Sequence[Array]) -> LayerInputs:
    if hasattr(op, "parts"):
        parts: LayerInputs = op.parts(inputs)
        return parts
    return LayerInputs(inputs[0], inputs[1], None if op.no_bias else inputs[2], None, None)


# -- the kernels -------------------------------------------------------------------------------------------


@kernel("gpu", "Convolution")
@kernel("gpu", "_fused_Convolution")
def convolution(op: Convolution, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Compute the forward of a fused convolution."""
    parts, out = _parts(op, inputs), outputs[0]
    does_more = any(each is not None for each in parts[2:]) or bool(getattr(op, "activation", ""))
    # The addend may share the output's memory.
    result = empty(run.xp, out.shape, out.dtype, format_of([as_images(out)])) if parts.addend is not None else out
    is_done = convolve(run, "correlate", op, op.geometry, parts.data, parts.weight, result)
    if not is_done or (does_more and not finish(op, run, parts, result, out)):
        run_fallback(op, run, inputs, outputs)


def _gradient(kind: str, operands: tuple[int, int], geometry: Callable[..., Geometry]) -> Callable[..., None]:
    """Return a kernel that is one of the three convolutions."""

    def compute(op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        first, second = (inputs[index] for index in operands)
        if not convolve(run, kind, op, geometry(op, inputs, outputs), first, second, outputs[0]):
            run_fallback(op, run, inputs, outputs)

    return compute


def _geometry_of(op: Convolution, inputs: Sequence[Array], outputs: Sequence[Array]) -> Geometry:
    windows: Geometry = op.geometry
    return windows


def _deconvolution_geometry(which: str, index: int) -> Callable[..., Geometry]:
    """Return the function for a Deconvolution's geometry, from the size of its data: an input or the output."""

    def geometry(op: Deconvolution, inputs: Sequence[Array], outputs: Sequence[Array]) -> Geometry:
        windows: Geometry = op.fit({"input": inputs, "output": outputs}[which][index].shape[2:])[0]
        return windows

    return geometry


kernel("gpu", "_backward_Convolution_data")(_gradient("spread", (0, 1), _geometry_of))
kernel("gpu", "_backward_Convolution_weight")(_gradient("weight_gradient", (1, 0), _geometry_of))
kernel("gpu", "_backward_Deconvolution_data")(_gradient("correlate", (0, 1), _deconvolution_geometry("output", 0)))
kernel("gpu", "_backward_Deconvolution_weight")(
    _gradient("weight_gradient", (0, 1), _deconvolution_geometry("input", 1))
)


@kernel("gpu", "_backward_Convolution_weight_bias")
def convolution_weight_bias(op: Convolution, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Compute the gradients of weight and bias."""
    head, data = inputs
    if not convolve(run, "weight_gradient", op, op.geometry, data, head, outputs[0]):
        run_fallback(op, run, inputs, outputs)
        return
    head.sum(axis=(0, *range(2, head.ndim)), out=outputs[1])


@kernel("gpu", "Deconvolution")
def deconvolution(op: Deconvolution, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Compute the forward: the gradient of a convolution for its data."""
    windows = op.fit(inputs[0].shape[2:])[0]
    if not convolve(run, "spread", op, windows, inputs[0], inputs[1], outputs[0]):
        run_fallback(op, run, inputs, outputs)
    elif not op.no_bias:
        out, bias = outputs[0], inputs[2]
        run.xp.add(out, bias.reshape(-1, *(1,) * (out.ndim - 2)), out=out)
