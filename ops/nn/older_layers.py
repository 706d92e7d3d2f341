"""Layers of MXNet's older interface: Crop, and a sparsity penalty on activations."""

from __future__ import annotations

from collections.abc import Sequence

from flowmx.errors import ParameterError, ShapeError
from flowmx.ops.arrays.linear import Inferred, Linear, linear, shape_of
from flowmx.ops.math.reduce import widen
from flowmx.ops.nn.common import expect_rank, expect_shape
from flowmx.ops.registry.operators import (
    Array,
    Operator,
    Run,
    Shape,
    ShapeOrNone,
    describe,
    operator,
    option,
    required,
)
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors
from flowmx.ops.registry.traits import Precision


@linear("Crop")
class Crop(Linear, input_named=True):
    """A part of images (batch, channel, height, width), as large as ``h_w`` or as the images of a second input."""

    variadic = "num_args"
    input_docs = describe(
        data=(
            "images (batch, channels, height, width), any dtype, and optionally images of the output's height and width"
        ),
    )
    output_doc = "(batch, channels, height, width) of the part, the dtype of data"
    shape_only = True
    num_args: int = required("1, or 2 with an input of the output's height and width.", low=1)
    offset: Shape = option((0, 0), "The first row and column of the part.", low=0)
    h_w: Shape = option((0, 0), "The height and width of the part, if there is one input.", low=0)
    center_crop: bool = option(False, "Take the middle, and ignore the offset.")

    def __post_init__(self) -> None:
        for name, value in (("offset", self.offset), ("h_w", self.h_w)):
            if len(value) != 2:
                raise ParameterError(f"{self.name}: {name} is {value}, expected 2 numbers")

    def corner(self, size: Shape, part_size: Shape) -> Shape:
        """Return the first index of the part on each axis.

        Raises:
            ShapeError: the part does not lie in the image.
        """
        spare = [length - part for length, part in zip(size, part_size, strict=True)]
        begin = tuple(margin // 2 for margin in spare) if self.center_crop else self.offset
        if any(part < 1 or other_axes < first for part, first, other_axes in zip(part_size, begin, spare, strict=True)):
            raise ShapeError(f"{self.name}: a part of {part_size} at {begin} does not fit in the image of {size}")
        return begin

    def part(self, image: Array, part_size: Shape) -> Array:
        """Return a view of the part."""
        y, x = self.corner(image.shape[2:], part_size)
        return image[:, :, y : y + part_size[0], x : x + part_size[1]]

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data, *like = shapes
        if len(like) > 1:
            raise ParameterError(f"{self.name}: {len(shapes)} inputs were given, expected 1 or 2")
        for position, shape in enumerate(shapes):
            expect_rank(self, f"arg{position}", shape, 4, 4)
        part_size = (like[0] or (-1,) * 4)[2:] if like else self.h_w
        if data is None:
            return shapes, [(-1, -1, *part_size)]
        if -1 not in (*data[2:], *part_size):
            self.corner(data[2:], part_size)
        return shapes, [(*data[:2], *part_size)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = self.part(inputs[0], outputs[0].shape[2:])

    def apply_transpose(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        out[...] = 0
        self.part(out, head.shape[2:])[...] = head


@operator("IdentityAttachKLSparseReg")
class IdentityAttachKLSparseReg(
    Operator, mode_matters=True, in_place=((0, 0),), precision=Precision.FLOAT32, input_named=True
):
    """A copy of activations from 0 to 1, with a penalty in the gradient that makes them sparse.

    The gradient of the KL divergence between each unit's mean activation and the target is added to the head
    gradient. The means are running averages over batches, in the state ``moving_avg``, one per unit on axis 1.
    """

    auxiliary = ("moving_avg",)
    input_docs = describe(
        data="(batch, units, ...), float",
        moving_avg="(units,), the dtype of data; a state, updated in training",
    )
    output_doc = "The shape and dtype of data"
    onnx = "Identity"
    sparseness_target: float = option(0.1, "The target mean activation.", 0, 1)
    penalty: float = option(0.001, "Factor of the penalty's gradient.")
    momentum: float = option(0.9, "The weight of the old running average at each batch.", 0, 1)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data, average = shapes
        expect_rank(self, "data", data, 2)
        return [data, expect_shape(self, "moving_avg", average, None if data is None else data[1:2])], [data]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, average = inputs
        if run.train:
            other_axes = tuple(axis for axis in range(data.ndim) if axis != 1)
            average *= self.momentum
            average += (1 - self.momentum) * widen(data).mean(axis=other_axes)
        run.xp.copyto(outputs[0], data)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        # The current average, which the forward has updated.
        average, target = shape_of(inputs, 1), self.sparseness_target
        push = ((1.0 - target) / (1.0 - average) - target / average) * self.penalty
        return [heads[0] + F.op("_spread_channel", push, heads[0])]
