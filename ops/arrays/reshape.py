"""Operators that change the shape and keep the elements: reshape, flatten, expand_dims, squeeze."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flowmx.errors import ShapeError
from flowmx.ops.arrays.linear import Inferred, InferredTypes, shape_of
from flowmx.ops.arrays.reshape_codes import resolve_reshape
from flowmx.ops.arrays.shape_arithmetic import axes_of, axis_of, length_product
from flowmx.ops.registry.dtypes import DType
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
from flowmx.ops.registry.traits import BatchParts, BatchWise, Quantization


class View(Operator, moves=True):
    """Base of operators whose output is a copy of a view of the input."""

    def view(self, x: Array, shape: Shape) -> Array:
        """Return a view of the input with the shape of the output."""
        return x.reshape(shape)

    def batch_parts(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> BatchParts | None:
        # The order of elements stays the same, so equal parts of axis 0 of the input are equal parts of the output.
        is_own = self.traits.batch_wise is BatchWise.OWN and inputs[0] and outputs[0]
        return BatchParts((0,), (0,)) if is_own else super().batch_parts(inputs, outputs)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.copyto(outputs[0], self.view(inputs[0], outputs[0].shape))

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.reshape_like(heads[0], shape_of(inputs, 0)), *([None] * (len(self.arguments) - 1))]


@operator("Reshape", "reshape")
class Reshape(View, in_place=((0, 0),), view=True, batch_wise=BatchWise.OWN):
    """The same elements with a different shape.

    In ``shape`` 0 keeps the input's axis, -1 infers one axis, -2 copies all the rest, -3 merges two axes, and
    -4 splits one axis into the two lengths that follow.
    """

    input_docs = describe(data="any shape, any dtype")
    output_doc = "The new shape, the dtype of data"
    shape: Shape = option((), "The new shape, with the codes above.")
    reverse: bool = option(False, "Match the codes from the right.")
    target_shape: Shape = option((), "MXNet's legacy form: the new shape; 0 infers one axis.")
    keep_highest: bool = option(False, "With target_shape: keep the first axis.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        codes = self.shape
        if not codes and any(self.target_shape):
            codes = tuple(length or -1 for length in self.target_shape)
            if self.keep_highest:
                codes = (0, *codes[1:])
        data = shapes[0]
        if data is None:
            # Without -2, -3 and -4 the rank and most lengths are known.
            if not codes or min(codes) < -1:
                return shapes, [None]
            return shapes, [tuple(code or -1 for code in codes)]
        return shapes, [resolve_reshape(data, codes, self.reverse)]

    def infer_back(self, shapes: list[ShapeOrNone], outputs: list[ShapeOrNone]) -> list[ShapeOrNone]:
        data, output = shapes[0], outputs[0]
        if data is None or data.count(-1) != 1 or output is None or -1 in output:
            return shapes
        others = math.prod(length for length in data if length != -1)
        if not others or math.prod(output) % others:
            return shapes
        return [tuple(math.prod(output) // others if length == -1 else length for length in data)]


@operator("Flatten", "flatten")
class Flatten(
    View, in_place=((0, 0),), view=True, quantized=Quantization("_contrib_quantized_flatten"), batch_wise=BatchWise.OWN
):
    """The input with all axes except the first merged: (n, a, b, ...) becomes (n, a·b·...)."""

    input_docs = describe(data="(n, ...), any dtype")
    output_doc = "(n, product of the other lengths), the dtype of data"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = shapes[0]
        if shape is None:
            return shapes, [(-1, -1)]
        if not shape:
            raise ShapeError(f"{self.name}: data has shape (), expected at least 1 axis")
        return shapes, [(shape[0], length_product(*shape[1:]))]


@operator("reshape_like")
class ReshapeLike(View, in_place=((0, 0),), view=True, shapes_only=("rhs",)):
    """The elements of ``lhs`` in the shape of ``rhs``, or with a range of axes replaced by a range of those of rhs."""

    arguments = ("lhs", "rhs")
    input_docs = describe(
        lhs="any shape, any dtype",
        rhs="any shape, any dtype; only its shape is used",
    )
    output_doc = "The shape of rhs, or of lhs with some axes of rhs; the dtype of lhs"
    lhs_begin: int | None = option(None, "First axis of lhs to replace.")
    lhs_end: int | None = option(None, "The axis of lhs after the last to replace.")
    rhs_begin: int | None = option(None, "First axis of rhs to take.")
    rhs_end: int | None = option(None, "The axis of rhs after the last to take.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        lhs, rhs = shapes
        replaces_all = (self.lhs_begin, self.lhs_end, self.rhs_begin, self.rhs_end) == (None,) * 4
        if rhs is None or (lhs is None and not replaces_all):
            return shapes, [None]
        if replaces_all or lhs is None:
            target = rhs
        else:
            start, stop, _ = slice(self.lhs_begin, self.lhs_end).indices(len(lhs))
            target = lhs[:start] + rhs[slice(self.rhs_begin, self.rhs_end)] + lhs[stop:]
        if lhs is not None and -1 not in (*lhs, *target) and math.prod(lhs) != math.prod(target):
            raise ShapeError(
                f"{self.name}: lhs has shape {lhs} ({math.prod(lhs)} elements), expected as many as in {target}"
            )
        return shapes, [target]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [dtypes[0]]

    def without_shape_inputs(self, shape: Shape, dtype: DType) -> Operator:
        return Reshape.create(shape=shape)


@operator("expand_dims")
class ExpandDims(View, in_place=((0, 0),), view=True, batch_wise=BatchWise.OWN):
    """A new axis of length 1 at position ``axis`` of the output."""

    input_docs = describe(data="any shape, any dtype")
    output_doc = "The shape of data with a new axis of length 1, the dtype of data"
    axis: int = required("Position of the new axis.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = shapes[0]
        if shape is None:
            return shapes, [None]
        axis = axis_of(self, self.axis, len(shape) + 1)
        return shapes, [(*shape[:axis], 1, *shape[axis:])]

    def infer_back(self, shapes: list[ShapeOrNone], outputs: list[ShapeOrNone]) -> list[ShapeOrNone]:
        output = outputs[0]
        if not output:
            return shapes
        axis = axis_of(self, self.axis, len(output))
        return [(*output[:axis], *output[axis + 1 :])]


@operator("squeeze")
class Squeeze(View, in_place=((0, 0),), view=True, input_named=True, batch_wise=BatchWise.OWN):
    """The input without all axes of length 1, or without the ones in ``axis``."""

    input_docs = describe(data="any shape, any dtype")
    output_doc = "The shape of data without the axes of length 1; (1,) if no axis remains; the dtype of data"
    axis: Shape | None = option(None, "The axes to drop; None for all of length 1.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = shapes[0]
        if shape is None or (self.axis is None and -1 in shape):
            return shapes, [None]
        if self.axis is None:
            dropped = tuple(axis for axis, length in enumerate(shape) if length == 1)
        else:
            dropped = axes_of(self, self.axis, len(shape))
            for axis in dropped:
                if shape[axis] not in (1, -1):
                    raise ShapeError(
                        f"{self.name}: axis {axis} of the input's shape {shape} has length {shape[axis]}, expected 1"
                    )
        return shapes, [tuple(n for axis, n in enumerate(shape) if axis not in dropped) or (1,)]
