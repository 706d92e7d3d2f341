"""Layers with weights: products, convolutions, embeddings."""

from __future__ import annotations

import math
from typing import Any

from flowmx.contrib.onnx.converters import Unsupported, exports, imports
from flowmx.contrib.onnx.node_export import NodeExport
from flowmx.contrib.onnx.node_import import NodeImport
from flowmx.ops.registry.operators import Shape
from flowmx.symbol import Symbol


@exports("FullyConnected")
def _fully_connected(n: NodeExport) -> str:
    op, (x, weight, *bias) = n.op, n.inputs
    if op.flatten or n.rank() == 2:
        flat = x if n.rank() == 2 else n.add("Flatten", x, axis=1)
        return n.add("Gemm", flat, weight, *bias, transB=1)
    product = n.add("MatMul", x, n.add("Transpose", weight, perm=[1, 0]))
    return n.add("Add", product, *bias) if bias else product


@imports("Gemm")
def _gemm(n: NodeImport) -> Symbol:
    """Convert to a layer if the weight is a constant and nothing is scaled, else to products and sums."""
    alpha, beta = n.attr("alpha", 1.0), n.attr("beta", 1.0)
    bias = n.array(2) if n.is_known(2) else None
    fits = alpha == 1 and not n.attr("transA", 0) and n.is_known(1) and (not n.has(2) or bias is not None)
    count = n.dims(1)[0 if n.attr("transB", 0) else 1]
    if fits and (bias is None or bias.shape in ((count,), (1, count))):
        weight = n.symbol(1) if n.attr("transB", 0) else n.transposed(1, "weight")
        options = {"num_hidden": count, "flatten": False}
        if bias is None:
            return n.make("FullyConnected", n.symbol(0), weight, no_bias=True, **options)
        plain = beta == 1 and bias.ndim == 1
        vector = n.symbol(2) if plain else n.parameter(bias.reshape(-1) * bias.dtype.type(beta), "bias")
        return n.make("FullyConnected", n.symbol(0), weight, vector, **options)
    product = n.make("dot", n.symbol(0), n.symbol(1), transpose_a=n.attr("transA"), transpose_b=n.attr("transB"))
    product = product if alpha == 1 else n.make("_mul_scalar", product, scalar=alpha)
    if not n.has(2):
        return product
    addend = n.symbol(2) if beta == 1 else n.make("_mul_scalar", n.symbol(2), scalar=beta)
    return n.make("broadcast_add", product, addend)


# -- convolutions ------------------------------------------------------------------------------------------


def per_axis(values: Shape, default: int, count: int) -> list[int]:
    """Return a parameter for each spatial axis."""
    return list(values) if values else [default] * count


def _window(n: NodeExport) -> dict[str, object]:
    op, count = n.op, len(n.op.kernel)
    if op.layout not in (None, "NCW", "NCHW", "NCDHW"):
        raise Unsupported(f"its layout is {op.layout}, expected the channels on axis 1")
    return {
        "kernel_shape": list(op.kernel), "strides": per_axis(op.stride, 1, count),
        "dilations": per_axis(op.dilate, 1, count), "group": op.num_group,
    }  # fmt: skip


@exports("Convolution")
def _convolution(n: NodeExport) -> str:
    return n.add("Conv", *n.inputs, pads=per_axis(n.op.pad, 0, len(n.op.kernel)) * 2, **_window(n))


@exports("Deconvolution")
def _deconvolution(n: NodeExport) -> str:
    op, window = n.op, _window(n)
    before, after = per_axis(op.pad, 0, len(op.kernel)), per_axis(op.pad, 0, len(op.kernel))
    adjust = per_axis(op.adj, 0, len(op.kernel))
    if op.target_shape:
        sizes = [n.fixed(length, "the size of its input") for length in n.dims()[2:]]
        before, after, adjust = _pads_for(op.target_shape, sizes, window)
    return n.add("ConvTranspose", *n.inputs, pads=before + after, output_padding=adjust, **window)


def _pads_for(target: Shape, sizes: list[int], window: dict[str, Any]) -> tuple[list[int], list[int], list[int]]:
    """Return the padding for a target shape: half on each side, rounded up, and the correction at the end."""
    before, adjust = [], []
    for length, size, kernel, stride, dilate in zip(
        target, sizes, window["kernel_shape"], window["strides"], window["dilations"], strict=True
    ):
        full = (size - 1) * stride + dilate * (kernel - 1) + 1
        excess = full - length
        before.append((excess + 1) // 2)
        adjust.append(excess % 2)
    return before, before, adjust


def spatial_pads(n: NodeImport, kernel: list[int], strides: list[int], dilations: list[int]) -> list[tuple[int, int]]:
    """Return the padding (before, after) of each spatial axis.

    Raises:
        Unsupported: it depends on a varying size of the input.
    """
    count, auto = len(kernel), n.attr("auto_pad", "NOTSET")
    if auto == "VALID":
        return [(0, 0)] * count
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        pads = []
        for length, k, stride, dilate in zip(n.dims()[2:], kernel, strides, dilations, strict=True):
            size = n.fixed(length, "the size of its input, on which the padding depends,")
            total = max(0, (math.ceil(size / stride) - 1) * stride + dilate * (k - 1) + 1 - size)
            less, more = total // 2, total - total // 2
            pads.append((less, more) if auto == "SAME_UPPER" else (more, less))
        return pads
    values = list(n.attr("pads", [0] * (2 * count)))
    return list(zip(values[:count], values[count:], strict=True))


def pad(n: NodeImport, symbol: Symbol, pads: list[tuple[int, int]], value: float = 0.0) -> Symbol:
    """Pad the spatial axes of a symbol."""
    widths = (0, 0, 0, 0, *(width for pair in pads for width in pair))
    return n.make("Pad", symbol, mode="constant", pad_width=widths, constant_value=value)


def weight_and_bias(n: NodeImport) -> list[Symbol]:
    """Return the second and third inputs."""
    return [n.symbol(index) for index in (1, 2) if n.has(index)]


@imports("Conv")
def _conv(n: NodeImport) -> Symbol:
    return convolution(n, n.symbol(0), *weight_and_bias(n))


def convolution(n: NodeImport, x: Symbol, weight: Symbol, *bias: Symbol) -> Symbol:
    """Create a convolution with the attributes of a node."""
    weights = n.dims(weight)
    kernel = [n.fixed(length, "the size of its weight") for length in weights[2:]]
    count = len(kernel)
    stride, dilate = list(n.attr("strides", [1] * count)), list(n.attr("dilations", [1] * count))
    pads = spatial_pads(n, kernel, stride, dilate)
    if any(before != after for before, after in pads):
        x, pads = pad(n, x, pads), [(0, 0)] * count
    return n.make(
        "Convolution", x, weight, *bias, kernel=tuple(kernel), stride=tuple(stride), dilate=tuple(dilate),
        pad=tuple(before for before, _ in pads), num_filter=weights[0], num_group=n.attr("group", 1),
        no_bias=not bias,
    )  # fmt: skip


@imports("ConvTranspose")
def _conv_transpose(n: NodeImport) -> Symbol:
    weights = n.dims(1)
    kernel = [n.fixed(length, "the size of its weight") for length in weights[2:]]
    count, groups = len(kernel), n.attr("group", 1)
    stride, dilate = list(n.attr("strides", [1] * count)), list(n.attr("dilations", [1] * count))
    adjust = list(n.attr("output_padding", [0] * count))
    if n.attr("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise Unsupported(f"its auto_pad is {n.attr('auto_pad')}, expected pads")
    target = n.attr("output_shape")
    pads = [(0, 0)] * count if target else spatial_pads(n, kernel, stride, dilate)
    even = all(before == after for before, after in pads)
    result = n.make(
        "Deconvolution", n.symbol(0), *weight_and_bias(n), kernel=tuple(kernel), stride=tuple(stride),
        dilate=tuple(dilate), pad=tuple(before for before, _ in pads) if even else None,
        adj=tuple(adjust) if even and any(adjust) else None, target_shape=tuple(target) if target else None,
        num_filter=n.fixed(weights[1], "the size of its weight") * groups, num_group=groups, no_bias=not n.has(2),
    )  # fmt: skip
    if even:
        return result
    for axis, ((before, after), more) in enumerate(zip(pads, adjust, strict=True), start=2):
        if more > after:
            raise Unsupported(f"its pads are {pads} with output_padding {adjust}, expected equal pads before and after")
        end = more - after
        result = n.make("slice_axis", result, axis=axis, begin=before, end=end if end else None)
    return result


# -- embeddings --------------------------------------------------------------------------------------------


@exports("Embedding", "_contrib_SparseEmbedding")
def _embedding(n: NodeExport) -> str:
    return n.add("Gather", n.inputs[1], n.as_int64(0), axis=0)
