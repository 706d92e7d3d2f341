"""Pooling."""

from __future__ import annotations

import math

import numpy as np

from flowmx.contrib.onnx.converters import Unsupported, exports, imports
from flowmx.contrib.onnx.families.layers import pad, per_axis, spatial_pads
from flowmx.contrib.onnx.families.resizing import resample
from flowmx.contrib.onnx.node_export import NodeExport
from flowmx.contrib.onnx.node_import import NodeImport
from flowmx.ops.vision.bilinear_resize import averaging_matrix
from flowmx.symbol import Symbol

KINDS = {"max": "MaxPool", "avg": "AveragePool", "sum": "AveragePool", "lp": "LpPool"}


@exports("Pooling")
def _pooling(n: NodeExport) -> str:
    op, x, rank = n.op, n.inputs[0], n.rank()
    last = (0, *range(2, rank), 1)
    if op.channels_last:
        x = n.transpose(x, (0, rank - 1, *range(1, rank - 1)))
    result = _global(n, x) if op.global_pool else _windows(n, x)
    return n.transpose(result, last) if op.channels_last else result


def _global(n: NodeExport, x: str) -> str:
    op = n.op
    if op.pool_type == "sum":
        return n.reduce("ReduceSum", x, range(2, n.rank()))
    return n.add(f"Global{KINDS[op.pool_type]}", x, p=op.p_value if op.pool_type == "lp" else None)


def _windows(n: NodeExport, x: str) -> str:
    op, count = n.op, len(n.op.kernel)
    pads = per_axis(op.pad, 0, count)
    shape = {"kernel_shape": list(op.kernel), "strides": per_axis(op.stride, 1, count)}
    more = None
    if op.pooling_convention != "valid":
        more = [_overhang(n, index) for index in range(count)]
    after = [pad + extra for pad, extra in zip(pads, more or [0] * count, strict=True)]
    if any(pad >= k for pad, k in zip(after, op.kernel, strict=True)):
        raise Unsupported("its last window is entirely beyond the input, with pooling_convention 'full'")
    if op.pool_type == "max":
        return n.add("MaxPool", x, pads=pads + after, **shape)
    if op.pool_type == "lp":
        return n.add("LpPool", x, p=op.p_value, pads=pads + after, **shape)
    return _average(n, x, shape, pads, after)


def _overhang(n: NodeExport, index: int) -> int:
    """Return the number of elements by which the last window exceeds the padded input, if sizes are rounded up."""
    op = n.op
    kernel, stride = op.kernel[index], (op.stride or (1,) * 3)[index]
    what = f"the size of its input, which pooling_convention {op.pooling_convention!r} depends on,"
    size = n.fixed(op.spatial(n.dims())[index], what)
    result = n.fixed(op.spatial(n.out_dims())[index], what)
    missing: int = (result - 1) * stride + kernel - size - 2 * (op.pad or (0,) * 3)[index]
    return max(0, missing)


def _average(n: NodeExport, x: str, shape: dict[str, list[int]], pads: list[int], after: list[int]) -> str:
    """Append the nodes that compute means or sums. Elements beyond the padding never count."""
    op, size = n.op, math.prod(n.op.kernel)
    include = op.count_include_pad is not False
    if op.pool_type == "avg" and (pads == after or not include):
        return n.add("AveragePool", x, pads=pads + after, count_include_pad=int(include), **shape)
    mean = n.add("AveragePool", x, pads=pads + after, count_include_pad=1, **shape)
    sums = n.add("Mul", mean, n.number(size))
    if op.pool_type == "sum":
        return sums
    sizes = [n.fixed(length, "the size of its input") for length in op.spatial(n.dims())]
    lines = op.lines(sizes, [n.fixed(length, "the size of its output") for length in op.spatial(n.out_dims())])
    counts = np.ones((), n.dtype())
    for line in lines:
        counts = counts[..., None] * np.asarray(line.counts(True), n.dtype())
    return n.add("Div", sums, counts)


@imports("GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool")
def _import_global(n: NodeImport) -> Symbol:
    kind = {"GlobalMaxPool": "max", "GlobalAveragePool": "avg", "GlobalLpPool": "lp"}[n.kind]
    p = n.attr("p", 2) if kind == "lp" else None
    kernel = (1,) * (n.rank() - 2)
    return n.make("Pooling", n.symbol(0), pool_type=kind, global_pool=True, kernel=kernel, p_value=p)


@imports("MaxPool", "AveragePool", "LpPool")
def _import_windows(n: NodeImport) -> Symbol:
    kind = {"MaxPool": "max", "AveragePool": "avg", "LpPool": "lp"}[n.kind]
    kernel = list(n.attr("kernel_shape"))
    stride = list(n.attr("strides", [1] * len(kernel)))
    if any(dilation != 1 for dilation in n.attr("dilations", [])):
        raise Unsupported(f"its dilations are {list(n.attr('dilations'))}, expected 1")
    n.expect("storage_order", 0)
    x, pads = n.symbol(0), spatial_pads(n, kernel, stride, [1] * len(kernel))
    full, include = bool(n.attr("ceil_mode", 0)), bool(n.attr("count_include_pad", 0))
    pooled = {
        "pool_type": kind, "kernel": tuple(kernel), "stride": tuple(stride),
        "pooling_convention": "full" if full else "valid", "p_value": n.attr("p", 2) if kind == "lp" else None,
    }  # fmt: skip
    even = all(before == after < k for (before, after), k in zip(pads, kernel, strict=True))
    if even:
        count = include if kind == "avg" else None
        return n.make("Pooling", x, pad=tuple(before for before, _ in pads), count_include_pad=count, **pooled)
    if kind != "avg" or include:
        lowest = float(np.finfo(n.dtype()).min) if kind == "max" else 0.0
        return n.make("Pooling", pad(n, x, pads, lowest), **pooled)
    # Exclude padding: divide the mean over all elements by the mean of ones in the same windows.
    means = n.make("Pooling", pad(n, x, pads), **pooled)
    ones = n.make(
        "ones_like", n.make("slice_axis", n.make("slice_axis", x, axis=0, begin=0, end=1), axis=1, begin=0, end=1)
    )
    return n.make("broadcast_div", means, n.make("Pooling", pad(n, ones, pads), **pooled))


@exports("_contrib_AdaptiveAvgPooling2D")
def _adaptive(n: NodeExport) -> str:
    """Use equal windows if the output's size divides the input's, else a product with a matrix of averaging weights."""
    result = [n.fixed(length, "the output's size") for length in n.out_dims()[2:]]
    if result == [1, 1]:
        return n.add("GlobalAveragePool", n.inputs[0])
    sizes = [n.fixed(length, "the size of its input") for length in n.dims()[2:]]
    if all(size % out == 0 for size, out in zip(sizes, result, strict=True)):
        steps = [size // out for size, out in zip(sizes, result, strict=True)]
        return n.add("AveragePool", n.inputs[0], kernel_shape=steps, strides=steps)
    return resample(n, lambda out, size, _: averaging_matrix(out, size))
