"""Casts, and operators that depend only on the shape of the input: zeros_like, ones_like, shape_array, size_array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowmx.ops.arrays.creation_ops import Ones, Zeros
from flowmx.ops.arrays.linear import Inferred, InferredTypes, shape_of
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, describe, operator, required
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors
from flowmx.ops.registry.traits import BatchWise


class _Fill(Operator, shapes_only=("data",)):
    value = 0
    creation_op: type[Operator] = Zeros

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = self.value

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [None]

    def without_shape_inputs(self, shape: Shape, dtype: DType) -> Operator:
        return self.creation_op.create(shape=shape, dtype=dtype)


@operator("zeros_like")
class ZerosLike(_Fill, batch_wise=BatchWise.ALL):
    """Zeros of the input's shape and dtype."""


@operator("ones_like")
class OnesLike(_Fill, batch_wise=BatchWise.ALL):
    """Ones of the input's shape and dtype."""

    value = 1
    creation_op = Ones


class _Shape(Operator, no_gradient=True, shapes_only=("data",)):
    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [np.dtype(np.int64)]


@operator("shape_array")
class ShapeArray(_Shape):
    """The input's shape, as an int64 vector."""

    input_docs = describe(data="any shape, any dtype")
    output_doc = "(number of axes,), int64"
    onnx = "Shape"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [(-1,) if shapes[0] is None else (len(shapes[0]),)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = run.xp.asarray(inputs[0].shape)


@operator("size_array")
class SizeArray(_Shape):
    """The input's number of elements, as an int64 vector of length 1."""

    input_docs = describe(data="any shape, any dtype")
    output_doc = "(1,), int64"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [(1,)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = inputs[0].size


@operator("Cast", "cast")
class Cast(Operator, casts=True, batch_wise=BatchWise.ALL):
    """The input cast to a different dtype."""

    input_docs = describe(data="any shape, any dtype")
    output_doc = "The shape of data, dtype `dtype`"
    dtype: DType = required("The output's dtype.")

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [self.dtype]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.copyto(outputs[0], inputs[0], casting="unsafe")

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_cast_like", heads[0], shape_of(inputs, 0))]


@operator("_cast_like")
class CastLike(Operator, hidden=True, casts=True, batch_wise=BatchWise.FIRST):
    """The first input cast to the dtype of the second."""

    arguments = ("data", "like")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [shapes[0]]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [dtypes[1]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.copyto(outputs[0], inputs[0], casting="unsafe")

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_cast_like", heads[0], shape_of(inputs, 0)), None]

    def without_shape_inputs(self, shape: Shape, dtype: DType) -> Operator:
        return Cast.create(dtype=dtype)
