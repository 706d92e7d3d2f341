"""Averages of samples anywhere in regions: RROIAlign (turned regions), DeformablePSROIPooling (moved cells).

Channels that are sampled at the same positions are rows: a picture is seen as (classes, groups, groups) planes of
pixels, each pixel a row of the channels of one class. A class has offsets of its own, a group of cells its channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from flowmx.errors import ShapeError
from flowmx.ops.arrays.linear import Inferred
from flowmx.ops.nn.common import bound, computing_dtype, expect_shape
from flowmx.ops.registry.operators import Array, Run, Shape, ShapeOrNone, described, operator, option, required
from flowmx.ops.registry.traits import Precision
from flowmx.ops.vision.bilinear import Corners, corners
from flowmx.ops.vision.region_averages import greatest, with_groups
from flowmx.ops.vision.regions import Regions, rounded, zeros_of_rois

_PART = 1 << 22
"""Numbers to sample at a time."""


class _Positions(NamedTuple):
    """The places of the samples of some regions, in pixels: (regions, classes, rows, columns, samples) or broadcast.

    Attributes:
        y: down.
        x: across.
        share: what a sample counts for in its cell's average; 0 outside the data.
        plane: the plane that it is in.
    """

    y: Array
    x: Array
    share: Array
    plane: Array

    def corners(self, xp: Any, height: int, width: int) -> Corners:
        """The pixels around the samples, weighed for the averages."""
        y, x = xp.clip(self.y, 0, height - 1), xp.clip(self.x, 0, width - 1)
        y, x, share, plane = (each.reshape(-1) for each in xp.broadcast_arrays(y, x, self.share, self.plane))
        found = corners(xp, y, x, plane, height, width)
        # On a line there is no slope, as in MXNet, where the line is both neighbours of the place.
        slopes = (share * (place != xp.floor(place)) for place in (y, x))
        return Corners(found.rows, *(a * b for a, b in zip(found[1:], (share, *slopes), strict=True)))


class _Sampled(Regions, heavy=True, precision=Precision.WIDEST):
    """Base of the operators, and of their gradients."""

    def operands(self) -> tuple[str, ...]:
        """The inputs but for the gradient of the output."""
        return ("data", "rois")

    def inputs(self) -> tuple[str, ...]:
        return self.operands()

    @property
    def groups(self) -> int:
        """Groups of cells along each axis."""
        return 1

    def classes(self, given: dict[str, Array]) -> int:
        """The number of classes."""
        return 1

    def counts(self, xp: Any, rois: Array) -> Array:
        """Samples along both axes of a cell (2, regions)."""
        raise NotImplementedError

    def positions(self, xp: Any, given: dict[str, Array], regions: Array) -> _Positions:
        """The samples of some regions."""
        raise NotImplementedError

    def parts(self, xp: Any, given: dict[str, Array]) -> Iterator[tuple[int, Array, Corners]]:
        """Regions of one image at a time: the image, their numbers, the pixels around their samples."""
        rois, (count, channels, height, width) = given["rois"], given["data"].shape
        images = self.images(rois, count)
        samples = greatest(self.counts(xp, rois).prod(axis=0))
        step = max(1, _PART // max(1, samples * math.prod(self.grid) * channels))
        for image in range(count):
            (mine,) = xp.nonzero(images == image)
            for start in range(0, len(mine), step):
                regions = mine[start : start + step]
                yield image, regions, self.positions(xp, given, regions).corners(xp, height, width)

    def split(self, given: dict[str, Array]) -> Shape:
        """The data's shape with axes (batch, classes, channels of each, groups, groups, height, width)."""
        count, channels, *size = given["data"].shape
        classes = self.classes(given)
        return count, classes, self.channels(channels) // classes, self.groups, self.groups, *size

    def pixels(self, given: dict[str, Array]) -> Array:
        """The images as rows of the channels of a class (batch, rows, channels)."""
        data, (count, classes, each, *rest) = given["data"], self.split(given)
        used = data[:, : self.used_channels(given)].reshape(count, classes, each, *rest)
        rows: Array = used.transpose(0, 1, 3, 4, 5, 6, 2).reshape(count, classes * math.prod(rest), each)
        return rows.astype(computing_dtype(data.dtype), copy=False)

    def used_channels(self, given: dict[str, Array]) -> int:
        """The channels of the data that cells have; others are left alone."""
        return math.prod(self.split(given)[1:5])

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, given, out = run.xp, dict(zip(self.inputs(), inputs, strict=True)), outputs[0]
        pixels, classes, cells = self.pixels(given), self.classes(given), math.prod(self.grid)
        made = out.reshape(len(out), classes, pixels.shape[2], cells)
        made[...] = 0
        for image, regions, around in self.parts(xp, given):
            values = around.sample(pixels[image]).reshape(len(regions), classes, cells, -1, pixels.shape[2])
            made[regions] = values.sum(axis=3).swapaxes(2, 3)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        name = f"_backward_{self.name.removeprefix('_contrib_')}"
        found = F.op(name, heads[0], *inputs, **bound(self))
        data, *others = (found,) if len(inputs) == 2 else found
        return [data, zeros_of_rois(F, inputs), *others]


class _BackwardSampled(_Sampled, hidden=True):
    """Gradients for the inputs but the regions."""

    arguments: ClassVar[tuple[str, ...]] = ("head", "data", "rois")

    def inputs(self) -> tuple[str, ...]:
        return ("head", *self.operands())

    def outputs(self) -> tuple[str, ...]:
        return tuple(f"{name}_grad" for name in self.operands() if name != "rois")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [shapes[1], *shapes[3:]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, given = run.xp, dict(zip(self.inputs(), inputs, strict=True))
        pixels, split, cells = self.pixels(given), self.split(given), math.prod(self.grid)
        head = given["head"].reshape(len(given["rois"]), *split[1:3], cells).swapaxes(2, 3)
        total = xp.zeros(pixels.shape, pixels.dtype)
        for each in outputs:
            each.fill(0)
        for image, regions, around in self.parts(xp, given):
            rows = head[regions].astype(pixels.dtype, copy=False).reshape(-1, pixels.shape[2])
            rows = rows.repeat(around.rows.shape[1] // max(1, len(rows)), axis=0)
            part = xp.zeros_like(total[image])
            around.spread(xp, rows, part)
            total[image] += part
            self.other_gradients(xp, given, outputs[1:], regions, around.slopes(xp, rows, pixels[image]))
        used = total.reshape(*split[:2], *split[3:], split[2]).transpose(0, 1, 6, 2, 3, 4, 5)
        channels = self.used_channels(given)
        outputs[0][:, :channels] = used.reshape(split[0], channels, *split[5:])

    def other_gradients(
        self, xp: Any, given: dict[str, Array], grads: Sequence[Array], regions: Array, slopes: tuple[Array, Array]
    ) -> None:
        """Add up the gradients for what moves samples, from those for the samples' rows and columns."""

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        raise NotImplementedError  # no second order


def _inside(xp: Any, y: Array, x: Array, size: Shape, margin: float, beyond: float) -> Array:
    """Places that count: those up to a margin before the data's first lines, and up to ``beyond`` past its lengths."""
    return (y >= -margin) & (y <= size[0] + beyond) & (x >= -margin) & (x <= size[1] + beyond)


# -- turned regions ----------------------------------------------------------------------------------------


@operator("_contrib_RROIAlign")
class RROIAlign(_Sampled):
    """The averages of a grid of cells over each turned region, of samples interpolated bilinearly.

    From Ma et al., "Arbitrary-Oriented Scene Text Detection via Rotation Proposals", 2018. Shapes: data (batch,
    channels, height, width), rois (regions, 6), output (regions, channels, *pooled_size). Regions of a negative image
    are 0.
    """

    input_docs = described(
        rois="(regions, 6), the dtype of data; the image's number, x and y of the centre, width, height, the angle in "
        "degrees by which it is turned counter-clockwise"
    )
    numbers = 6
    pooled_size: Shape = required("Height and width of the grid.", low=1)
    spatial_scale: float = required("Size of the data as a multiple of the picture's.", low=0, high=1)
    sampling_ratio: int = option(-1, "Samples along each axis of a cell; one for each pixel where it is not above 0.")

    def sides(self, xp: Any, rois: Array) -> Array:
        """Height and width of the regions, in pixels of the data, at least one (2, regions)."""
        dtype = computing_dtype(rois.dtype)
        return xp.maximum(rois[:, 4:2:-1].T.astype(dtype) * dtype.type(self.spatial_scale), 1)

    def counts(self, xp: Any, rois: Array) -> Array:
        if self.sampling_ratio > 0:
            return xp.full((2, len(rois)), self.sampling_ratio)
        sides = self.sides(xp, rois)
        return xp.ceil(sides / xp.asarray(self.grid, sides.dtype)[:, None]).astype(int)

    def positions(self, xp: Any, given: dict[str, Array], regions: Array) -> _Positions:
        rois, size = given["rois"][regions], given["data"].shape[2:]
        dtype = computing_dtype(rois.dtype)
        sides, counts = self.sides(xp, rois), self.counts(xp, rois)
        steps, places = sides / xp.asarray(self.grid, dtype)[:, None], []
        for axis in range(2):
            sample = xp.arange(int(counts[axis].max()))
            parts = ((sample + 0.5) / counts[axis][:, None]).astype(dtype)
            cells = xp.arange(self.grid[axis], dtype=dtype)[:, None] + parts[:, None, :]
            places.append((cells * steps[axis][:, None, None] - sides[axis][:, None, None] / 2, parts < 1))
        (down, used_down), (across, used_across) = places
        angle = xp.radians(rois[:, 5].astype(dtype))[:, None, None, None, None]
        down, across = down[:, :, None, :, None], across[:, None, :, None, :]
        center_x, center_y = rois[:, 1:3].T.astype(dtype)[..., None, None, None, None] * dtype.type(self.spatial_scale)
        x = across * xp.cos(angle) + down * xp.sin(angle) + center_x
        y = down * xp.cos(angle) - across * xp.sin(angle) + center_y
        used = used_down[:, None, None, :, None] & used_across[:, None, None, None, :] & _inside(xp, y, x, size, 1, 0)
        share = used / counts.prod(axis=0).astype(dtype)[:, None, None, None, None]
        shape = (len(rois), 1, *self.grid, -1)
        return _Positions(y.reshape(shape), x.reshape(shape), share.reshape(shape), xp.zeros((1,), int))


@operator("_backward_RROIAlign")
class BackwardRROIAlign(_BackwardSampled, RROIAlign):
    """Gradient of RROIAlign for its data, which MXNet does not have."""

    arguments = ("head", "data", "rois")


# -- moved cells -------------------------------------------------------------------------------------------


@operator("_contrib_DeformablePSROIPooling")
class DeformablePSROIPooling(_Sampled, precision=Precision.FLOAT32):
    """The averages of a grid of cells over each region, each moved by an offset, with channels of its own.

    From Dai et al., "Deformable Convolutional Networks", 2017. Shapes: data (batch, output_dim·group_size², height,
    width), rois (regions, 5), trans (regions, 2·classes, part_size, part_size), how far each part is moved across and
    down; output (regions, output_dim, pooled_size, pooled_size). Regions are rounded to whole pixels of the picture;
    those of a negative image are 0.
    """

    arguments: ClassVar[tuple[str, ...]] = ("data", "rois", "trans")
    input_docs = described(
        trans="(regions, 2·classes, part_size, part_size), the dtype of data; fractions of the region's sides, "
        "multiplied with trans_std; not with no_trans"
    )
    output_doc = "(regions, output_dim, pooled_size, pooled_size), the dtype of data"
    outputs_counted = 2
    spatial_scale: float = required("Size of the data as a multiple of the picture's.", low=0, high=1)
    output_dim: int = required("Channels of the output.", low=1)
    group_size: int = required("Rows and columns of cells with channels of their own.", low=1)
    pooled_size: int = required("Rows and columns of cells.", low=1)
    part_size: int = option(0, "Rows and columns of cells with offsets of their own; 0: all.", low=0)
    sample_per_part: int = option(1, "Samples along each axis of a cell.", low=1)
    trans_std: float = option(0.0, "What offsets are multiplied with.", low=0, high=1)
    no_trans: bool = option(False, "Leave the offsets out.")

    @property
    def groups(self) -> int:
        return self.group_size

    def operands(self) -> tuple[str, ...]:
        return ("data", "rois") if self.no_trans else ("data", "rois", "trans")

    def channels(self, channels: int) -> int:
        return with_groups(self, channels, self.output_dim, self.group_size)

    def classes(self, given: dict[str, Array]) -> int:
        return 1 if self.no_trans else given["trans"].shape[1] // 2

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        (data, rois), (out,) = super().infer_shape(shapes[:2])
        assert rois is not None
        parts = self.part_size or self.pooled_size
        trans = [expect_shape(self, "trans", each, (rois[0], -1, parts, parts)) for each in shapes[2:]]
        for each in trans:
            if each is not None and each[1] != -1 and (each[1] < 2 or each[1] % 2 or self.output_dim % (each[1] // 2)):
                raise ShapeError(
                    f"{self.name}: input trans has {each[1]} channels, expected two for each class, and a number of "
                    f"classes that divides output_dim {self.output_dim}"
                )
        return [data, rois, *trans], [out]

    def counts(self, xp: Any, rois: Array) -> Array:
        return xp.full((2, len(rois)), self.sample_per_part)

    def bounds(self, xp: Any, rois: Array) -> tuple[Array, Array]:
        """The beginnings of regions, and their lengths; both down, then across (2, regions)."""
        dtype = computing_dtype(rois.dtype)
        places, scale = rounded(xp, rois[:, 1:].T.astype(dtype)), dtype.type(self.spatial_scale)
        start, end = places[1::-1] * scale - dtype.type(0.5), (places[:1:-1] + 1) * scale - dtype.type(0.5)
        return start, xp.maximum(end - start, dtype.type(0.1))

    def part(self, xp: Any, dtype: Any) -> Array:
        """The part of each row, or column, of cells (cells,)."""
        parts = self.part_size or self.pooled_size
        return xp.floor(xp.arange(self.pooled_size, dtype=dtype) / dtype.type(self.pooled_size) * parts).astype(int)

    def moved(self, xp: Any, given: dict[str, Array], regions: Array, dtype: Any) -> tuple[Array, Array]:
        """The offsets of cells across and down, as fractions of the region (regions, classes, cells, cells)."""
        if self.no_trans:
            none = xp.zeros((1, 1, 1, 1), dtype)
            return none, none
        part = self.part(xp, dtype)
        trans = given["trans"][regions][:, :, part[:, None], part].astype(dtype) * dtype.type(self.trans_std)
        return trans[:, 0::2], trans[:, 1::2]

    def positions(self, xp: Any, given: dict[str, Array], regions: Array) -> _Positions:
        rois, size = given["rois"][regions], given["data"].shape[2:]
        dtype, count = computing_dtype(rois.dtype), self.sample_per_part
        start, length = (each[..., None, None, None, None, None] for each in self.bounds(xp, rois))
        step, cells = length / dtype.type(self.pooled_size), xp.arange(self.pooled_size, dtype=dtype)
        right, down = (each[..., None, None] for each in self.moved(xp, given, regions, dtype))
        within = xp.arange(count, dtype=dtype)
        y = cells[:, None, None, None] * step[0] + start[0] + down * length[0]
        x = cells[:, None, None] * step[1] + start[1] + right * length[1]
        y = y + within[:, None] * (step[0] / dtype.type(count))
        x = x + within * (step[1] / dtype.type(count))
        used = _inside(xp, y, x, size, 0.5, -0.5)
        y, x, used = (each.reshape(*each.shape[:4], -1) for each in xp.broadcast_arrays(y, x, used))
        share = used / xp.maximum(used.sum(axis=-1, keepdims=True), 1).astype(dtype)
        return _Positions(y, x, share, self.planes(xp, self.classes(given)))

    def planes(self, xp: Any, classes: int) -> Array:
        """The plane of each cell (classes, rows, columns, 1)."""
        group = xp.arange(self.pooled_size) * self.group_size // self.pooled_size
        first = xp.arange(classes)[:, None, None, None] * self.group_size
        return (first + group[:, None, None]) * self.group_size + group[:, None]


@operator("_backward_DeformablePSROIPooling")
class BackwardDeformablePSROIPooling(_BackwardSampled, DeformablePSROIPooling):
    """Gradients of DeformablePSROIPooling for its data and its offsets."""

    arguments = ("head", "data", "rois", "trans")

    def other_gradients(
        self, xp: Any, given: dict[str, Array], grads: Sequence[Array], regions: Array, slopes: tuple[Array, Array]
    ) -> None:
        if self.no_trans:
            return
        part = self.part(xp, slopes[0].dtype)
        lengths = self.bounds(xp, given["rois"][regions])[1]
        for place, slope, length in ((1, slopes[0], lengths[0]), (0, slopes[1], lengths[1])):
            cells = slope.reshape(len(regions), -1, *self.grid, self.sample_per_part**2).sum(axis=-1)
            cells = cells * (length * length.dtype.type(self.trans_std))[:, None, None, None]
            into = xp.zeros((len(regions), cells.shape[1], *grads[0].shape[2:]), cells.dtype)
            xp.add.at(into, (slice(None), slice(None), part[:, None], part), cells)
            grads[0][regions, place::2] = into
