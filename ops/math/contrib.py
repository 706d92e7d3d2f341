"""Small operators of MXNet's contrib: allclose, index_array, div_sqrt_dim, gradientmultiplier, quadratic."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flowmx.ops.arrays.linear import Inferred, InferredTypes, parameters_of
from flowmx.ops.arrays.shape_arithmetic import axes_of
from flowmx.ops.nn.common import expect_rank
from flowmx.ops.registry.dtypes import BY_NAME, DType
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
    same_shape,
)
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors
from flowmx.ops.registry.traits import BatchWise, Passing, Precision


@operator("_contrib_allclose")
class AllClose(Operator, no_gradient=True, precision=Precision.WIDEST):
    """1 where |a - b| ≤ atol + rtol·|b| for all elements, else 0: uint8, of shape ()."""

    arguments = ("a", "b")
    input_docs = describe(
        a="any shape, any dtype",
        b="the shape and dtype of a",
    )
    output_doc = "(), uint8"
    rtol: float = option(1e-5, "Relative tolerance.")
    atol: float = option(1e-8, "Absolute tolerance.")
    equal_nan: bool = option(True, "NaN is close to NaN.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return [same_shape(self, shapes)] * 2, [()]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return super().infer_type(dtypes)[0], [BY_NAME["uint8"]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = run.xp.allclose(*inputs, rtol=self.rtol, atol=self.atol, equal_nan=self.equal_nan)


@operator("_contrib_index_array")
class IndexArray(Operator, no_gradient=True, input_named=True, shapes_only=("data",)):
    """The coordinates of each element, on a new last axis: int64 (*shape, axes)."""

    input_docs = describe(data="any shape, any dtype; only its shape is used")
    output_doc = "(*shape, number of axes), int64"
    axes: Shape | None = option(None, "The axes whose coordinates to return; None for all.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = shapes[0]
        if shape is None:
            return shapes, [None]
        return shapes, [(*shape, len(self.selected_axes(len(shape))))]

    def selected_axes(self, ndim: int) -> Shape:
        """Return the axes, counted from the front."""
        return tuple(range(ndim)) if self.axes is None else axes_of(self, self.axes, ndim, "axes")

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [BY_NAME["int64"]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        shape = inputs[0].shape
        for index, axis in enumerate(self.selected_axes(len(shape))):
            steps = run.xp.arange(shape[axis])
            outputs[0][..., index] = steps.reshape(-1, *(1,) * (len(shape) - axis - 1))


@operator("_contrib_div_sqrt_dim")
class DivSqrtDim(Operator, in_place=((0, 0),), batch_wise=BatchWise.ALL):
    """The input divided by the square root of the length of its last axis."""

    input_docs = describe(data="(..., size), float")
    output_doc = "The shape and dtype of data"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        expect_rank(self, "data", shapes[0], 1)
        return shapes, list(shapes)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x = inputs[0]
        root = x.dtype.type(math.sqrt(max(1, x.shape[-1])))
        run.xp.divide(x, root, out=outputs[0], casting="unsafe")

    def multiplier(self, shape: Shape) -> float:
        return 1 / math.sqrt(max(1, shape[-1]))

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_contrib_div_sqrt_dim", heads[0])]


# -- the gradient, multiplied ------------------------------------------------------------------------------


@family
class _Multiplier(Operator, in_place=((0, 0),)):
    scalar: float = option(1.0, "The number.")
    is_int: bool = option(True, "Ignored; exists for MXNet's symbol files.")


@operator("_contrib_gradientmultiplier")
class GradientMultiplier(_Multiplier, passing=Passing.ALWAYS, batch_wise=BatchWise.ALL):
    """A copy of the input, whose gradient is multiplied by a number; a negative one reverses it."""

    onnx = "Identity"

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.copyto(outputs[0], inputs[0])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_contrib_backward_gradientmultiplier", heads[0], **parameters_of(self))]


@operator("_contrib_backward_gradientmultiplier")
class BackwardGradientMultiplier(_Multiplier, hidden=True):
    """The input times a number."""

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.multiply(inputs[0], inputs[0].dtype.type(self.scalar), out=outputs[0])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_contrib_backward_gradientmultiplier", heads[0], **parameters_of(self))]


# -- a polynomial ------------------------------------------------------------------------------------------


@family
class _Quadratic(Operator):
    a: float = option(0.0, "Coefficient of x².")
    b: float = option(0.0, "Coefficient of x.")
    c: float = option(0.0, "The constant.")


@operator("_contrib_quadratic")
class Quadratic(_Quadratic, in_place=((0, 0),), input_named=True, batch_wise=BatchWise.ALL):
    """Elementwise a x² + b x + c."""

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x = inputs[0]
        outputs[0][...] = (self.a * x + self.b) * x + self.c

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_contrib_backward_quadratic", heads[0], inputs[0], **parameters_of(self))]


@operator("_contrib_backward_quadratic")
class BackwardQuadratic(_Quadratic, hidden=True):
    """The gradient of quadratic."""

    arguments = ("head", "data")

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = inputs[0] * (2 * self.a * inputs[1] + self.b)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        head_gradient = F.op("_contrib_backward_quadratic", heads[0], inputs[1], **parameters_of(self))
        return [head_gradient, heads[0] * inputs[0] * (2 * self.a)]
