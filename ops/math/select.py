"""Elementwise choice and sums of many: where, clip, add_n."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowmx.errors import ShapeError, TypeInferenceError
from flowmx.ops.arrays.linear import Inferred, InferredTypes
from flowmx.ops.formulas.arrays import clip, clipping
from flowmx.ops.registry.dtypes import DType, is_floating, name_of
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, described, merge, operator, required
from flowmx.ops.registry.traits import BatchWise, Passing, Precision


@operator("where")
class Where(Operator, precision=Precision.WIDEST, batch_wise=BatchWise.EACH):
    """``x`` where the condition is not 0, else ``y``. A condition with one axis chooses whole rows."""

    arguments = ("condition", "x", "y")
    input_docs = described(
        condition="the shape of x, or its first axis alone, any dtype",
        x="any shape, any dtype",
        y="the shape and dtype of x",
    )
    output_doc = "The shape and dtype of x"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        condition, x, y = shapes
        shape = merge(x, y)
        if shape is False:
            raise ShapeError(f"{self.name}: y has shape {y}, expected {x} as x has")
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
            raise TypeInferenceError(f"{self.name}: y has dtype {name_of(y)}, expected {name_of(x)} as x has")
        known = x or y
        return [condition, known, known], [known]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        (condition, x, y), out = inputs, outputs[0]
        chosen = condition != 0
        if condition.ndim < x.ndim and run.xp is np:  # whole rows are copied several times as fast
            out[chosen], out[~chosen] = x[chosen], y[~chosen]
            return
        run.xp.copyto(out, y)
        run.xp.copyto(out, x, where=chosen.reshape((*chosen.shape, *(1,) * (x.ndim - chosen.ndim))))

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        zero = F.zeros_like(heads[0])
        return [None, F.where(inputs[0], heads[0], zero), F.where(inputs[0], zero, heads[0])]


@operator("clip")
class Clip(Operator, in_place=((0, 0),), keeps_layout=True, batch_wise=BatchWise.ALL):
    """Each element taken to the nearest number from ``a_min`` to ``a_max``."""

    a_min: float = required("The smallest number.")
    a_max: float = required("The largest number.")

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x = inputs[0]
        low, high = self.a_min, self.a_max
        if not is_floating(x.dtype):
            limits = np.iinfo(x.dtype)
            low, high = (int(min(max(n, limits.min), limits.max)) for n in (low, high))
        kind = x.dtype.type
        clip(run.xp, x, kind(low), kind(high), outputs[0])

    def as_ufunc(self, xp: Any, dtype: DType) -> tuple[Callable[..., Any], Any] | None:
        return clipping(xp, dtype, self.a_min, self.a_max)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
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
    """The sum of the inputs, which have one shape."""

    variadic = "num_args"
    onnx = "Sum"
    num_args: int = required("Number of inputs.", low=1)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        out = outputs[0]
        if len(inputs) == 1:
            run.xp.copyto(out, inputs[0])
            return
        run.xp.add(inputs[0], inputs[1], out=out)
        for each in inputs[2:]:
            run.xp.add(out, each, out=out)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [heads[0]] * self.num_args
