"""Maxima over cells of regions: ROIPooling.

A region is a row [image, left, top, right, bottom] in pixels of the input image; ``spatial_scale`` converts to pixels
of the feature map. ``region_averages`` and ``region_samples`` have the operators that compute averages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import ClassVar

from flowmx.errors import IndexOutOfRange, ParameterError
from flowmx.ops.arrays.linear import Inferred, shape_of
from flowmx.ops.arrays.shape_arithmetic import expect_elements
from flowmx.ops.nn.common import computing_dtype, expect_rank, expect_shape, non_defaults
from flowmx.ops.registry.operators import (
    Array,
    Operator,
    Run,
    Shape,
    ShapeOrNone,
    describe,
    operator,
    required,
)
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensor, Tensors


class Regions(Operator):
    """Base of the operators with a grid of cells in each region."""

    arguments: ClassVar[tuple[str, ...]] = ("data", "rois")
    input_docs = describe(
        data="(batch, channels, height, width), float",
        rois="(regions, 5), the dtype of data; the image's number, left, top, right, bottom",
    )
    output_doc = "(regions, channels, *pooled_size), the dtype of data"
    numbers: ClassVar[int] = 5
    """The number of values of a region."""
    pooled_size: Shape | int
    spatial_scale: float

    def __post_init__(self) -> None:
        if len(self.grid) != 2:
            raise ParameterError(f"{self.name}: pooled_size is {self.pooled_size}, expected height and width")

    @cached_property
    def grid(self) -> Shape:
        """Return the rows and columns of cells."""
        return (self.pooled_size,) * 2 if isinstance(self.pooled_size, int) else self.pooled_size

    def channels(self, channels: int) -> int:
        """Return the channels of the output for data with this number of channels."""
        return channels

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data, rois = shapes
        expect_rank(self, "data", data, 4, 4)
        expect_elements(self, data, (2, 3))
        rois = expect_shape(self, "rois", rois, (-1, self.numbers))
        assert rois is not None
        channels = -1 if data is None or data[1] == -1 else self.channels(data[1])
        return [data, rois], [(rois[0], channels, *self.grid)]

    def images(self, rois: Array, count: int) -> Array:
        """Return the image of each region, of ``count`` images; negative images are skipped.

        Raises:
            IndexError: an image does not exist.
        """
        images = rois[:, 0].astype(int)
        if images.size and images.max() >= count:
            raise IndexOutOfRange(f"{self.name}: rois refer to image {images.max()}, but the data has {count} images")
        return images


def round_to_integers(xp: ArrayNamespace, places: Array) -> Array:
    """Round to integers, ties away from 0, as in C."""
    return xp.copysign(xp.floor(xp.abs(places) + places.dtype.type(0.5)), places)


def zeros_of_rois(F: Functions, inputs: Tensors) -> Tensor:
    """Return the gradient of the regions, zeros."""
    return F.zeros_like(shape_of(inputs, 1))


# -- maxima ------------------------------------------------------------------------------------------------


@operator("ROIPooling")
class ROIPooling(Regions):
    """Maxima in a grid of cells over each region (Girshick, "Fast R-CNN", 2015).

    Shapes: data (batch, channels, height, width), rois (regions, 5), output (regions, channels, *pooled_size).
    Regions are rounded to integer pixels, with sides of at least 1; cells outside the data are 0.
    """

    onnx = "MaxRoiPool"
    onnx_attributes: ClassVar[dict[str, str]] = {"pooled_shape": "pooled_size", "spatial_scale": "spatial_scale"}
    json_outputs = 2
    pooled_size: Shape = required("Height and width of the grid.", low=1)
    spatial_scale: float = required("Size of the data relative to the image.", low=0)

    def cells(self, xp: ArrayNamespace, rois: Array, size: Shape) -> list[tuple[Array, Array]]:
        """Return the first line of each cell and the line after its last (regions, cells), for both axes."""
        dtype = computing_dtype(rois.dtype)
        places = rois[:, 1:].astype(dtype) * dtype.type(self.spatial_scale)
        places = round_to_integers(xp, places)
        axes = []
        for count, length, low, high in ((self.grid[0], size[0], 1, 3), (self.grid[1], size[1], 0, 2)):
            start = places[:, low, None]
            step = xp.maximum(places[:, high, None] - start + 1, 1) / dtype.type(count)
            cell = xp.arange(count, dtype=dtype)
            first, stop = xp.floor(cell * step) + start, xp.ceil((cell + 1) * step) + start
            axes.append((xp.clip(first, 0, length).astype(int), xp.clip(stop, 0, length).astype(int)))
        return axes

    def regions(
        self, xp: ArrayNamespace, data: Array, rois: Array
    ) -> Iterator[tuple[int, int, list[slice], list[slice]]]:
        """Iterate over the regions with an image: number, image, lines of the rows and lines of the columns."""
        (tops, bottoms), (lefts, rights) = (
            tuple(lines.tolist() for lines in pair) for pair in self.cells(xp, rois, data.shape[2:])
        )
        for number, image in enumerate(self.images(rois, len(data)).tolist()):
            if image >= 0:
                yield number, image, _slices(tops[number], bottoms[number]), _slices(lefts[number], rights[number])

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (data, rois), out = run.xp, inputs, outputs[0]
        out.fill(0)
        # Channels last, so that a maximum over pixels reads long rows.
        pixels = xp.ascontiguousarray(data.transpose(0, 2, 3, 1))
        for number, image, rows, columns in self.regions(xp, data, rois):
            top = min(row.start for row in rows)
            lines = pixels[image, top : max(row.stop for row in rows)]
            narrow = xp.zeros((len(lines), len(columns), lines.shape[2]), data.dtype)
            for index, column in enumerate(columns):
                if column.start < column.stop:
                    lines[:, column].max(axis=1, out=narrow[:, index])
            for index, row in enumerate(rows):
                if row.start < row.stop:
                    out[number, :, index] = narrow[row.start - top : row.stop - top].max(axis=0).T

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [
            F.op("_backward_ROIPooling", heads[0], inputs[0], inputs[1], **non_defaults(self)),
            zeros_of_rois(F, inputs),
        ]


def _greatest(counts: Array) -> int:
    return int(counts.max()) if counts.size else 0


def _slices(first: list[int], stop: list[int]) -> list[slice]:
    return [slice(start, stop) for start, stop in zip(first, stop, strict=True)]


@operator("_backward_ROIPooling")
class BackwardROIPooling(ROIPooling, hidden=True):
    """Gradient of ROIPooling for its data; the first of several equal maxima in a cell gets it."""

    arguments = ("head", "data", "rois")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [shapes[1]]

    def maxima(self, xp: ArrayNamespace, data: Array, rois: Array) -> Iterator[tuple[int, int, int, Array, Array]]:
        """Iterate over the rows of cells: region, image, row, positions of the first maxima, and which cells are used.

        Positions (columns, channels) are indices into the flattened image with the channels last; the mask of used
        cells is (columns, 1).
        """
        pixels = xp.ascontiguousarray(data.transpose(0, 2, 3, 1))
        width, channels = pixels.shape[2:]
        channel = xp.arange(channels)
        for number, image, rows, columns in self.regions(xp, data, rois):
            top = min(row.start for row in rows)
            lines = pixels[image, top : max(row.stop for row in rows)]
            # For each line of the region and each column of cells: the maximum and its position.
            where = xp.zeros((len(lines), len(columns), channels), int)
            for index, column in enumerate(columns):
                if column.start < column.stop:
                    where[:, index] = lines[:, column].argmax(axis=1) + column.start
            best = xp.take_along_axis(lines, where, axis=1)
            is_used = xp.array([column.start < column.stop for column in columns])
            for index, row in enumerate(rows):
                if row.start >= row.stop:
                    continue
                line = best[row.start - top : row.stop - top].argmax(axis=0) + (row.start - top)
                column = xp.take_along_axis(where, line[None], axis=0)[0]
                yield number, image, index, ((line + top) * width + column) * channels + channel, is_used[:, None]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (head, data, rois), out = run.xp, inputs, outputs[0]
        count, channels, height, width = data.shape
        total = xp.zeros((count, height, width, channels), computing_dtype(data.dtype))
        for number, image, index, where, is_used in self.maxima(xp, data, rois):
            values = head[number, :, index].T * is_used
            xp.add.at(total[image].reshape(-1), where.reshape(-1), values.reshape(-1))
        xp.copyto(out, total.transpose(0, 3, 1, 2), casting="unsafe")

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_ROIPooling_at_maxima", heads[0], inputs[1], inputs[2], **non_defaults(self)), None, None]


@operator("_ROIPooling_at_maxima")
class ROIPoolingAtMaxima(BackwardROIPooling):
    """Values gathered at the first maximum of each cell of the data."""

    arguments = ("values", "data", "rois")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        (data, rois), outputs = ROIPooling.infer_shape(self, shapes[1:])
        return [data, data, rois], outputs

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (values, data, rois), out = run.xp, inputs, outputs[0]
        pixels = xp.ascontiguousarray(values.transpose(0, 2, 3, 1))
        out.fill(0)
        for number, image, index, where, is_used in self.maxima(xp, data, rois):
            out[number, :, index] = (pixels[image].reshape(-1)[where] * is_used).T

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_backward_ROIPooling", heads[0], inputs[1], inputs[2], **non_defaults(self)), None, None]
