"""Averages of cells of regions, along both axes by themselves: ROIAlign, PSROIPooling.

How much each line of the data counts in a cell is a weight for each axis, so that a cell is rows · data · columnsᵀ, and
the gradient for the data takes the same weights the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowmx.errors import DataError, ShapeError
from flowmx.ops.arrays.linear import Inferred, shape_of
from flowmx.ops.nn.common import bound, computing_dtype
from flowmx.ops.registry.operators import Array, Run, Shape, ShapeOrNone, operator, option, required
from flowmx.ops.registry.traits import Precision
from flowmx.ops.vision.regions import Regions, rounded, zeros_of_rois

_PART = 1 << 22
"""Numbers to hold at a time between the two axes."""

_SAMPLES = 16
"""Samples of a cell to look at in one step."""


def greatest(counts: Array) -> int:
    """The greatest of some counts; 0 of none."""
    return int(counts.max()) if counts.size else 0


class Spans(NamedTuple):
    """Which lines of the data are in each cell along one axis, and how much of each.

    Attributes:
        first: (regions, cells), int64.
        behind: the line behind the last one (regions, cells), int64; not beyond the data.
        weight: of each line from the first on (regions, cells, lines).
    """

    first: Array
    behind: Array
    weight: Array


class _Averages(Regions, heavy=True, precision=Precision.WIDEST):
    """Base of the operators, and of their gradients for the data."""

    def spans(self, xp: Any, rois: Array, size: Shape) -> tuple[Spans, Spans]:
        """For both axes the lines of each cell."""
        raise NotImplementedError

    def weights(self, xp: Any, rois: Array, size: Shape) -> list[Array]:
        """For both axes how much of each line is in each cell (regions, cells, lines)."""
        made = []
        for (first, behind, weight), length in zip(self.spans(xp, rois, size), size, strict=True):
            lines, total = xp.arange(length), xp.zeros((*first.shape, length), weight.dtype)
            for place in range(weight.shape[2]):
                at = first + place
                total += xp.where((lines == at[..., None]) & (at < behind)[..., None], weight[..., place, None], 0)
            made.append(total)
        return made

    def cells(self) -> Iterator[tuple[Any, Any, Any]]:
        """Cells that share their channels: the channels, and which rows and columns of the grid."""
        yield slice(None), slice(None), slice(None)

    def channel_steps(self) -> tuple[int, Array]:
        """The data's channels from one of the output to the next, and the first one of each cell, in rows."""
        cells = np.zeros(self.grid, np.int64)
        step = 1
        for channels, rows, columns in self.cells():
            cells[rows, columns], step = channels.start or 0, channels.step or 1
        return step, cells

    def axes(self, size: Shape) -> tuple[tuple[int, int, int, int], ...]:
        """For both axes: cells, lines, and where a region's two ends are among its four places."""
        return (self.grid[0], size[0], 1, 3), (self.grid[1], size[1], 0, 2)

    def parts(self, xp: Any, shape: Shape, dtype: Any, rois: Array) -> Iterator[tuple[int, Array, Array, Array]]:
        """Regions of one image at a time: the image, their numbers, and the weights of both axes."""
        batch, channels, height, width = shape
        images = self.images(rois, batch)
        step = max(1, _PART // max(1, self.grid[0] * channels * width))
        for image in range(batch):
            (mine,) = xp.nonzero(images == image)
            for start in range(0, len(mine), step):
                numbers = mine[start : start + step]
                rows, columns = self.weights(xp, rois[numbers], (height, width))
                yield image, numbers, rows.astype(dtype), columns.astype(dtype)

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
        data = F.op(_backward(self.name), heads[0], shape_of(inputs, 0), inputs[1], **bound(self))
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
                mine = head[numbers, :, row, column].astype(dtype).transpose(0, 2, 1, 3)
                half = mine.reshape(len(numbers), -1, mine.shape[3]) @ columns[:, column]
                taken = rows[:, row].reshape(-1, out.shape[2])
                lines = taken.T @ half.reshape(len(taken), -1)
                total[image][:, channels] += lines.reshape(out.shape[2], -1, out.shape[3])
        xp.copyto(out, total.transpose(0, 2, 1, 3), casting="unsafe")

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        forward = self.name.replace("_backward_", "_contrib_")
        return [F.op(forward, heads[0], inputs[2], **bound(self)), None, F.zeros_like(shape_of(inputs, 2))]


# -- interpolated samples ----------------------------------------------------------------------------------


def _spans_of_samples(xp: Any, start: Array, step: Array, samples: Array, counts: Shape, size: Shape) -> list[Spans]:
    """For both axes the lines of each cell, of which each has some samples; both are computed at once.

    Args:
        xp: the array namespace.
        start: of each region (2, regions).
        step: the size of a cell of each region (2, regions).
        samples: the number of samples in a cell of each region (2, regions).
        counts: cells along each axis.
        size: lines of the data along each axis.
    """
    dtype, most = step.dtype, greatest(samples)
    cells, length = xp.arange(max(counts), dtype=dtype)[:, None], xp.asarray(size)[:, None, None]
    start, step, samples = (each[..., None, None] for each in (start, step, samples))
    last, end = length[..., None] - 1, length[..., None]

    def at(number: int) -> tuple[Array, Array, Array]:
        """The line above each of some samples (2, regions, cells, samples), how far below they lie, which count."""
        sample = xp.arange(number, max(1, min(number + _SAMPLES, most)))
        place = start + (cells + ((sample + 0.5) / samples).astype(dtype)) * step
        used = (sample < samples) & (place >= -1) & (place <= end)
        place = xp.where(used, xp.clip(place, 0, last), 0).astype(dtype, copy=False)
        line = xp.floor(place)
        return line.astype(xp.int64), place - line, used

    blocks, once = range(0, most, _SAMPLES), at(0)
    shape = (2, start.shape[1], max(counts))
    first, behind = xp.broadcast_to(length, shape), xp.zeros(shape, xp.int64)
    for block in blocks:
        line, _, used = at(block) if block else once
        first = xp.minimum(first, xp.where(used, line, end).min(axis=3))
        behind = xp.maximum(behind, xp.where(used, line + 2, 0).max(axis=3))
    behind = xp.maximum(first, behind)
    room = max(1, greatest(behind - first))
    weight = xp.zeros(first.size * room, dtype)
    rows = xp.arange(0, weight.size, room).reshape(shape)
    for block in blocks:
        line, below, used = at(block) if block else once
        places, below = (rows[..., None] + (line - first[..., None]))[used], below[used]
        upper, lower = (xp.bincount(places + on, part, weight.size) for on, part in ((0, 1 - below), (1, below)))
        weight += (upper + lower).astype(dtype)
    weight = weight.reshape(*shape, room) / samples.astype(dtype)
    both = zip(first, xp.minimum(behind, length), weight, counts, strict=True)
    return [Spans(*(xp.ascontiguousarray(each[:, :count]) for each in axis)) for *axis, count in both]


@operator("_contrib_ROIAlign")
class ROIAlign(_Averages):
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

    def spans(self, xp: Any, rois: Array, size: Shape) -> tuple[Spans, Spans]:
        """For both axes the lines of each cell.

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


# -- whole pixels ------------------------------------------------------------------------------------------


@operator("_contrib_PSROIPooling")
class PSROIPooling(_Averages):
    """The averages of a grid of cells over each region, where each cell has channels of its own.

    From Dai et al., "R-FCN", 2016. Shapes: data (batch, output_dim·group_size², height, width), rois (regions, 5),
    output (regions, output_dim, pooled_size, pooled_size). Regions are rounded to whole pixels of the picture; cells
    outside the data, and regions of a negative image, are 0.
    """

    output_doc = "(regions, output_dim, pooled_size, pooled_size), the dtype of data"
    spatial_scale: float = required("Size of the data as a multiple of the picture's.", low=0, high=1)
    output_dim: int = required("Channels of the output.", low=1)
    pooled_size: int = required("Rows and columns of cells.", low=1)
    group_size: int = option(0, "Rows and columns of cells with channels of their own; 0: all.", low=0)

    def channels(self, channels: int) -> int:
        return with_groups(self, channels, self.output_dim, self.group_size or self.pooled_size)

    def spans(self, xp: Any, rois: Array, size: Shape) -> tuple[Spans, Spans]:
        dtype = computing_dtype(rois.dtype)
        places, scale = rounded(xp, rois[:, 1:].astype(dtype)), dtype.type(self.spatial_scale)
        made = []
        for count, length, low, high in self.axes(size):
            start = (places[:, low] * scale)[:, None]
            extent = xp.maximum((places[:, high] + 1)[:, None] * scale - start, dtype.type(0.1))
            step, cells = extent / dtype.type(count), xp.arange(count, dtype=dtype)
            first, behind = xp.floor(cells * step + start), xp.ceil((cells + 1) * step + start)
            first, behind = (xp.clip(each, 0, length).astype(xp.int64) for each in (first, behind))
            behind = xp.maximum(first, behind)
            room = max(1, greatest(behind - first))
            each = (1 / xp.maximum(behind - first, 1)).astype(dtype)
            made.append(Spans(first, behind, xp.repeat(each[..., None], room, axis=2)))
        return made[0], made[1]

    def cells(self) -> Iterator[tuple[Any, Any, Any]]:
        groups = self.group_size or self.pooled_size
        for row in range(self.pooled_size):
            for column in range(self.pooled_size):
                first = row * groups // self.pooled_size * groups + column * groups // self.pooled_size
                channels = slice(first, self.output_dim * groups**2, groups**2)
                yield channels, slice(row, row + 1), slice(column, column + 1)


def with_groups(op: Regions, channels: int, made: int, groups: int) -> int:
    """Channels of the output of data with channels for each of so many groups along both axes.

    Raises:
        ShapeError: the data has too few.
    """
    if channels < made * groups**2:
        raise ShapeError(
            f"{op.name}: input data has {channels} channels, expected output_dim · group_size² = {made * groups**2}"
        )
    return made


@operator("_backward_PSROIPooling")
class BackwardPSROIPooling(_BackwardAverages, PSROIPooling):
    """Gradient of PSROIPooling for its data."""
