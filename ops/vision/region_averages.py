"""Averages over cells of regions, separable along both axes: ROIAlign, PSROIPooling.

Each line of the data has a weight in each cell along each axis, so a cell is rows · data · columnsᵀ, and the gradient
for the data uses the transposed weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowmx.errors import DataError, ShapeError
from flowmx.ops.arrays.linear import Inferred, shape_of
from flowmx.ops.nn.common import computing_dtype, non_defaults
from flowmx.ops.registry.operators import Array, Run, Shape, ShapeOrNone, operator, option, required
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensors
from flowmx.ops.registry.traits import Precision
from flowmx.ops.vision.roi_pooling import Regions, round_to_integers, zeros_of_rois

_PART = 1 << 22
"""The maximum number of intermediate elements between the two axes."""

_SAMPLES = 16
"""Samples of a cell processed in one step."""


def greatest(counts: Array) -> int:
    """Return the maximum of counts; 0 for an empty array."""
    return int(counts.max()) if counts.size else 0


class Spans(NamedTuple):
    """The lines of the data in each cell along one axis, and their weights.

    Attributes:
        first: the first line (regions, cells), int64.
        behind: the line after the last one (regions, cells), int64; within the data.
        weight: the weight of each line from the first on (regions, cells, lines).
    """

    first: Array
    behind: Array
    weight: Array


class _Averages(Regions, heavy=True, precision=Precision.WIDEST):
    """Base of the operators, and of their gradients for the data."""

    def spans(self, xp: ArrayNamespace, rois: Array, size: Shape) -> tuple[Spans, Spans]:
        """Return the lines of each cell, for both axes."""
        raise NotImplementedError

    def weights(self, xp: ArrayNamespace, rois: Array, size: Shape) -> list[Array]:
        """Return the weight of each line in each cell (regions, cells, lines), for both axes."""
        axes_weights = []
        for (first, stop, weight), length in zip(self.spans(xp, rois, size), size, strict=True):
            lines, total = xp.arange(length), xp.zeros((*first.shape, length), weight.dtype)
            for index in range(weight.shape[2]):
                line = first + index
                total += xp.where((lines == line[..., None]) & (line < stop)[..., None], weight[..., index, None], 0)
            axes_weights.append(total)
        return axes_weights

    def cells(self) -> Iterator[tuple[Any, Any, Any]]:
        """Iterate over cells with the same channels: the channels, and rows and columns of the grid."""
        yield slice(None), slice(None), slice(None)

    def channel_steps(self) -> tuple[int, Array]:
        """Return the step of the data's channels per output channel, and the first channel of each cell, in rows."""
        cells = np.zeros(self.grid, np.int64)
        step = 1
        for channels, rows, columns in self.cells():
            cells[rows, columns], step = channels.start or 0, channels.step or 1
        return step, cells

    def axes(self, size: Shape) -> tuple[tuple[int, int, int, int], ...]:
        """Return, for both axes: cells, lines, and the positions of a region's two ends in its row."""
        return (self.grid[0], size[0], 1, 3), (self.grid[1], size[1], 0, 2)

    def parts(
        self, xp: ArrayNamespace, shape: Shape, dtype: Any, rois: Array
    ) -> Iterator[tuple[int, Array, Array, Array]]:
        """Iterate over groups of regions of one image: image, region numbers, and the weights of both axes."""
        batch, channels, height, width = shape
        images = self.images(rois, batch)
        step = max(1, _PART // max(1, self.grid[0] * channels * width))
        for image in range(batch):
            (own_numbers,) = xp.nonzero(images == image)
            for start in range(0, len(own_numbers), step):
                numbers = own_numbers[start : start + step]
                rows, columns = self.weights(xp, rois[numbers], (height, width))
                yield image, numbers, rows.astype(dtype), columns.astype(dtype)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, rois, out = run.xp, inputs[1], outputs[0]
        data = inputs[0].astype(computing_dtype(inputs[0].dtype), copy=False)
        out.fill(0)
        for image, numbers, rows, columns in self.parts(xp, data.shape, data.dtype, rois):
            for channels, row, column in self.cells():
                lines = data[image, channels].transpose(1, 0, 2)  # (height, channels, width)
                row_weights = rows[:, row]
                half = row_weights.reshape(-1, len(lines)) @ lines.reshape(len(lines), -1)
                half = half.reshape(len(numbers), -1, lines.shape[2])
                full = (half @ columns[:, column].transpose(0, 2, 1)).reshape(
                    len(numbers), row_weights.shape[1], lines.shape[1], -1
                )
                out[numbers, :, row, column] = full.transpose(0, 2, 1, 3)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        data = F.op(_backward(self.name), heads[0], shape_of(inputs, 0), inputs[1], **non_defaults(self))
        return [data, zeros_of_rois(F, inputs)]


def _backward(name: str) -> str:
    return f"_backward_{name.removeprefix('_contrib_')}"


class _BackwardAverages(_Averages, hidden=True):
    """Gradient for the data: the transposed weights."""

    arguments = ("head", "like", "rois")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [shapes[1]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (head, _, rois), out = run.xp, inputs, outputs[0]
        dtype = computing_dtype(out.dtype)
        total = xp.zeros((len(out), out.shape[2], out.shape[1], out.shape[3]), dtype)
        for image, numbers, rows, columns in self.parts(xp, out.shape, dtype, rois):
            for channels, row, column in self.cells():
                head_rows = head[numbers, :, row, column].astype(dtype).transpose(0, 2, 1, 3)
                half = head_rows.reshape(len(numbers), -1, head_rows.shape[3]) @ columns[:, column]
                row_weights = rows[:, row].reshape(-1, out.shape[2])
                lines = row_weights.T @ half.reshape(len(row_weights), -1)
                total[image][:, channels] += lines.reshape(out.shape[2], -1, out.shape[3])
        xp.copyto(out, total.transpose(0, 2, 1, 3), casting="unsafe")

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        forward = self.name.replace("_backward_", "_contrib_")
        return [F.op(forward, heads[0], inputs[2], **non_defaults(self)), None, F.zeros_like(shape_of(inputs, 2))]


# -- interpolated samples ----------------------------------------------------------------------------------


def _spans_of_samples(
    xp: ArrayNamespace, start: Array, step: Array, samples: Array, counts: Shape, size: Shape
) -> list[Spans]:
    """Return the lines of each cell from its samples, for both axes at once.

    Args:
        xp: the array namespace.
        start: the start of each region (2, regions).
        step: the size of a cell of each region (2, regions).
        samples: the number of samples in a cell of each region (2, regions).
        counts: cells along each axis.
        size: lines of the data along each axis.
    """
    dtype, most = step.dtype, greatest(samples)
    cells, length = xp.arange(max(counts), dtype=dtype)[:, None], xp.asarray(size)[:, None, None]
    start, step, samples = (values[..., None, None] for values in (start, step, samples))
    last, end = length[..., None] - 1, length[..., None]

    def samples_from(number: int) -> tuple[Array, Array, Array]:
        """Return, for samples (2, regions, cells, samples): the line above, the distance below it, and validity."""
        sample = xp.arange(number, max(1, min(number + _SAMPLES, most)))
        position = start + (cells + ((sample + 0.5) / samples).astype(dtype)) * step
        is_valid = (sample < samples) & (position >= -1) & (position <= end)
        position = xp.where(is_valid, xp.clip(position, 0, last), 0).astype(dtype, copy=False)
        line = xp.floor(position)
        return line.astype(np.int64), position - line, is_valid

    blocks, once = range(0, most, _SAMPLES), samples_from(0)
    shape = (2, start.shape[1], max(counts))
    first, stop = xp.broadcast_to(length, shape), xp.zeros(shape, np.int64)
    for block in blocks:
        line, _, is_valid = samples_from(block) if block else once
        first = xp.minimum(first, xp.where(is_valid, line, end).min(axis=3))
        stop = xp.maximum(stop, xp.where(is_valid, line + 2, 0).max(axis=3))
    stop = xp.maximum(first, stop)
    room = max(1, greatest(stop - first))
    weight = xp.zeros(first.size * room, dtype)
    rows = xp.arange(0, weight.size, room).reshape(shape)
    for block in blocks:
        line, below, is_valid = samples_from(block) if block else once
        places, below = (rows[..., None] + (line - first[..., None]))[is_valid], below[is_valid]
        upper, lower = (xp.bincount(places + on, part, weight.size) for on, part in ((0, 1 - below), (1, below)))
        weight += (upper + lower).astype(dtype)
    weight = weight.reshape(*shape, room) / samples.astype(dtype)
    axes = zip(first, xp.minimum(stop, length), weight, counts, strict=True)
    return [Spans(*(xp.ascontiguousarray(values[:, :count]) for values in axis)) for *axis, count in axes]


@operator("_contrib_ROIAlign")
class ROIAlign(_Averages):
    """Averages of bilinearly interpolated samples in a grid of cells over each region.

    From He et al., "Mask R-CNN", 2017. Shapes: data (batch, channels, height, width), rois (regions, 5), output
    (regions, channels, *pooled_size); with ``position_sensitive`` the data has that many channels per cell.
    Regions of a negative image are 0.
    """

    pooled_size: Shape = required("Height and width of the grid.", low=1)
    spatial_scale: float = required("Size of the data relative to the image.")
    sample_ratio: int = option(-1, "Samples along each axis of a cell; 0 or below: one per pixel.")
    position_sensitive: bool = option(False, "Each cell has separate channels.")
    aligned: bool = option(False, "Pixel centres are at half-integer coordinates.")

    def channels(self, channels: int) -> int:
        if not self.position_sensitive:
            return channels
        cells = self.pooled_size[0] * self.pooled_size[1]
        if channels % cells:
            raise ShapeError(
                f"{self.name}: input data has {channels} channels, expected a multiple of {cells}, one per cell"
            )
        return channels // cells

    def spans(self, xp: ArrayNamespace, rois: Array, size: Shape) -> tuple[Spans, Spans]:
        """Return the lines of each cell, for both axes.

        Raises:
            ValueError: with ``aligned`` a region has no area.
        """
        dtype = computing_dtype(rois.dtype)
        places = rois[:, 1:].astype(dtype) * dtype.type(self.spatial_scale) - dtype.type(0.5 if self.aligned else 0)
        start, extent = places[:, 1::-1].T, (places[:, 2:] - places[:, :2])[:, ::-1].T
        if not self.aligned:
            extent = xp.maximum(extent, 1)
        elif extent.size and extent.min() <= 0:
            raise DataError(f"{self.name}: a region has length {extent.min()}; with aligned it must be above 0")
        step = extent / xp.asarray(self.grid, dtype)[:, None]
        samples = xp.full(step.shape, self.sample_ratio) if self.sample_ratio > 0 else xp.ceil(step).astype(int)
        rows, columns = _spans_of_samples(xp, start, step, samples, self.grid, size)
        return rows, columns

    def cells(self) -> Iterator[tuple[Any, Any, Any]]:
        if not self.position_sensitive:
            yield from super().cells()
            return
        height, width = self.pooled_size
        for row in range(height):
            for column in range(width):
                channels = slice(row * width + column, None, height * width)
                yield channels, slice(row, row + 1), slice(column, column + 1)


@operator("_backward_ROIAlign")
class BackwardROIAlign(_BackwardAverages, ROIAlign):
    """Gradient of ROIAlign for its data."""


# -- integer pixels ----------------------------------------------------------------------------------------


@operator("_contrib_PSROIPooling")
class PSROIPooling(_Averages):
    """Averages in a grid of cells over each region, where each cell has separate channels.

    From Dai et al., "R-FCN", 2016. Shapes: data (batch, output_dim·group_size², height, width), rois (regions, 5),
    output (regions, output_dim, pooled_size, pooled_size). Regions are rounded to integer pixels of the image; cells
    outside the data, and regions of a negative image, are 0.
    """

    output_doc = "(regions, output_dim, pooled_size, pooled_size), the dtype of data"
    spatial_scale: float = required("Size of the data relative to the image.", low=0, high=1)
    output_dim: int = required("Channels of the output.", low=1)
    pooled_size: int = required("Rows and columns of cells.", low=1)
    group_size: int = option(0, "Rows and columns of cells with separate channels; 0: all.", low=0)

    def channels(self, channels: int) -> int:
        return with_groups(self, channels, self.output_dim, self.group_size or self.pooled_size)

    def spans(self, xp: ArrayNamespace, rois: Array, size: Shape) -> tuple[Spans, Spans]:
        dtype = computing_dtype(rois.dtype)
        places, scale = round_to_integers(xp, rois[:, 1:].astype(dtype)), dtype.type(self.spatial_scale)
        spans = []
        for count, length, low, high in self.axes(size):
            start = (places[:, low] * scale)[:, None]
            extent = xp.maximum((places[:, high] + 1)[:, None] * scale - start, dtype.type(0.1))
            step, cells = extent / dtype.type(count), xp.arange(count, dtype=dtype)
            first, stop = xp.floor(cells * step + start), xp.ceil((cells + 1) * step + start)
            first, stop = (xp.clip(values, 0, length).astype(np.int64) for values in (first, stop))
            stop = xp.maximum(first, stop)
            room = max(1, greatest(stop - first))
            values = (1 / xp.maximum(stop - first, 1)).astype(dtype)
            spans.append(Spans(first, stop, xp.repeat(values[..., None], room, axis=2)))
        return spans[0], spans[1]

    def cells(self) -> Iterator[tuple[Any, Any, Any]]:
        groups = self.group_size or self.pooled_size
        for row in range(self.pooled_size):
            for column in range(self.pooled_size):
                first = row * groups // self.pooled_size * groups + column * groups // self.pooled_size
                channels = slice(first, self.output_dim * groups**2, groups**2)
                yield channels, slice(row, row + 1), slice(column, column + 1)


def with_groups(op: Regions, channels: int, out_channels: int, groups: int) -> int:
    """Return the output channels for data with channels for ``groups`` × ``groups`` cells.

    Raises:
        ShapeError: the data has too few channels.
    """
    expected = out_channels * groups**2
    if channels < expected:
        raise ShapeError(
            f"{op.name}: input data has {channels} channels, expected output_dim · group_size² = {expected}"
        )
    return out_channels


@operator("_backward_PSROIPooling")
class BackwardPSROIPooling(_BackwardAverages, PSROIPooling):
    """Gradient of PSROIPooling for its data."""
