"""Pooling of regions of interest: ROIPooling takes maxima, ROIAlign averages of interpolated samples.

A region is a row [image, left, top, right, bottom] in the input picture's pixels; ``spatial_scale`` brings it to
those of the feature map.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from flowmx.errors import DataError, IndexOutOfRange, ParameterError, ShapeError
from flowmx.ops.arrays.linear import Inferred, shape_of
from flowmx.ops.arrays.reshaping import expect_elements
from flowmx.ops.nn.common import bound, computing_dtype, expect_rank, expect_shape
from flowmx.ops.registry.operators import (
    Array,
    Operator,
    Run,
    Shape,
    ShapeOrNone,
    described,
    operator,
    option,
    required,
)
from flowmx.ops.registry.traits import Precision

_PART = 1 << 22
"""Numbers to hold at a time between the two axes of ROIAlign."""


class _Regions(Operator):
    arguments: ClassVar[tuple[str, ...]] = ("data", "rois")
    input_docs = described(
        data="(batch, channels, height, width), float",
        rois="(regions, 5), the dtype of data; the image's number, left, top, right, bottom",
    )
    output_doc = "(regions, channels, *pooled_size), the dtype of data"
    pooled_size: Shape
    spatial_scale: float

    def __post_init__(self) -> None:
        if len(self.pooled_size) != 2:
            raise ParameterError(f"{self.name}: pooled_size is {self.pooled_size}, expected height and width")

    def channels(self, channels: int) -> int:
        """Channels of the output for data of so many."""
        return channels

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data, rois = shapes
        expect_rank(self, "data", data, 4, 4)
        expect_elements(self, data, (2, 3))
        rois = expect_shape(self, "rois", rois, (-1, 5))
        assert rois is not None
        channels = -1 if data is None or data[1] == -1 else self.channels(data[1])
        return [data, rois], [(rois[0], channels, *self.pooled_size)]

    def images(self, rois: Array, count: int) -> Array:
        """The image of each region, of so many; those below 0 are left out.

        Raises:
            IndexError: there is no such image.
        """
        images = rois[:, 0].astype(int)
        if images.size and images.max() >= count:
            raise IndexOutOfRange(f"{self.name}: rois name the image {images.max()}, but the data has {count}")
        return images


# -- maxima ------------------------------------------------------------------------------------------------


@operator("ROIPooling")
class ROIPooling(_Regions):
    """The maxima of a grid of cells over each region (Girshick, "Fast R-CNN", 2015).

    Shapes: data (batch, channels, height, width), rois (regions, 5), output (regions, channels, *pooled_size).
    Regions are rounded to whole pixels and are at least one wide; cells outside the data are 0.
    """

    onnx = "MaxRoiPool"
    onnx_attributes: ClassVar[dict[str, str]] = {"pooled_shape": "pooled_size", "spatial_scale": "spatial_scale"}
    pooled_size: Shape = required("Height and width of the grid.", low=1)
    spatial_scale: float = required("Size of the data as a multiple of the picture's.", low=0)

    def counted_outputs(self) -> int:
        return 2

    def cells(self, xp: Any, rois: Array, size: Shape) -> list[tuple[Any, Any]]:
        """For both axes the first line of each cell, and the one behind its last (regions, cells)."""
        dtype = computing_dtype(rois.dtype)
        places = rois[:, 1:].astype(dtype) * dtype.type(self.spatial_scale)
        # Halves are rounded away from 0, as C does.
        places = xp.copysign(xp.floor(xp.abs(places) + dtype.type(0.5)), places)
        made = []
        for count, length, low, high in ((self.pooled_size[0], size[0], 1, 3), (self.pooled_size[1], size[1], 0, 2)):
            start = places[:, low, None]
            step = xp.maximum(places[:, high, None] - start + 1, 1) / dtype.type(count)
            cell = xp.arange(count, dtype=dtype)
            first, behind = xp.floor(cell * step) + start, xp.ceil((cell + 1) * step) + start
            made.append(tuple(xp.clip(each, 0, length).astype(int) for each in (first, behind)))
        return made

    def regions(self, xp: Any, data: Array, rois: Array) -> Iterator[tuple[int, int, list[slice], list[slice]]]:
        """For each region that has an image: its number, the image, the lines of its rows and of its columns."""
        (tops, bottoms), (lefts, rights) = (
            tuple(each.tolist() for each in pair) for pair in self.cells(xp, rois, data.shape[2:])
        )
        for number, image in enumerate(self.images(rois, len(data)).tolist()):
            if image >= 0:
                yield number, image, _slices(tops[number], bottoms[number]), _slices(lefts[number], rights[number])

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (data, rois), out = run.xp, inputs, outputs[0]
        out.fill(0)
        # Channels last: a maximum over pixels is then one over long rows.
        pixels = xp.ascontiguousarray(data.transpose(0, 2, 3, 1))
        for number, image, rows, columns in self.regions(xp, data, rois):
            top = min(row.start for row in rows)
            lines = pixels[image, top : max(row.stop for row in rows)]
            narrow = xp.zeros((len(lines), len(columns), lines.shape[2]), data.dtype)
            for place, column in enumerate(columns):
                if column.start < column.stop:
                    lines[:, column].max(axis=1, out=narrow[:, place])
            for place, row in enumerate(rows):
                if row.start < row.stop:
                    out[number, :, place] = narrow[row.start - top : row.stop - top].max(axis=0).T

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [F.op("_backward_ROIPooling", heads[0], inputs[0], inputs[1], **bound(self)), _none(F, inputs)]


def _none(F: Any, inputs: Any) -> Any:
    """The gradient of regions."""
    return F.zeros_like(shape_of(inputs, 1))


def _greatest(counts: Array) -> int:
    return int(counts.max()) if counts.size else 0


def _slices(first: list[int], behind: list[int]) -> list[slice]:
    return [slice(start, stop) for start, stop in zip(first, behind, strict=True)]


@operator("_backward_ROIPooling")
class BackwardROIPooling(ROIPooling, hidden=True):
    """Gradient of ROIPooling for its data; of several equal maxima in a cell the first has it."""

    arguments = ("head", "data", "rois")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [shapes[1]]

    def maxima(self, xp: Any, data: Array, rois: Array) -> Iterator[tuple[int, int, int, Array, Array]]:
        """For each row of cells: its region, the image, the row, where its first maxima are, and which cells count.

        Places (columns, channels) are those in the flattened image with the channels last; columns count as (columns,
        1).
        """
        pixels = xp.ascontiguousarray(data.transpose(0, 2, 3, 1))
        width, channels = pixels.shape[2:]
        channel = xp.arange(channels)
        for number, image, rows, columns in self.regions(xp, data, rois):
            top = min(row.start for row in rows)
            lines = pixels[image, top : max(row.stop for row in rows)]
            # In each line of the region and each column of cells: the maximum, and where it is.
            where = xp.zeros((len(lines), len(columns), channels), int)
            for place, column in enumerate(columns):
                if column.start < column.stop:
                    where[:, place] = lines[:, column].argmax(axis=1) + column.start
            best = xp.take_along_axis(lines, where, axis=1)
            used = xp.array([column.start < column.stop for column in columns])
            for place, row in enumerate(rows):
                if row.start >= row.stop:
                    continue
                line = best[row.start - top : row.stop - top].argmax(axis=0) + (row.start - top)
                column = xp.take_along_axis(where, line[None], axis=0)[0]
                yield number, image, place, ((line + top) * width + column) * channels + channel, used[:, None]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (head, data, rois), out = run.xp, inputs, outputs[0]
        count, channels, height, width = data.shape
        total = xp.zeros((count, height, width, channels), computing_dtype(data.dtype))
        for number, image, place, where, used in self.maxima(xp, data, rois):
            values = head[number, :, place].T * used
            xp.add.at(total[image].reshape(-1), where.reshape(-1), values.reshape(-1))
        xp.copyto(out, total.transpose(0, 3, 1, 2), casting="unsafe")

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [F.op("_ROIPooling_at_maxima", heads[0], inputs[1], inputs[2], **bound(self)), None, None]


@operator("_ROIPooling_at_maxima")
class ROIPoolingAtMaxima(BackwardROIPooling):
    """Other values where each cell of the data has its first maximum."""

    arguments = ("values", "data", "rois")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        (data, rois), outputs = ROIPooling.infer_shape(self, shapes[1:])
        return [data, data, rois], outputs

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (values, data, rois), out = run.xp, inputs, outputs[0]
        pixels = xp.ascontiguousarray(values.transpose(0, 2, 3, 1))
        out.fill(0)
        for number, image, place, where, used in self.maxima(xp, data, rois):
            out[number, :, place] = (pixels[image].reshape(-1)[where] * used).T

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [F.op("_backward_ROIPooling", heads[0], inputs[1], inputs[2], **bound(self)), None, None]


# -- averages ----------------------------------------------------------------------------------------------


@operator("_contrib_ROIAlign")
class ROIAlign(_Regions, heavy=True, precision=Precision.WIDEST):
    """The averages of a grid of cells over each region, of samples interpolated bilinearly.

    From He et al., "Mask R-CNN", 2017. Shapes: data (batch, channels, height, width), rois (regions, 5), output
    (regions, channels, *pooled_size); with ``position_sensitive`` the data has that many channels for each cell.
    Regions of a negative image are 0.
    """

    pooled_size: Shape = required("Height and width of the grid.", low=1)
    spatial_scale: float = required("Size of the data as a multiple of the picture's.")
    sample_ratio: int = option(-1, "Samples along each axis of a cell; one for each pixel where it is not above 0.")
    position_sensitive: bool = option(False, "Each cell has channels of its own.")
    aligned: bool = option(False, "Pixels' centres lie at halves.")

    def channels(self, channels: int) -> int:
        if not self.position_sensitive:
            return channels
        cells = self.pooled_size[0] * self.pooled_size[1]
        if channels % cells:
            raise ShapeError(
                f"{self.name}: input data has {channels} channels, expected a multiple of {cells}, one for each cell"
            )
        return channels // cells

    def weights(self, xp: Any, rois: Array, size: Shape) -> list[Array]:
        """For both axes how much of each line is in each cell (regions, cells, lines).

        Both axes are independent of each other, so that a cell is rows · data · columnsᵀ.

        Raises:
            ValueError: with ``aligned`` a region has no area.
        """
        dtype = computing_dtype(rois.dtype)
        places = rois[:, 1:].astype(dtype) * dtype.type(self.spatial_scale) - dtype.type(0.5 if self.aligned else 0)
        made = []
        for count, length, low, high in ((self.pooled_size[0], size[0], 1, 3), (self.pooled_size[1], size[1], 0, 2)):
            start, extent = places[:, low], places[:, high] - places[:, low]
            if not self.aligned:
                extent = xp.maximum(extent, 1)
            elif extent.size and extent.min() <= 0:
                raise DataError(f"{self.name}: a region has length {extent.min()}; with aligned it must be above 0")
            step = extent / dtype.type(count)
            samples = xp.full(len(rois), self.sample_ratio) if self.sample_ratio > 0 else xp.ceil(step).astype(int)
            total = xp.zeros((len(rois), count, length), dtype)
            cells, lines = xp.arange(count, dtype=dtype)[:, None], xp.arange(length, dtype=dtype)
            for sample in range(self.sample_ratio if self.sample_ratio > 0 else _greatest(samples)):
                part = ((sample + 0.5) / samples).astype(dtype)
                at = start[:, None, None] + (cells + part[:, None, None]) * step[:, None, None]
                used = (sample < samples)[:, None, None] & (at >= -1) & (at <= length)
                near = xp.maximum(0, 1 - xp.abs(xp.clip(at, 0, length - 1) - lines))
                total += xp.where(used, near, 0)
            made.append(total / samples[:, None, None].astype(dtype))
        return made

    def parts(self, xp: Any, shape: Shape, dtype: Any, rois: Array) -> Iterator[tuple[int, Array, Array, Array]]:
        """Regions of one image at a time: the image, their numbers, and the weights of both axes."""
        batch, channels, height, width = shape
        images = self.images(rois, batch)
        step = max(1, _PART // max(1, self.pooled_size[0] * channels * width))
        for image in range(batch):
            (mine,) = xp.nonzero(images == image)
            for start in range(0, len(mine), step):
                numbers = mine[start : start + step]
                rows, columns = self.weights(xp, rois[numbers], (height, width))
                yield image, numbers, rows.astype(dtype), columns.astype(dtype)

    def cells(self) -> Iterator[tuple[Any, Any, Any]]:
        """Cells that share their channels: the channels, and which rows and columns of the grid."""
        if not self.position_sensitive:
            yield slice(None), slice(None), slice(None)
            return
        height, width = self.pooled_size
        for row in range(height):
            for column in range(width):
                channels = slice(row * width + column, None, height * width)
                yield channels, slice(row, row + 1), slice(column, column + 1)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, rois, out = run.xp, inputs[1], outputs[0]
        data = inputs[0].astype(computing_dtype(inputs[0].dtype), copy=False)
        out.fill(0)
        for image, numbers, rows, columns in self.parts(xp, data.shape, data.dtype, rois):
            for channels, row, column in self.cells():
                lines = data[image, channels].transpose(1, 0, 2)  # (height, channels, width)
                taken = rows[:, row]
                half = taken.reshape(-1, len(lines)) @ lines.reshape(len(lines), -1)
                half = half.reshape(len(numbers), -1, lines.shape[2])
                full = (half @ columns[:, column].transpose(0, 2, 1)).reshape(
                    len(numbers), taken.shape[1], lines.shape[1], -1
                )
                out[numbers, :, row, column] = full.transpose(0, 2, 1, 3)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        data = F.op("_backward_ROIAlign", heads[0], shape_of(inputs, 0), inputs[1], **bound(self))
        return [data, _none(F, inputs)]


@operator("_backward_ROIAlign")
class BackwardROIAlign(ROIAlign, hidden=True):
    """Gradient of ROIAlign for its data: the transposed weights."""

    arguments = ("head", "like", "rois")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [shapes[1]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (head, _, rois), out = run.xp, inputs, outputs[0]
        dtype = computing_dtype(out.dtype)
        total = xp.zeros((len(out), out.shape[2], out.shape[1], out.shape[3]), dtype)
        for image, numbers, rows, columns in self.parts(xp, out.shape, dtype, rois):
            for channels, row, column in self.cells():
                mine = head[numbers, :, row, column].astype(dtype).transpose(0, 2, 1, 3)
                half = mine.reshape(len(numbers), -1, mine.shape[3]) @ columns[:, column]
                taken = rows[:, row].reshape(-1, out.shape[2])
                lines = taken.T @ half.reshape(len(taken), -1)
                total[image][:, channels] += lines.reshape(out.shape[2], -1, out.shape[3])
        xp.copyto(out, total.transpose(0, 2, 1, 3), casting="unsafe")

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        again = F.op("_contrib_ROIAlign", heads[0], inputs[2], **bound(self))
        return [again, None, F.zeros_like(shape_of(inputs, 2))]
