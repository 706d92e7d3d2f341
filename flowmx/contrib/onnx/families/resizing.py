"""Resizing of images."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowmx.contrib.onnx.converters import Unsupported, exports, imports
from flowmx.contrib.onnx.dynamic_lengths import Length
from flowmx.contrib.onnx.node_export import NodeExport
from flowmx.contrib.onnx.node_import import NodeImport
from flowmx.ops.vision.bilinear_resize import interpolation
from flowmx.symbol import Symbol

# The modes of Resize that copy pixels, for integer factors.
NEAREST = {("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("half_pixel", "round_prefer_ceil")}


def resample(n: NodeExport, matrix: Callable[[int, int, bool], Any]) -> str:
    """Resample rows and columns with matrix products."""
    pairs = zip(n.out_dims()[2:], n.dims()[2:], strict=True)
    rows, columns = (
        matrix(
            n.fixed(result, "the output's size"),
            n.fixed(size, "the input's size"),
            getattr(n.op, "align_corners", False),
        )
        for result, size in pairs
    )
    return n.add("MatMul", n.add("MatMul", rows.astype(n.dtype()), n.inputs[0]), columns.T.astype(n.dtype()))


@exports("_contrib_BilinearResize2D")
def _bilinear(n: NodeExport) -> str:
    mode = "align_corners" if n.op.align_corners else "half_pixel"
    if any(length == 1 and size != 1 for length, size in zip(n.out_dims()[2:], n.dims()[2:], strict=True)):
        return resample(n, interpolation)  # a single line is the first one
    sizes = n.shape(n.out_dims())
    return n.add("Resize", n.inputs[0], "", "", sizes, mode="linear", coordinate_transformation_mode=mode)


@exports("UpSampling")
def _upsampling(n: NodeExport) -> str:
    op = n.op
    if op.sample_type == "bilinear":
        layer = op.deconvolution
        return n.add("ConvTranspose", *n.inputs, kernel_shape=layer.kernel, strides=layer.stride, pads=layer.pad * 2,
                     group=layer.num_group)  # fmt: skip
    parts = [_enlarge(n, index) for index in range(len(n.inputs))]
    if len(parts) == 1:
        return parts[0]
    return n.add("Sum", *parts) if op.multi_input_mode == "sum" else n.add("Concat", *parts, axis=1)


def _enlarge(n: NodeExport, position: int) -> str:
    first, size = (n.dims(index)[2] for index in (0, position))
    times = n.op.scale * (1 if first == size else n.fixed(first, "the size") // n.fixed(size, "the size"))
    scales = np.array([1, 1, times, times], np.float32)
    return n.add("Resize", n.inputs[position], "", scales, mode="nearest",
                 coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip


@imports("Resize", "Upsample")
def _resize(n: NodeImport) -> Symbol:
    mode, place = n.attr("mode", "nearest"), n.attr("coordinate_transformation_mode", "half_pixel")
    sizes = _target(n)
    old = n.dims()
    if mode == "nearest":
        times = {new // length for new, length in zip(sizes[2:], _fixed_lengths(n, old[2:]), strict=True)}
        exact = all(new % length == 0 for new, length in zip(sizes[2:], _fixed_lengths(n, old[2:]), strict=True))
        constants = (place, n.attr("nearest_mode", "round_prefer_floor")) in NEAREST
        if len(times) != 1 or not exact or not constants:
            raise Unsupported(
                f"it enlarges {old} to {sizes} ({place}), expected an integer factor and a mode that copies pixels"
            )
        return n.make("UpSampling", n.symbol(0), scale=times.pop(), sample_type="nearest")
    if mode != "linear" or place not in ("align_corners", "half_pixel", "pytorch_half_pixel"):
        raise Unsupported(f"its mode is {mode} with {place}, expected linear with align_corners or half_pixel")
    if n.rank() != 4 or old[1] != sizes[1]:
        raise Unsupported(f"it resizes {old} to {sizes}, expected images (batch, channels, height, width)")
    aligned = place == "align_corners"
    return n.make("_contrib_BilinearResize2D", n.symbol(0), height=sizes[2], width=sizes[3], align_corners=aligned)


def _fixed_lengths(n: NodeImport, lengths: Sequence[Length]) -> list[int]:
    return [n.fixed(length, "the size of its input") for length in lengths]


def _target(n: NodeImport) -> list[int]:
    """Return the lengths of the result; dynamic batch and channel lengths are 0."""
    old = [length if isinstance(length, int) else 0 for length in n.dims()]
    n.expect("axes", None)
    if n.has(3):
        first, second = n.known_value(3).trials
        return [int(a) if a == b else 0 for a, b in zip(first, second, strict=True)]
    scales = n.array(2)
    return [math.floor(length * scale) for length, scale in zip(old, scales, strict=True)]
