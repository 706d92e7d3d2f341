"""Correlation: how alike two feature maps are, at displacements of one against the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from flowmx.errors import ParameterError, ShapeError
from flowmx.ops.arrays.linear import Inferred
from flowmx.ops.nn.common import bound, computing_dtype, expect_rank
from flowmx.ops.registry.operators import (
    Array,
    Operator,
    Run,
    Shape,
    ShapeOrNone,
    described,
    operator,
    option,
    same_shape,
)
from flowmx.ops.registry.traits import Precision


@operator("Correlation")
class Correlation(Operator, heavy=True, precision=Precision.WIDEST):
    """The mean product of patches of two feature maps, for every displacement up to a greatest one.

    From Dosovitskiy et al., "FlowNet", 2015. Shapes: data1 and data2 (batch, channels, height, width), output
    (batch, displacements, out height, out width), row by row of a square of 2·(max_displacement // stride2) + 1
    displacements a side. ``is_multiply=False`` takes the mean absolute difference instead.
    """

    arguments: ClassVar[tuple[str, ...]] = ("data1", "data2")
    input_docs = described(
        data1="(batch, channels, height, width), float",
        data2="the shape and dtype of data1",
    )
    output_doc = "(batch, displacements, out height, out width), the dtype of data1"
    outputs_counted = 3
    kernel_size: int = option(1, "Length of a patch; odd.", low=1)
    max_displacement: int = option(1, "The greatest displacement along either axis.", low=0)
    stride1: int = option(1, "Steps between the patches of data1.", low=1)
    stride2: int = option(1, "Steps between displacements.", low=1)
    pad_size: int = option(0, "Zeros around both.", low=0)
    is_multiply: bool = option(True, "Products, or else absolute differences.")

    def __post_init__(self) -> None:
        if self.kernel_size % 2 == 0:
            raise ParameterError(f"{self.name}: kernel_size is {self.kernel_size}, expected an odd number")

    def _length(self, length: int) -> int:
        """The number of patches along an axis; -1 where its length is not known."""
        if length == -1:
            return -1
        free = length + 2 * self.pad_size - 2 * (self.max_displacement + self.kernel_size // 2)
        return -(-free // self.stride1)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data = same_shape(self, shapes)
        expect_rank(self, "data1", data, 4, 4)
        if data is None:
            return shapes, [None]
        size = tuple(self._length(length) for length in data[2:])
        if any(length != -1 and length < 1 for length in size):
            raise ShapeError(
                f"{self.name}: input data1 has shape {data}, too small for max_displacement {self.max_displacement} "
                f"and kernel_size {self.kernel_size} with pad_size {self.pad_size}"
            )
        side = 2 * (self.max_displacement // self.stride2) + 1
        return [data, data], [(data[0], side * side, *size)]

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        batch, displacements, height, width = outputs[-1]
        made = batch * displacements * height * width
        return 2 * made * inputs[0][1] * self.kernel_size**2, made

    def padded(self, xp: Any, data: Array) -> Array:
        """The data in the computing dtype with zeros around it."""
        pad = self.pad_size
        return xp.pad(data.astype(computing_dtype(data.dtype)), ((0, 0), (0, 0), (pad, pad), (pad, pad)))

    def views(self, size: Shape) -> Iterator[tuple[Any, Any]]:
        """For each displacement, the regions of the two padded maps that are compared; ``size`` is the output's."""
        lengths = [(count - 1) * self.stride1 + self.kernel_size for count in size]
        radius = self.max_displacement // self.stride2
        start = self.max_displacement
        shifts = [step * self.stride2 for step in range(-radius, radius + 1)]

        def view(y: int, x: int) -> Any:
            return (..., slice(start + y, start + y + lengths[0]), slice(start + x, start + x + lengths[1]))

        for y in shifts:
            for x in shifts:
                yield view(0, 0), view(y, x)

    def patches(self, array: Array, size: Shape) -> Iterator[Array]:
        """For each offset in a patch, the view of a region (..., height, width) at that offset of all patches."""
        reach = [(count - 1) * self.stride1 + 1 for count in size]
        for y in range(self.kernel_size):
            for x in range(self.kernel_size):
                yield array[..., y : y + reach[0] : self.stride1, x : x + reach[1] : self.stride1]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, out = run.xp, outputs[0]
        one, other = (self.padded(xp, each) for each in inputs)
        size = out.shape[2:]
        scale = 1 / (self.kernel_size**2 * inputs[0].shape[1])
        for place, (here, there) in enumerate(self.views(size)):
            if self.is_multiply:
                total = xp.einsum("nchw,nchw->nhw", one[here], other[there])
            else:
                total = xp.abs(one[here] - other[there]).sum(axis=1)
            out[:, place] = sum(self.patches(total, size)) * scale

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return list(F.op("_backward_Correlation", heads[0], *list(inputs), **bound(self)))


@operator("_backward_Correlation")
class BackwardCorrelation(Correlation, hidden=True):
    """Gradients of Correlation for both maps."""

    arguments = ("head", "data1", "data2")
    output_names = ("data1_grad", "data2_grad")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, shapes[1:]

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        flops, moved = super().cost(inputs[1:], inputs[:1])
        return 2 * flops, 2 * moved

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, head = run.xp, inputs[0]
        one, other = (self.padded(xp, each) for each in inputs[1:])
        grads = [xp.zeros_like(each) for each in (one, other)]
        size = head.shape[2:]
        scale = 1 / (self.kernel_size**2 * one.shape[1])
        for place, (here, there) in enumerate(self.views(size)):
            around = xp.zeros((len(one), *one[here].shape[2:]), one.dtype)
            for part in self.patches(around, size):
                part += head[:, place] * scale
            shares = around[:, None]
            if self.is_multiply:
                grads[0][here] += shares * other[there]
                grads[1][there] += shares * one[here]
            else:
                step = xp.where(one[here] >= other[there], shares, -shares)
                grads[0][here] += step
                grads[1][there] -= step
        inner = slice(self.pad_size, -self.pad_size or None)
        for out, grad in zip(outputs, grads, strict=True):
            xp.copyto(out, grad[..., inner, inner], casting="unsafe")

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        raise NotImplementedError  # no second order
