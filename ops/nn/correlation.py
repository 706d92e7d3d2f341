"""Correlation: the similarity of two feature maps, at displacements of one against the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from flowmx.errors import ParameterError, ShapeError
from flowmx.ops.arrays.linear import Inferred
from flowmx.ops.nn.common import computing_dtype, expect_rank, non_defaults
from flowmx.ops.registry.operators import (
    Array,
    Operator,
    Run,
    Shape,
    ShapeOrNone,
    describe,
    operator,
    option,
    same_shape,
)
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensors
from flowmx.ops.registry.traits import Precision


@operator("Correlation")
class Correlation(Operator, heavy=True, precision=Precision.WIDEST):
    """The mean product of patches of two feature maps, for every displacement up to a maximum.

    From Dosovitskiy et al., "FlowNet", 2015. Shapes: data1 and data2 (batch, channels, height, width), output
    (batch, displacements, out height, out width), row by row of a square of 2·(max_displacement // stride2) + 1
    displacements a side. ``is_multiply=False`` takes the mean absolute difference instead.
    """

    arguments: ClassVar[tuple[str, ...]] = ("data1", "data2")
    input_docs = describe(
        data1="(batch, channels, height, width), float",
        data2="the shape and dtype of data1",
    )
    output_doc = "(batch, displacements, out height, out width), the dtype of data1"
    json_outputs = 3
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
        """Return the number of patches along an axis; -1 if its length is unknown."""
        if length == -1:
            return -1
        positions = length + 2 * self.pad_size - 2 * (self.max_displacement + self.kernel_size // 2)
        return -(-positions // self.stride1)

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
        products = batch * displacements * height * width
        return 2 * products * inputs[0][1] * self.kernel_size**2, products

    def pad(self, xp: ArrayNamespace, data: Array) -> Array:
        """Return the data in the computing dtype, padded with zeros."""
        pad = self.pad_size
        return xp.pad(data.astype(computing_dtype(data.dtype)), ((0, 0), (0, 0), (pad, pad), (pad, pad)))

    def views(self, size: Shape) -> Iterator[tuple[Any, Any]]:
        """Iterate over the displacements: the two regions of the padded maps to compare; ``size`` is the output's."""
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
        """Iterate over the offsets in a patch: the elements of a region (..., height, width) at that offset."""
        reach = [(count - 1) * self.stride1 + 1 for count in size]
        for y in range(self.kernel_size):
            for x in range(self.kernel_size):
                yield array[..., y : y + reach[0] : self.stride1, x : x + reach[1] : self.stride1]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, out = run.xp, outputs[0]
        first, second = (self.pad(xp, data) for data in inputs)
        size = out.shape[2:]
        scale = 1 / (self.kernel_size**2 * inputs[0].shape[1])
        for place, (region, shifted) in enumerate(self.views(size)):
            if self.is_multiply:
                total = xp.einsum("nchw,nchw->nhw", first[region], second[shifted])
            else:
                total = xp.abs(first[region] - second[shifted]).sum(axis=1)
            out[:, place] = sum(self.patches(total, size)) * scale

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return list(F.op("_backward_Correlation", heads[0], *list(inputs), **non_defaults(self)))


@operator("_backward_Correlation")
class BackwardCorrelation(Correlation, hidden=True):
    """Gradients of Correlation for both maps."""

    arguments = ("head", "data1", "data2")
    output_names = ("data1_grad", "data2_grad")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, shapes[1:]

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        flops, elements = super().cost(inputs[1:], inputs[:1])
        return 2 * flops, 2 * elements

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, head = run.xp, inputs[0]
        first, second = (self.pad(xp, data) for data in inputs[1:])
        grads = [xp.zeros_like(data) for data in (first, second)]
        size = head.shape[2:]
        scale = 1 / (self.kernel_size**2 * first.shape[1])
        for place, (region, shifted) in enumerate(self.views(size)):
            sums = xp.zeros((len(first), *first[region].shape[2:]), first.dtype)
            for part in self.patches(sums, size):
                part += head[:, place] * scale
            shares = sums[:, None]
            if self.is_multiply:
                grads[0][region] += shares * second[shifted]
                grads[1][shifted] += shares * first[region]
            else:
                step = xp.where(first[region] >= second[shifted], shares, -shares)
                grads[0][region] += step
                grads[1][shifted] -= step
        inner = slice(self.pad_size, -self.pad_size or None)
        for out, grad in zip(outputs, grads, strict=True):
            xp.copyto(out, grad[..., inner, inner], casting="unsafe")

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        raise NotImplementedError  # the second derivative is not implemented, as in MXNet
