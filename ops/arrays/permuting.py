"""Operators that reorder elements: transpose, swapaxes, reverse, depth_to_space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from flowmx.errors import ShapeError
from flowmx.ops.arrays.linear import Inferred
from flowmx.ops.arrays.reshape import View
from flowmx.ops.arrays.shape_arithmetic import axes_of, axis_of, length_product, part_length
from flowmx.ops.registry.operators import Array, Operator, Shape, ShapeOrNone, describe, operator, option, required
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors
from flowmx.ops.registry.traits import BatchWise


class Permuting(View):
    """Base of operators that permute axes."""

    def order(self, ndim: int) -> Shape:
        """Return the input axis for each output axis."""
        raise NotImplementedError

    def mixes_batch(self, inputs: Sequence[Shape]) -> bool:
        return self.order(len(inputs[0]))[:1] != (0,)


@operator("transpose")
class Transpose(Permuting, batch_wise=BatchWise.FIRST):
    """The input with its axes permuted; reversed if ``axes`` is ()."""

    input_docs = describe(data="any shape, any dtype")
    output_doc = "The axes of data in the new order, the dtype of data"
    axes: Shape = option((), "The input axis for each output axis; () to reverse the axes.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = shapes[0]
        if shape is None:
            return shapes, [(-1,) * len(self.axes) if self.axes else None]
        if not self.axes:
            return shapes, [shape[::-1]]
        axes = axes_of(self, self.axes, len(shape), "axes")
        if len(axes) != len(shape):
            raise ShapeError(f"{self.name}: axes is {self.axes}, expected each of the {len(shape)} axes once")
        return shapes, [tuple(shape[axis] for axis in axes)]

    def infer_back(self, shapes: list[ShapeOrNone], outputs: list[ShapeOrNone]) -> list[ShapeOrNone]:
        output = outputs[0]
        if output is None:
            return shapes
        axes = axes_of(self, self.axes, len(output), "axes") if self.axes else tuple(range(len(output)))[::-1]
        return [tuple(output[axes.index(axis)] for axis in range(len(output)))]

    def order(self, ndim: int) -> Shape:
        return tuple([axis % ndim for axis in self.axes]) or tuple(reversed(range(ndim)))

    def view(self, x: Array, shape: Shape) -> Array:
        return x.transpose(self.axes or None)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        axes = [axis % len(self.axes) for axis in self.axes]
        return [F.transpose(heads[0], axes=tuple(axes.index(axis) for axis in range(len(axes))))]


@operator("SwapAxis", "swapaxes")
class SwapAxis(Permuting, input_named=True, batch_wise=BatchWise.FIRST):
    """The input with two axes exchanged."""

    input_docs = describe(data="any shape, any dtype")
    output_doc = "The axes of data with two exchanged, the dtype of data"
    dim1: int = option(0, "The first axis.")
    dim2: int = option(0, "The second axis.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        if shapes[0] is None:
            return shapes, [None]
        shape = list(shapes[0])
        first = axis_of(self, self.dim1, len(shape), "dim1")
        second = axis_of(self, self.dim2, len(shape), "dim2")
        shape[first], shape[second] = shape[second], shape[first]
        return shapes, [tuple(shape)]

    def order(self, ndim: int) -> Shape:
        axes = list(range(ndim))
        axes[self.dim1], axes[self.dim2] = axes[self.dim2], axes[self.dim1]
        return tuple(axes)

    def view(self, x: Array, shape: Shape) -> Array:
        return x.swapaxes(self.dim1, self.dim2)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.SwapAxis(heads[0], dim1=self.dim1, dim2=self.dim2)]


@operator("reverse", "flip")
class Reverse(View, input_named=True, batch_wise=BatchWise.FIRST):
    """The elements in reverse order along some axes."""

    input_docs = describe(data="any shape, any dtype")
    output_doc = "The shape and dtype of data"
    axis: Shape = required("The axes.")

    def mixes_batch(self, inputs: Sequence[Shape]) -> bool:
        return any(axis % len(inputs[0]) == 0 for axis in self.axis)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        if shapes[0] is not None:
            axes_of(self, self.axis, len(shapes[0]))
        return shapes, [shapes[0]]

    def infer_back(self, shapes: list[ShapeOrNone], outputs: list[ShapeOrNone]) -> list[ShapeOrNone]:
        return outputs

    def view(self, x: Array, shape: Shape) -> Array:
        axes = axes_of(self, self.axis, x.ndim)
        return x[tuple(slice(None, None, -1 if axis in axes else 1) for axis in range(x.ndim))]

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.reverse(heads[0], axis=self.axis)]


def _image_shape(op: Operator, shape: Shape) -> tuple[int, int, int, int]:
    if len(shape) != 4:
        raise ShapeError(f"{op.name}: data has shape {shape}, expected 4 axes (batch, channel, height, width)")
    if 0 in shape:
        raise ShapeError(f"{op.name}: data has shape {shape}, expected at least one element on each axis")
    n, c, h, w = shape
    return n, c, h, w


@operator("depth_to_space")
class DepthToSpace(View, input_named=True, batch_wise=BatchWise.FIRST):
    """Move blocks of channels to space: (n, c·b², h, w) becomes (n, c, h·b, w·b)."""

    input_docs = describe(data="(n, c·b², h, w), any dtype")
    output_doc = "(n, c, h·b, w·b), the dtype of data"
    onnx = "DepthToSpace"
    onnx_attributes: ClassVar[dict[str, str]] = {"blocksize": "block_size"}
    block_size: int = required("b, the side of a block.", low=1)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        if shapes[0] is None:
            return shapes, [None]
        n, c, h, w = _image_shape(self, shapes[0])
        b = self.block_size
        return shapes, [
            (n, part_length(self, c, b * b, "number of channels"), length_product(h, b), length_product(w, b))
        ]

    def view(self, x: Array, shape: Shape) -> Array:
        n, c, h, w = x.shape
        b = self.block_size
        blocks = x.reshape(n, b, b, c // (b * b), h, w)
        return blocks.transpose(0, 3, 4, 1, 5, 2).reshape(shape)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.space_to_depth(heads[0], block_size=self.block_size)]


@operator("space_to_depth")
class SpaceToDepth(View, input_named=True, batch_wise=BatchWise.FIRST):
    """Move blocks of space to channels: (n, c, h·b, w·b) becomes (n, c·b², h, w)."""

    input_docs = describe(data="(n, c, h·b, w·b), any dtype")
    output_doc = "(n, c·b², h, w), the dtype of data"
    onnx = "SpaceToDepth"
    onnx_attributes: ClassVar[dict[str, str]] = {"blocksize": "block_size"}
    block_size: int = required("b, the side of a block.", low=1)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        if shapes[0] is None:
            return shapes, [None]
        n, c, h, w = _image_shape(self, shapes[0])
        b = self.block_size
        return shapes, [
            (n, length_product(c, b * b), part_length(self, h, b, "height"), part_length(self, w, b, "width")),
        ]

    def view(self, x: Array, shape: Shape) -> Array:
        n, c, h, w = x.shape
        b = self.block_size
        blocks = x.reshape(n, c, h // b, b, w // b, b)
        return blocks.transpose(0, 3, 5, 1, 2, 4).reshape(shape)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.depth_to_space(heads[0], block_size=self.block_size)]
