"""Spatial transformers (Jaderberg et al., 2015): grids of positions, and images sampled there.

A grid (batch, 2, height, width) holds x, then y, each from -1 (the first pixel's centre) to 1 (the last one's).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from flowmx.errors import ParameterError
from flowmx.ops.arrays.linear import Inferred
from flowmx.ops.arrays.shape_arithmetic import expect_elements
from flowmx.ops.nn.common import computing_dtype, expect_rank, expect_shape, non_defaults
from flowmx.ops.registry.operators import (
    Array,
    DType,
    Operator,
    Run,
    Shape,
    ShapeOrNone,
    describe,
    operator,
    option,
    required,
)
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensors
from flowmx.ops.registry.traits import BatchWise
from flowmx.ops.vision.bilinear_sampling import Corners, corners, images_of, pixels_of


def _line(xp: ArrayNamespace, length: int, dtype: object) -> Array:
    """Return the positions of an axis's pixels in a grid; as in MXNet, an axis of one pixel has it at -1."""
    return xp.arange(length, dtype=dtype) * (2 / max(1, length - 1)) - 1


def _affine_base(xp: ArrayNamespace, size: Shape, dtype: object) -> Array:
    """Return the homogeneous coordinates of an image's pixels, (3, height·width): rows x, y and 1."""
    height, width = size
    y, x = xp.meshgrid(_line(xp, height, dtype), _line(xp, width, dtype), indexing="ij")
    return xp.stack([x.ravel(), y.ravel(), xp.ones(height * width, dtype)])


def _expect_target(op: Operator, target: Shape) -> None:
    if len(target) != 2 or min(target) < 1:
        raise ParameterError(f"{op.name}: target_shape is {target}, expected two lengths above 0")


@operator("GridGenerator")
class GridGenerator(Operator, input_named=True):
    """A grid for BilinearSampler, from affine transformations or from the displacement of each pixel.

    Shapes: for ``affine`` data (batch, 6), the rows of 2x3 matrices, and output (batch, 2, *target_shape); for
    ``warp`` data and output (batch, 2, height, width), the data in pixels.
    """

    input_docs = describe(data="(batch, 6) for 'affine', (batch, 2, height, width) for 'warp', float")
    output_doc = "(batch, 2, *target_shape) for 'affine', the shape of data for 'warp'; the dtype of data"
    json_outputs = 2
    transform_type: Literal["affine", "warp"] = required("The kind of the data.")
    target_shape: Shape = option((0, 0), "Height and width of the grid, for affine.", low=0)

    def __post_init__(self) -> None:
        if self.transform_type == "affine":
            _expect_target(self, self.target_shape)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data = shapes[0]
        if self.transform_type == "affine":
            data = expect_shape(self, "data", data, (-1, 6))
            assert data is not None
            return [data], [(data[0], 2, *self.target_shape)]
        data = expect_shape(self, "data", data, (-1, 2, -1, -1))
        return [data], [data]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, data, out = run.xp, inputs[0], outputs[0]
        dtype = computing_dtype(out.dtype)
        if self.transform_type == "affine":
            base = _affine_base(xp, self.target_shape, dtype)
            xp.copyto(out, (data.astype(dtype).reshape(-1, 3) @ base).reshape(out.shape), casting="unsafe")
            return
        for axis, part in ((3, 0), (2, 1)):
            step = 2 / max(1, data.shape[axis] - 1)
            line = _line(xp, data.shape[axis], dtype)
            out[:, part] = data[:, part] * dtype.type(step) + (line if axis == 3 else line[:, None])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_backward_GridGenerator", heads[0], **non_defaults(self))]


@operator("_backward_GridGenerator")
class BackwardGridGenerator(GridGenerator, hidden=True):
    """Gradient of GridGenerator."""

    arguments = ("head",)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        head = shapes[0]
        return shapes, [None if head is None else (head[0], 6) if self.transform_type == "affine" else head]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, head, out = run.xp, inputs[0], outputs[0]
        dtype = computing_dtype(out.dtype)
        if self.transform_type == "affine":
            base = _affine_base(xp, self.target_shape, dtype)
            xp.copyto(
                out, (head.reshape(-1, base.shape[1]).astype(dtype) @ base.T).reshape(out.shape), casting="unsafe"
            )
            return
        for axis, part in ((3, 0), (2, 1)):
            out[:, part] = head[:, part] * dtype.type(2 / max(1, head.shape[axis] - 1))

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        raise NotImplementedError  # no second order


def _corners(run: Run, grid: Array, data: Shape) -> Corners:
    """Return the pixels around a grid's positions in data of this shape."""
    xp, (batch, _, height, width) = run.xp, data
    grid = grid.astype(computing_dtype(grid.dtype), copy=False)
    x, y = ((grid[:, n] + 1) * ((length - 1) / 2) for n, length in enumerate((width, height)))
    image = xp.arange(batch).repeat(grid.shape[2] * grid.shape[3])
    return corners(xp, y.reshape(-1), x.reshape(-1), image, height, width)


def sample(run: Run, data: Array, grid: Array, out: Array) -> None:
    """Sample images at a grid's positions; 0 outside."""
    dtype = computing_dtype(data.dtype)
    values = _corners(run, grid, data.shape).sample(pixels_of(data).astype(dtype, copy=False))
    run.xp.copyto(out, images_of(values, out.shape), casting="unsafe")


@operator("BilinearSampler")
class BilinearSampler(Operator, batch_wise=BatchWise.EACH):
    """Images sampled at the positions of a grid, by bilinear interpolation; 0 outside.

    Shapes: data (batch, channels, height, width), grid (batch, 2, out height, out width), output
    (batch, channels, out height, out width).
    """

    arguments = ("data", "grid")
    input_docs = describe(
        data="(batch, channels, height, width), float",
        grid="(batch, 2, out height, out width), the dtype of data; x and y from -1 to 1",
    )
    output_doc = "(batch, channels, out height, out width), the dtype of data"
    json_outputs = 2
    cudnn_off: bool | None = option(None, "Ignored.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data, grid = shapes
        expect_rank(self, "data", data, 4, 4)
        expect_elements(self, data, (2, 3))
        grid = expect_shape(self, "grid", grid, (-1 if data is None else data[0], 2, -1, -1))
        assert grid is not None
        channels = -1 if data is None else data[1]
        return [data, grid], [(grid[0], channels, *grid[2:])]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        sample(run, inputs[0], inputs[1], outputs[0])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return list(F.op("_backward_BilinearSampler", heads[0], *list(inputs)))


@operator("_backward_BilinearSampler")
class BackwardBilinearSampler(Operator, hidden=True):
    """Gradients of BilinearSampler for data and grid."""

    arguments = ("head", "data", "grid")
    output_names = ("data_grad", "grid_grad")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, shapes[1:]

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        return dtypes, dtypes[1:]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (head, data, grid) = run.xp, inputs
        dtype = computing_dtype(data.dtype)
        neighbors = _corners(run, grid, data.shape)
        values, pixels = (pixels_of(images).astype(dtype, copy=False) for images in (head, data))
        total = xp.zeros(pixels.shape, dtype)
        neighbors.scatter_gradient(xp, values, total)
        xp.copyto(outputs[0], images_of(total, data.shape), casting="unsafe")
        by_y, by_x = neighbors.position_gradients(xp, values, pixels)
        for n, (slope, length) in enumerate(((by_x, data.shape[3]), (by_y, data.shape[2]))):
            outputs[1][:, n] = slope.reshape(len(grid), *grid.shape[2:]) * dtype.type((length - 1) / 2)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        raise NotImplementedError  # no second order


@operator("SpatialTransformer")
class SpatialTransformer(Operator, batch_wise=BatchWise.EACH):
    """Images under affine transformations: GridGenerator and BilinearSampler in one.

    Shapes: data (batch, channels, height, width), loc (batch, 6), output (batch, channels, *target_shape).
    """

    arguments = ("data", "loc")
    input_docs = describe(
        data="(batch, channels, height, width), float",
        loc="(batch, 6), the dtype of data; the rows of 2x3 matrices",
    )
    output_doc = "(batch, channels, *target_shape), the dtype of data"
    output_names = ("output", "grid")
    outputs_visible = 1
    json_outputs = 3
    target_shape: Shape = option((0, 0), "Height and width of the output.", low=0)
    transform_type: Literal["affine"] = required("The transformation.")
    sampler_type: Literal["bilinear"] = required("The interpolation.")
    cudnn_off: bool | None = option(None, "Ignored.")

    def __post_init__(self) -> None:
        _expect_target(self, self.target_shape)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data, loc = shapes
        expect_rank(self, "data", data, 4, 4)
        expect_elements(self, data, (1, 2, 3))
        loc = expect_shape(self, "loc", loc, (-1 if data is None else data[0], 6))
        assert loc is not None
        channels = -1 if data is None else data[1]
        return [data, loc], [(loc[0], channels, *self.target_shape), (loc[0], 2, *self.target_shape)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        grids = GridGenerator.create(transform_type="affine", target_shape=self.target_shape)
        grids.forward(run, inputs[1:], outputs[1:])
        sample(run, inputs[0], outputs[1], outputs[0])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        data, grid = F.op("_backward_BilinearSampler", heads[0], inputs[0], outputs[1])
        loc = F.op("_backward_GridGenerator", grid, transform_type="affine", target_shape=self.target_shape)
        return [data, loc]
