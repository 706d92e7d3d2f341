"""Deformable convolutions: learned offsets move each tap of each window.

The values interpolated at the taps form columns, one sample of the batch at a time; a product with the weight follows,
as in a convolution.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import ClassVar, NamedTuple

from flowmx.errors import ParameterError, ShapeError
from flowmx.ops.arrays.linear import Inferred
from flowmx.ops.nn.common import computing_dtype, expect_rank, expect_shape, non_defaults, product
from flowmx.ops.nn.convolution import check_layout, per_axis
from flowmx.ops.nn.windows import Geometry
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import (
    Array,
    Operator,
    Run,
    Shape,
    ShapeOrNone,
    describe,
    family,
    operator,
    option,
    required,
)
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensors
from flowmx.ops.registry.traits import Precision
from flowmx.ops.vision.bilinear_sampling import Corners, corners, images_of, pixels_of


class _Taps(NamedTuple):
    """The values of one batch sample at the kernel's taps.

    Attributes:
        neighbors: the pixels around each tap's position.
        pixels: the sample's images, one per deformable group, as rows of channels.
        values: the sampled rows (positions, channels of a group), before the mask.
        mask: the factor of each row (positions, 1), or None.
    """

    neighbors: Corners
    pixels: Array
    values: Array
    mask: Array | None


@family
class _Deformable(Operator, heavy=True):
    input_docs = describe(
        data="(batch, channels, height, width), float",
        offset="(batch, 2·groups·prod(kernel), out height, out width), the dtype of data",
        mask="(batch, groups·prod(kernel), out height, out width), the dtype of data",
        weight="(num_filter, channels/num_group, *kernel), the dtype of data",
        bias="(num_filter,), the dtype of data; not with no_bias",
    )
    output_doc = "(batch, num_filter, out height, out width), the dtype of data"
    modulated: ClassVar[bool] = False
    kernel: Shape = required("Lengths of the window.", low=1)
    stride: Shape = option((), "Steps of the window; 1 each by default.", low=1)
    dilate: Shape = option((), "Distances between the window's taps; 1 each by default.", low=1)
    pad: Shape = option((), "Zeros on either side; 0 each by default.", low=0)
    num_filter: int = required("Number of output channels.", low=1)
    num_group: int = option(1, "Groups of channels that are convolved separately.", low=1)
    num_deformable_group: int = option(1, "Groups of channels with separate offsets.", low=1)
    workspace: int = option(1024, "Ignored.", low=0)
    no_bias: bool = option(False, "Leave the bias out.")

    def __post_init__(self) -> None:
        if len(self.kernel) != 2:
            raise ParameterError(f"{self.name}: kernel is {self.kernel}, expected height and width")
        check_layout(self, getattr(self, "layout", None), 2)
        assert self.geometry
        if self.num_filter % self.num_group:
            raise ParameterError(
                f"{self.name}: num_filter is {self.num_filter}, expected a multiple of num_group {self.num_group}"
            )

    @cached_property
    def geometry(self) -> Geometry:
        """The windows' geometry before they are deformed."""
        return Geometry(
            self.kernel, per_axis(self, "stride", self.stride, 1, 2), per_axis(self, "dilate", self.dilate, 1, 2),
            per_axis(self, "pad", self.pad, 0, 2), self.num_group,
        )  # fmt: skip

    def operands(self) -> tuple[str, ...]:
        """Return the names of the inputs except the bias."""
        return ("data", "offset", *(("mask",) if self.modulated else ()), "weight")

    def inputs(self) -> tuple[str, ...]:
        return self.operands() if self.no_bias else (*self.operands(), "bias")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        by_name = dict(zip(self.inputs(), shapes, strict=True))
        expect_rank(self, "data", by_name["data"], 4, 4)
        batch, channels, *size = by_name["data"] or (-1,) * 4
        for name, groups in (("num_group", self.num_group), ("num_deformable_group", self.num_deformable_group)):
            if channels != -1 and channels % groups:
                raise ShapeError(
                    f"{self.name}: input data has {channels} channels, expected a multiple of {name} {groups}"
                )
        out = tuple(self.geometry.output(axis, length) for axis, length in enumerate(size))
        if any(length != -1 and length < 1 for length in out):
            raise ShapeError(
                f"{self.name}: input data has shape {by_name['data']}, smaller than one window: kernel {self.kernel}"
            )
        taps = self.num_deformable_group * math.prod(self.kernel)
        group_channels = -1 if channels == -1 else channels // self.num_group
        expected_shapes = {
            "data": (batch, channels, *size),
            "offset": (batch, 2 * taps, *out),
            "mask": (batch, taps, *out),
            "weight": (self.num_filter, group_channels, *self.kernel),
            "bias": (self.num_filter,),
        }
        in_shapes = [expect_shape(self, name, shape, expected_shapes[name]) for name, shape in by_name.items()]
        return in_shapes, [(batch, self.num_filter, *out)]

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        elements = sum(map(product, (*inputs, *outputs)))
        return 2 * product(outputs[0]) * product(inputs[0][1:2]) * math.prod(self.kernel), elements

    # -- computation -----------------------------------------------------------------------------------

    def matrices(self, weight: Array, dtype: DType) -> Array:
        """Return the weight as (groups, filters, taps)."""
        shape = (self.num_group, self.num_filter // self.num_group, -1)
        return weight.reshape(shape).astype(dtype, copy=False)

    def taps(self, run: Run, arrays: dict[str, Array], dtype: DType) -> Iterator[_Taps]:
        """Sample the data at the taps, one batch sample at a time."""
        xp, data, offset = run.xp, arrays["data"], arrays["offset"]
        groups, (height, width) = self.num_deformable_group, data.shape[2:]
        lines = [
            (xp.arange(self.kernel[axis]) * self.geometry.dilate[axis])[:, None]
            + xp.arange(offset.shape[2 + axis]) * self.geometry.stride[axis]
            - self.geometry.pad[axis]
            for axis in range(2)
        ]  # (kernel, out) for both axes
        base_y, base_x = lines[0][:, None, :, None], lines[1][None, :, None, :]
        for n in range(len(data)):
            offsets = offset[n].astype(dtype).reshape(groups, *self.kernel, 2, *offset.shape[2:])
            y, x = ((base + offsets[:, :, :, index]).reshape(-1) for index, base in ((0, base_y), (1, base_x)))
            image = xp.arange(groups).repeat(len(y) // groups)
            neighbors = self.corners(xp, y.astype(dtype), x.astype(dtype), image, height, width)
            pixels = pixels_of(data[n].reshape(groups, -1, height, width)).astype(dtype, copy=False)
            mask = arrays["mask"][n].reshape(-1, 1).astype(dtype) if self.modulated else None
            yield _Taps(neighbors, pixels, neighbors.sample(pixels), mask)

    def corners(self, xp: ArrayNamespace, y: Array, x: Array, image: Array, height: int, width: int) -> Corners:
        """Return the pixels around positions; pixels outside count as 0."""
        return corners(xp, y, x, image, height, width)

    def columns(self, taps: _Taps) -> Array:
        """Return the sampled values as (groups, taps, windows)."""
        values = taps.values if taps.mask is None else taps.values * taps.mask
        count = math.prod(self.kernel)
        columns = values.reshape(self.num_deformable_group, count, -1, values.shape[1]).transpose(0, 3, 1, 2)
        return columns.reshape(self.num_group, -1, columns.shape[3])

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        arrays, out = dict(zip(self.inputs(), inputs, strict=True)), outputs[0]
        dtype = computing_dtype(out.dtype)
        weight = self.matrices(arrays["weight"], dtype)
        for sample, taps in zip(out, self.taps(run, arrays, dtype), strict=True):
            result = (weight @ self.columns(taps)).reshape(sample.shape)
            if not self.no_bias:
                result += arrays["bias"].reshape(-1, 1, 1)
            run.xp.copyto(sample, result, casting="unsafe")

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        operands = {name: inputs[index] for index, name in enumerate(self.operands())}
        grads = F.op(f"_backward_{self.name}", head=heads[0], **operands, **{**non_defaults(self), "no_bias": True})
        return list(grads) if self.no_bias else [*grads, F.op("_backward_bias", heads[0], axis=1)]


class _BackwardDeformable(_Deformable, hidden=True):
    """Gradients for data, offset, mask and weight."""

    def inputs(self) -> tuple[str, ...]:
        return ("head", *self.operands())

    def outputs(self) -> tuple[str, ...]:
        return tuple(f"{name}_grad" for name in self.operands())

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, shapes[1:]

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        flops, elements = super().cost(inputs[1:], inputs[:1])
        return 2 * flops, 2 * elements

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, arrays = run.xp, dict(zip(self.inputs(), inputs, strict=True))
        grads = dict(zip(self.operands(), outputs, strict=True))
        dtype = computing_dtype(arrays["head"].dtype)
        weight = self.matrices(arrays["weight"], dtype)
        weight_grad = xp.zeros(weight.shape, dtype)
        groups, count = self.num_deformable_group, math.prod(self.kernel)
        for n, taps in enumerate(self.taps(run, arrays, dtype)):
            head = arrays["head"][n].reshape(self.num_group, weight.shape[1], -1).astype(dtype, copy=False)
            weight_grad += head @ self.columns(taps).transpose(0, 2, 1)
            step = (weight.transpose(0, 2, 1) @ head).reshape(groups, taps.values.shape[1], count, -1)
            values = step.transpose(0, 2, 3, 1).reshape(taps.values.shape)
            if taps.mask is not None:
                grads["mask"][n] = (values * taps.values).sum(axis=1).reshape(grads["mask"][n].shape)
                values = values * taps.mask
            total = xp.zeros(taps.pixels.shape, dtype)
            taps.neighbors.scatter_gradient(xp, values, total)
            images = (groups, taps.values.shape[1], *arrays["data"].shape[2:])
            grads["data"][n] = images_of(total, images).reshape(arrays["data"].shape[1:])
            slopes = xp.stack(taps.neighbors.position_gradients(xp, values, taps.pixels)).reshape(2, groups * count, -1)
            grads["offset"][n] = slopes.swapaxes(0, 1).reshape(arrays["offset"].shape[1:])
        xp.copyto(grads["weight"], weight_grad.reshape(arrays["weight"].shape), casting="unsafe")

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        raise NotImplementedError  # the second derivative is not implemented, as in MXNet


class _Clamped(_Deformable):
    """Positions outside the image are 0; positions up to a pixel past its last line read that line."""

    def corners(self, xp: ArrayNamespace, y: Array, x: Array, image: Array, height: int, width: int) -> Corners:
        is_inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        neighbors = corners(xp, xp.minimum(y, height - 1), xp.minimum(x, width - 1), image, height, width)
        masks = (is_inside, is_inside & (y < height - 1), is_inside & (x < width - 1))
        return Corners(
            neighbors.rows, *(xp.where(k, values, 0) for k, values in zip(masks, neighbors[1:], strict=True))
        )


@operator("_contrib_DeformableConvolution")
class DeformableConvolution(_Clamped, precision=Precision.FLOAT32):
    """Convolution with taps moved by offsets (Dai et al., "Deformable Convolutional Networks", 2017).

    Shapes: data (batch, channels, height, width); offset (batch, 2·groups·kernel, out height, out width), for
    each deformable group and tap its displacement down, then right; weight (num_filter, channels/num_group,
    *kernel); bias (num_filter,); output (batch, num_filter, out height, out width).
    """

    arguments: ClassVar[tuple[str, ...]] = ("data", "offset", "weight", "bias")
    layout: str | None = option(None, "Only NCHW.")


@operator("_backward__contrib_DeformableConvolution")
class BackwardDeformableConvolution(_BackwardDeformable, DeformableConvolution):
    """Gradients of DeformableConvolution."""

    arguments = ("head", "data", "offset", "weight")


@operator("_contrib_ModulatedDeformableConvolution")
class ModulatedDeformableConvolution(_Deformable, precision=Precision.FLOAT32):
    """Deformable convolution with a mask that weights the taps (Zhu et al., "Deformable ConvNets v2", 2018).

    Shapes: as DeformableConvolution; mask (batch, groups·kernel, out height, out width).
    """

    modulated = True
    arguments: ClassVar[tuple[str, ...]] = ("data", "offset", "mask", "weight", "bias")
    im2col_step: int = option(64, "Ignored.", low=0)
    layout: str | None = option(None, "Only NCHW.")


@operator("_backward__contrib_ModulatedDeformableConvolution")
class BackwardModulatedDeformableConvolution(_BackwardDeformable, ModulatedDeformableConvolution):
    """Gradients of ModulatedDeformableConvolution."""

    arguments = ("head", "data", "offset", "mask", "weight")
