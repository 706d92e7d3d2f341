"""Averages of arbitrary samples in regions: RROIAlign (rotated regions), DeformablePSROIPooling (shifted cells).

Channels that are sampled at the same positions form rows: an image is (classes, groups, groups) planes of pixels, and
each pixel is a row with the channels of one class. Each class has separate offsets, and each group of cells has
separate channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from flowmx.errors import ShapeError
from flowmx.ops.arrays.linear import Inferred
from flowmx.ops.arrays.scatter import add_at
from flowmx.ops.nn.common import computing_dtype, expect_shape, non_defaults
from flowmx.ops.registry.operators import Array, Run, Shape, ShapeOrNone, describe, operator, option, required
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensors
from flowmx.ops.registry.traits import Precision
from flowmx.ops.vision.bilinear_sampling import Corners, corners
from flowmx.ops.vision.region_averages import greatest, with_groups
from flowmx.ops.vision.roi_pooling import Regions, round_to_integers, zeros_of_rois

_MAX_SAMPLED = 1 << 22
"""The maximum number of elements sampled at a time."""


class _Positions(NamedTuple):
    """The positions of the samples of regions, in pixels: (regions, classes, rows, columns, samples), or broadcastable.

    Attributes:
        y: vertical positions.
        x: horizontal positions.
        share: the weight of a sample in its cell's average; 0 outside the data.
        plane: the plane of each sample.
    """

    y: Array
    x: Array
    share: Array
    plane: Array

    def corners(self, xp: ArrayNamespace, height: int, width: int) -> Corners:
        """Return the pixels around the samples, weighted for the averages."""
        y, x = xp.clip(self.y, 0, height - 1), xp.clip(self.x, 0, width - 1)
        y, x, share, plane = (values.reshape(-1) for values in xp.broadcast_arrays(y, x, self.share, self.plane))
        neighbors = corners(xp, y, x, plane, height, width)
        # As in MXNet, the slope at an integer position is 0: both neighbors of the position are the same pixel.
        slopes = (share * (position != xp.floor(position)) for position in (y, x))
        return Corners(neighbors.rows, *(a * b for a, b in zip(neighbors[1:], (share, *slopes), strict=True)))


class _RegionSampling(Regions, heavy=True, precision=Precision.WIDEST):
    """Base of the operators, and of their gradients."""

    def operands(self) -> tuple[str, ...]:
        """Return the names of the inputs without the gradient of the output."""
        return ("data", "rois")

    def inputs(self) -> tuple[str, ...]:
        return self.operands()

    @property
    def groups(self) -> int:
        """Return the number of groups of cells along each axis."""
        return 1

    def classes(self, arrays: dict[str, Array]) -> int:
        """Return the number of classes."""
        return 1

    def counts(self, xp: ArrayNamespace, rois: Array) -> Array:
        """Return the number of samples along both axes of a cell (2, regions)."""
        raise NotImplementedError

    def positions(self, xp: ArrayNamespace, arrays: dict[str, Array], regions: Array) -> _Positions:
        """Return the samples of some regions."""
        raise NotImplementedError

    def parts(self, xp: ArrayNamespace, arrays: dict[str, Array]) -> Iterator[tuple[int, Array, Corners]]:
        """Iterate over groups of regions of one image: image, region numbers, pixels around the samples."""
        rois, (count, channels, height, width) = arrays["rois"], arrays["data"].shape
        images = self.images(rois, count)
        samples = greatest(self.counts(xp, rois).prod(axis=0))
        step = max(1, _MAX_SAMPLED // max(1, samples * math.prod(self.grid) * channels))
        for image in range(count):
            (numbers,) = xp.nonzero(images == image)
            for start in range(0, len(numbers), step):
                regions = numbers[start : start + step]
                yield image, regions, self.positions(xp, arrays, regions).corners(xp, height, width)

    def split(self, arrays: dict[str, Array]) -> Shape:
        """Return the data's shape with axes (batch, classes, channels per class, groups, groups, height, width)."""
        count, channels, *size = arrays["data"].shape
        classes = self.classes(arrays)
        return count, classes, self.channels(channels) // classes, self.groups, self.groups, *size

    def pixels(self, arrays: dict[str, Array]) -> Array:
        """Return the images as rows of the channels of a class (batch, rows, channels)."""
        data, (count, classes, class_channels, *rest) = arrays["data"], self.split(arrays)
        channels = data[:, : self.used_channels(arrays)].reshape(count, classes, class_channels, *rest)
        rows: Array = channels.transpose(0, 1, 3, 4, 5, 6, 2).reshape(count, classes * math.prod(rest), class_channels)
        return rows.astype(computing_dtype(data.dtype), copy=False)

    def used_channels(self, arrays: dict[str, Array]) -> int:
        """Return the number of channels used by cells; other channels are ignored."""
        return math.prod(self.split(arrays)[1:5])

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, arrays, out = run.xp, dict(zip(self.inputs(), inputs, strict=True)), outputs[0]
        pixels, classes, cells = self.pixels(arrays), self.classes(arrays), math.prod(self.grid)
        result = out.reshape(len(out), classes, pixels.shape[2], cells)
        result[...] = 0
        for image, regions, neighbors in self.parts(xp, arrays):
            values = neighbors.sample(pixels[image]).reshape(len(regions), classes, cells, -1, pixels.shape[2])
            result[regions] = values.sum(axis=3).swapaxes(2, 3)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        name = f"_backward_{self.name.removeprefix('_contrib_')}"
        grads = F.op(name, heads[0], *inputs, **non_defaults(self))
        data, *others = (grads,) if len(inputs) == 2 else grads
        return [data, zeros_of_rois(F, inputs), *others]


class _BackwardRegionSampling(_RegionSampling, hidden=True):
    """Gradients for all inputs except the regions."""

    arguments: ClassVar[tuple[str, ...]] = ("head", "data", "rois")

    def inputs(self) -> tuple[str, ...]:
        return ("head", *self.operands())

    def outputs(self) -> tuple[str, ...]:
        return tuple(f"{name}_grad" for name in self.operands() if name != "rois")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [shapes[1], *shapes[3:]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, arrays = run.xp, dict(zip(self.inputs(), inputs, strict=True))
        pixels, split, cells = self.pixels(arrays), self.split(arrays), math.prod(self.grid)
        head = arrays["head"].reshape(len(arrays["rois"]), *split[1:3], cells).swapaxes(2, 3)
        total = xp.zeros(pixels.shape, pixels.dtype)
        for output in outputs:
            output.fill(0)
        for image, regions, neighbors in self.parts(xp, arrays):
            rows = head[regions].astype(pixels.dtype, copy=False).reshape(-1, pixels.shape[2])
            rows = rows.repeat(neighbors.rows.shape[1] // max(1, len(rows)), axis=0)
            part = xp.zeros_like(total[image])
            neighbors.scatter_gradient(xp, rows, part)
            total[image] += part
            self.other_gradients(
                xp, arrays, outputs[1:], regions, neighbors.position_gradients(xp, rows, pixels[image])
            )
        data_grad = total.reshape(*split[:2], *split[3:], split[2]).transpose(0, 1, 6, 2, 3, 4, 5)
        channels = self.used_channels(arrays)
        outputs[0][:, :channels] = data_grad.reshape(split[0], channels, *split[5:])

    def other_gradients(
        self,
        xp: ArrayNamespace,
        arrays: dict[str, Array],
        grads: Sequence[Array],
        regions: Array,
        slopes: tuple[Array, Array],
    ) -> None:
        """Add up the gradients of the offsets, from the gradients of the samples' rows and columns."""

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        raise NotImplementedError  # no second order


def _inside(xp: ArrayNamespace, y: Array, x: Array, size: Shape, margin: float, beyond: float) -> Array:
    """Return a mask of the positions inside the data, extended by ``margin`` at its start and ``beyond`` at its end."""
    return (y >= -margin) & (y <= size[0] + beyond) & (x >= -margin) & (x <= size[1] + beyond)


# -- rotated regions ---------------------------------------------------------------------------------------


@operator("_contrib_RROIAlign")
class RROIAlign(_RegionSampling):
    """Averages of bilinearly interpolated samples in a grid of cells over each rotated region.

    From Ma et al., "Arbitrary-Oriented Scene Text Detection via Rotation Proposals", 2018. Shapes: data (batch,
    channels, height, width), rois (regions, 6), output (regions, channels, *pooled_size). Regions with a
    negative image number have zero output.
    """

    input_docs = describe(
        rois="(regions, 6), the dtype of data; the image number, x and y of the centre, width, height, the "
        "counter-clockwise rotation in degrees"
    )
    numbers = 6
    pooled_size: Shape = required("Height and width of the grid.", low=1)
    spatial_scale: float = required("Size of the data relative to the image.", low=0, high=1)
    sampling_ratio: int = option(-1, "Samples along each axis of a cell; 0 or below: one per pixel.")

    def sides(self, xp: ArrayNamespace, rois: Array) -> Array:
        """Return height and width of the regions, in pixels of the data, at least one (2, regions)."""
        dtype = computing_dtype(rois.dtype)
        return xp.maximum(rois[:, 4:2:-1].T.astype(dtype) * dtype.type(self.spatial_scale), 1)

    def counts(self, xp: ArrayNamespace, rois: Array) -> Array:
        if self.sampling_ratio > 0:
            return xp.full((2, len(rois)), self.sampling_ratio)
        sides = self.sides(xp, rois)
        return xp.ceil(sides / xp.asarray(self.grid, sides.dtype)[:, None]).astype(int)

    def positions(self, xp: ArrayNamespace, arrays: dict[str, Array], regions: Array) -> _Positions:
        rois, size = arrays["rois"][regions], arrays["data"].shape[2:]
        dtype = computing_dtype(rois.dtype)
        sides, counts = self.sides(xp, rois), self.counts(xp, rois)
        steps, positions = sides / xp.asarray(self.grid, dtype)[:, None], []
        for axis in range(2):
            sample = xp.arange(int(counts[axis].max()))
            parts = ((sample + 0.5) / counts[axis][:, None]).astype(dtype)
            cells = xp.arange(self.grid[axis], dtype=dtype)[:, None] + parts[:, None, :]
            positions.append((cells * steps[axis][:, None, None] - sides[axis][:, None, None] / 2, parts < 1))
        (down, inside_down), (across, inside_across) = positions
        angle = xp.radians(rois[:, 5].astype(dtype))[:, None, None, None, None]
        down, across = down[:, :, None, :, None], across[:, None, :, None, :]
        center_x, center_y = rois[:, 1:3].T.astype(dtype)[..., None, None, None, None] * dtype.type(self.spatial_scale)
        x = across * xp.cos(angle) + down * xp.sin(angle) + center_x
        y = down * xp.cos(angle) - across * xp.sin(angle) + center_y
        is_inside = (
            inside_down[:, None, None, :, None] & inside_across[:, None, None, None, :] & _inside(xp, y, x, size, 1, 0)
        )
        share = is_inside / counts.prod(axis=0).astype(dtype)[:, None, None, None, None]
        shape = (len(rois), 1, *self.grid, -1)
        return _Positions(y.reshape(shape), x.reshape(shape), share.reshape(shape), xp.zeros((1,), int))


@operator("_backward_RROIAlign")
class BackwardRROIAlign(_BackwardRegionSampling, RROIAlign):
    """Gradient of RROIAlign for its data; MXNet has none."""

    arguments = ("head", "data", "rois")


# -- shifted cells -----------------------------------------------------------------------------------------


@operator("_contrib_DeformablePSROIPooling")
class DeformablePSROIPooling(_RegionSampling, precision=Precision.FLOAT32):
    """Averages in a grid of cells over each region; each cell has separate channels and is shifted by an offset.

    From Dai et al., "Deformable Convolutional Networks", 2017. Shapes: data (batch, output_dim·group_size², height,
    width), rois (regions, 5), trans (regions, 2·classes, part_size, part_size), the horizontal and vertical shift of
    each part; output (regions, output_dim, pooled_size, pooled_size). Regions are rounded to integer pixels of the
    image; regions with a negative image number have zero output.
    """

    arguments: ClassVar[tuple[str, ...]] = ("data", "rois", "trans")
    input_docs = describe(
        trans="(regions, 2·classes, part_size, part_size), the dtype of data; fractions of the region's sides, "
        "multiplied by trans_std; not with no_trans"
    )
    output_doc = "(regions, output_dim, pooled_size, pooled_size), the dtype of data"
    json_outputs = 2
    spatial_scale: float = required("Size of the data relative to the image.", low=0, high=1)
    output_dim: int = required("Channels of the output.", low=1)
    group_size: int = required("Rows and columns of cells with separate channels.", low=1)
    pooled_size: int = required("Rows and columns of cells.", low=1)
    part_size: int = option(0, "Rows and columns of cells with separate offsets; 0: all.", low=0)
    sample_per_part: int = option(1, "Samples along each axis of a cell.", low=1)
    trans_std: float = option(0.0, "The factor of the offsets.", low=0, high=1)
    no_trans: bool = option(False, "Omit the offsets.")

    @property
    def groups(self) -> int:
        return self.group_size

    def operands(self) -> tuple[str, ...]:
        return ("data", "rois") if self.no_trans else ("data", "rois", "trans")

    def channels(self, channels: int) -> int:
        return with_groups(self, channels, self.output_dim, self.group_size)

    def classes(self, arrays: dict[str, Array]) -> int:
        return 1 if self.no_trans else arrays["trans"].shape[1] // 2

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        (data, rois), (out,) = super().infer_shape(shapes[:2])
        assert rois is not None
        parts = self.part_size or self.pooled_size
        trans = [expect_shape(self, "trans", shape, (rois[0], -1, parts, parts)) for shape in shapes[2:]]
        for shape in trans:
            if (
                shape is not None
                and shape[1] != -1
                and (shape[1] < 2 or shape[1] % 2 or self.output_dim % (shape[1] // 2))
            ):
                raise ShapeError(
                    f"{self.name}: input trans has {shape[1]} channels, expected two per class, and a number of "
                    f"classes that divides output_dim {self.output_dim}"
                )
        return [data, rois, *trans], [out]

    def counts(self, xp: ArrayNamespace, rois: Array) -> Array:
        return xp.full((2, len(rois)), self.sample_per_part)

    def bounds(self, xp: ArrayNamespace, rois: Array) -> tuple[Array, Array]:
        """Return the starts of regions and their lengths, each vertical, then horizontal (2, regions)."""
        dtype = computing_dtype(rois.dtype)
        places, scale = round_to_integers(xp, rois[:, 1:].T.astype(dtype)), dtype.type(self.spatial_scale)
        start, end = places[1::-1] * scale - dtype.type(0.5), (places[:1:-1] + 1) * scale - dtype.type(0.5)
        return start, xp.maximum(end - start, dtype.type(0.1))

    def part(self, xp: ArrayNamespace, dtype: Any) -> Array:
        """Return the part of each row, or column, of cells (cells,)."""
        parts = self.part_size or self.pooled_size
        return xp.floor(xp.arange(self.pooled_size, dtype=dtype) / dtype.type(self.pooled_size) * parts).astype(int)

    def shifts(self, xp: ArrayNamespace, arrays: dict[str, Array], regions: Array, dtype: Any) -> tuple[Array, Array]:
        """Return horizontal and vertical shifts of cells, relative to the region (regions, classes, cells, cells)."""
        if self.no_trans:
            none = xp.zeros((1, 1, 1, 1), dtype)
            return none, none
        part = self.part(xp, dtype)
        trans = arrays["trans"][regions][:, :, part[:, None], part].astype(dtype) * dtype.type(self.trans_std)
        return trans[:, 0::2], trans[:, 1::2]

    def positions(self, xp: ArrayNamespace, arrays: dict[str, Array], regions: Array) -> _Positions:
        rois, size = arrays["rois"][regions], arrays["data"].shape[2:]
        dtype, count = computing_dtype(rois.dtype), self.sample_per_part
        start, length = (values[..., None, None, None, None, None] for values in self.bounds(xp, rois))
        step, cells = length / dtype.type(self.pooled_size), xp.arange(self.pooled_size, dtype=dtype)
        right, down = (values[..., None, None] for values in self.shifts(xp, arrays, regions, dtype))
        within = xp.arange(count, dtype=dtype)
        y = cells[:, None, None, None] * step[0] + start[0] + down * length[0]
        x = cells[:, None, None] * step[1] + start[1] + right * length[1]
        y = y + within[:, None] * (step[0] / dtype.type(count))
        x = x + within * (step[1] / dtype.type(count))
        is_inside = _inside(xp, y, x, size, 0.5, -0.5)
        y, x, is_inside = (values.reshape(*values.shape[:4], -1) for values in xp.broadcast_arrays(y, x, is_inside))
        share = is_inside / xp.maximum(is_inside.sum(axis=-1, keepdims=True), 1).astype(dtype)
        return _Positions(y, x, share, self.planes(xp, self.classes(arrays)))

    def planes(self, xp: ArrayNamespace, classes: int) -> Array:
        """Return the plane of each cell (classes, rows, columns, 1)."""
        group = xp.arange(self.pooled_size) * self.group_size // self.pooled_size
        first = xp.arange(classes)[:, None, None, None] * self.group_size
        result: Array = (first + group[:, None, None]) * self.group_size + group[:, None]
        return result


@operator("_backward_DeformablePSROIPooling")
class BackwardDeformablePSROIPooling(_BackwardRegionSampling, DeformablePSROIPooling):
    """Gradients of DeformablePSROIPooling for its data and its offsets."""

    arguments = ("head", "data", "rois", "trans")

    def other_gradients(
        self,
        xp: ArrayNamespace,
        arrays: dict[str, Array],
        grads: Sequence[Array],
        regions: Array,
        slopes: tuple[Array, Array],
    ) -> None:
        if self.no_trans:
            return
        part = self.part(xp, slopes[0].dtype)
        lengths = self.bounds(xp, arrays["rois"][regions])[1]
        for offset, slope, length in ((1, slopes[0], lengths[0]), (0, slopes[1], lengths[1])):
            cells = slope.reshape(len(regions), -1, *self.grid, self.sample_per_part**2).sum(axis=-1)
            cells = cells * (length * length.dtype.type(self.trans_std))[:, None, None, None]
            into = xp.zeros((len(regions), cells.shape[1], *grads[0].shape[2:]), cells.dtype)
            add_at(xp, into, (slice(None), slice(None), part[:, None], part), cells)
            grads[0][regions, offset::2] = into
