"""Regions of interest, grid sampling, and the preprocessing of images."""

from __future__ import annotations

import numpy as np

from flowmx.contrib.onnx.converters import Unsupported, exports, imports
from flowmx.contrib.onnx.node_export import NodeExport
from flowmx.contrib.onnx.node_import import NodeImport
from flowmx.symbol import Symbol


@exports("_contrib_ROIAlign")
def _roi_align(n: NodeExport) -> str:
    op, (data, rois) = n.op, n.inputs
    if op.position_sensitive:
        raise Unsupported("its position_sensitive is True, expected False")
    if op.aligned and n.opset < 16:
        raise Unsupported(f"its aligned is True, which needs opset 16, not {n.opset}: set opset_version")
    height, width = op.pooled_size if len(op.pooled_size) == 2 else op.pooled_size * 2
    images = n.cast(n.add("Squeeze", n.slice(rois, 1, 0, 1), [1]), np.int64)
    mode = None if n.opset < 16 else "half_pixel" if op.aligned else "output_half_pixel"
    return n.add("RoiAlign", data, n.slice(rois, 1, 1, 5), images, mode="avg", output_height=height,
                 output_width=width, sampling_ratio=max(0, op.sample_ratio), spatial_scale=op.spatial_scale,
                 coordinate_transformation_mode=mode)  # fmt: skip


@imports("RoiAlign")
def _import_roi_align(n: NodeImport) -> Symbol:
    n.expect("mode", "avg")
    aligned = n.attr("coordinate_transformation_mode", "half_pixel" if n.opset >= 16 else "") == "half_pixel"
    dtype = n.dtype(1).name
    images = n.make("expand_dims", n.make("Cast", n.symbol(2), dtype=dtype), axis=1)
    rois = n.make("Concat", images, n.symbol(1), dim=1)
    return n.make("_contrib_ROIAlign", n.symbol(0), rois, spatial_scale=n.attr("spatial_scale", 1.0),
                  pooled_size=(n.attr("output_height", 1), n.attr("output_width", 1)),
                  sample_ratio=n.attr("sampling_ratio", 0) or -1, aligned=aligned)  # fmt: skip


@imports("GridSample")
def _grid_sample(n: NodeImport) -> Symbol:
    """Convert positions: -1 and 1 are the centres of the outer pixels, or their edges without ``align_corners``."""
    n.expect("mode", "bilinear", "linear")
    n.expect("padding_mode", "zeros", "border")
    if n.rank() != 4:
        raise Unsupported(f"its input has {n.rank()} axes, expected 4")
    grid = n.make("transpose", n.symbol(1), axes=(0, 3, 1, 2))
    if not n.attr("align_corners", 0):
        sizes = [n.fixed(length, "the size of its input") for length in n.dims()[:1:-1]]
        if 1 in sizes:
            raise Unsupported("its input is one pixel wide or high, expected more")
        scale = np.array([size / (size - 1) for size in sizes], n.dtype()).reshape(1, 2, 1, 1)
        grid = n.make("broadcast_mul", grid, n.parameter(scale, "scale"))
    if n.attr("padding_mode", "zeros") == "border":
        grid = n.make("clip", grid, a_min=-1, a_max=1)
    return n.make("BilinearSampler", n.symbol(0), grid)


@exports("_image_to_tensor")
def _to_tensor(n: NodeExport) -> str:
    """Scale 8-bit values to the range [0, 1], and move the channels to the front."""
    rank = n.rank()
    x = n.add("Div", n.cast(n.inputs[0], n.out_dtype()), np.asarray(255, n.out_dtype()))
    return n.transpose(x, [*range(rank - 3), rank - 1, rank - 3, rank - 2])


@exports("_image_normalize")
def _normalize(n: NodeExport) -> str:
    mean, std = (np.asarray(values, n.dtype()).reshape(-1, 1, 1) for values in (n.op.mean, n.op.std))
    return n.add("Div", n.add("Sub", n.inputs[0], mean), std)


@exports("_image_flip_left_right", "_image_flip_top_bottom")
def _flip(n: NodeExport) -> str:
    axis = n.rank() - (2 if n.op.name.endswith("right") else 3)
    return n.slice(n.inputs[0], axis, -1, -(2**31 - 1), -1)


@exports("_image_crop")
def _image_crop(n: NodeExport) -> str:
    op, rank = n.op, n.rank()
    return n.add("Slice", n.inputs[0], [op.y, op.x], [op.y + op.height, op.x + op.width], [rank - 3, rank - 2], [1, 1])
