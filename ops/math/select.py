"""Elementwise selection and sums of several arrays: where, clip, add_n."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from flowmx.errors import ShapeError, TypeInferenceError
from flowmx.ops.arrays.linear import Inferred, InferredTypes
from flowmx.ops.formulas.array_formula import clip, clip_ufunc
from flowmx.ops.registry.dtypes import DType, element, is_floating, name_of
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, describe, merge, operator, required
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensors, UfuncCall
from flowmx.ops.registry.traits import BatchWise, Passing, Precision


@operator("where")
class Where(Operator, precision=Precision.WIDEST, batch_wise=BatchWise.EACH):
    """``x`` where the condition is not 0, else ``y``. A condition with one axis selects whole rows."""

    arguments = ("condition", "x", "y")
    input_docs = describe(
        condition="the shape of x, or only its first axis, any dtype",
        x="any shape, any dtype",
        y="the shape and dtype of x",
    )
    output_doc = "The shape and dtype of x"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        condition, x, y = shapes
        shape = merge(x, y)
        if shape is False:
            raise ShapeError(f"{self.name}: y has shape {y}, expected {x}, the shape of x")
        if condition is not None and shape is not None:
            rows = len(condition) == 1 and merge(condition, shape[:1]) is not False
            if not rows and merge(condition, shape) is False:
                raise ShapeError(f"{self.name}: condition has shape {condition}, expected {shape} or {shape[:1]}")
        is_known = condition is not None and -1 not in condition
        return [condition, shape, shape], [shape if is_known else None]

    def infer_back(self, shapes: list[ShapeOrNone], outputs: list[ShapeOrNone]) -> list[ShapeOrNone]:
        return [shapes[0], outputs[0], outputs[0]]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        condition, x, y = dtypes
        if x is not None and y is not None and x != y:
            raise TypeInferenceError(f"{self.name}: y has dtype {name_of(y)}, expected {name_of(x)}, the dtype of x")
        dtype = x or y
        return [condition, dtype, dtype], [dtype]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        (condition, x, y), out = inputs, outputs[0]
        mask = condition != 0
        if condition.ndim < x.ndim and run.xp is np:  # copies of whole rows are several times faster
            out[mask], out[~mask] = x[mask], y[~mask]
            return
        run.xp.copyto(out, y)
        run.xp.copyto(out, x, where=mask.reshape((*mask.shape, *(1,) * (x.ndim - mask.ndim))))

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        zero = F.zeros_like(heads[0])
        return [None, F.where(inputs[0], heads[0], zero), F.where(inputs[0], zero, heads[0])]


def clip_integers(xp: ArrayNamespace, x: Array, low: float, high: float, out: Array) -> None:
    """Clip integers to bounds of any size: compare with the exact bounds, write the bounds converted as in C."""
    limits, kind = np.iinfo(x.dtype), x.dtype.type
    if low <= high and low <= limits.max and high >= limits.min:
        clip(xp, x, kind(int(max(low, limits.min))), kind(int(min(high, limits.max))), out)
        return
    above, below = xp.greater(x, np.float64(high)), xp.less(x, np.float64(low))
    out[...] = xp.where(above, element(high, x.dtype), xp.where(below, element(low, x.dtype), x))


@operator("clip")
class Clip(Operator, in_place=((0, 0),), keeps_layout=True, batch_wise=BatchWise.ALL):
    """Each element clipped to ``a_min`` ... ``a_max``."""

    a_min: float = required("The smallest number.")
    a_max: float = required("The largest number.")

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, out = inputs[0], outputs[0]
        if is_floating(x.dtype):
            clip(run.xp, x, x.dtype.type(self.a_min), x.dtype.type(self.a_max), out)
        else:
            clip_integers(run.xp, x, self.a_min, self.a_max, out)

    def as_ufunc(self, xp: ArrayNamespace, dtype: DType) -> UfuncCall | None:
        return clip_ufunc(xp, dtype, self.a_min, self.a_max)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        x, g = inputs[0], heads[0]
        if math.isfinite(self.a_min):
            g = g * (x >= self.a_min)
        if math.isfinite(self.a_max):
            g = g * (x <= self.a_max)
        return [g]


@operator("add_n", "ElementWiseSum")
class AddN(
    Operator,
    in_place=((0, 0),),
    keeps_layout=True,
    passing=Passing.ALONE,
    precision=Precision.WIDEST,
    batch_wise=BatchWise.ALL,
):
    """The sum of inputs of the same shape."""

    variadic = "num_args"
    onnx = "Sum"
    num_args: int = required("Number of inputs.", low=1)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        out = outputs[0]
        if len(inputs) == 1:
            run.xp.copyto(out, inputs[0])
            return
        run.xp.add(inputs[0], inputs[1], out=out)
        for array in inputs[2:]:
            run.xp.add(out, array, out=out)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [heads[0]] * self.num_args
