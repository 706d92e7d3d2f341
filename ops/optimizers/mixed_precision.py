"""Operators for mixed-precision training: casts of floating arrays, and checks that all elements are finite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowmx.ops.arrays.linear import Inferred, InferredTypes, shape_of
from flowmx.ops.math.finite import all_finite
from flowmx.ops.registry.dtypes import FLOAT32, DType, is_floating
from flowmx.ops.registry.operators import (
    Array,
    Operator,
    Run,
    ShapeOrNone,
    described,
    family,
    operator,
    option,
    required,
)
from flowmx.ops.registry.traits import BatchWise


@operator("amp_cast")
class AmpCast(Operator, casts=True, batch_wise=BatchWise.ALL):
    """Cast a floating array to another floating dtype; integer arrays keep theirs."""

    input_docs = described(data="any shape, any dtype")
    output_doc = "The shape of data; dtype `dtype` where data is floating, else its own"
    dtype: DType = required("The wanted dtype.")

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        given = dtypes[0]
        return dtypes, [self.dtype if given is None or is_floating(given) else given]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.copyto(outputs[0], inputs[0], casting="unsafe")

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [F.op("_cast_like", heads[0], shape_of(inputs, 0))]


@operator("amp_multicast")
class AmpMulticast(Operator):
    """Cast floating arrays to the widest (or narrowest) of their dtypes; integer arrays keep theirs."""

    variadic = "num_outputs"
    input_docs = described(data="arrays of any shapes and dtypes")
    output_doc = "A list of arrays of the inputs' shapes; floating ones in one dtype, others in their own"
    num_outputs: int = required("Number of inputs and outputs.", low=1)
    cast_narrow: bool = option(False, "Take the narrowest type.")

    def outputs(self) -> tuple[str, ...]:
        return tuple(f"output{at}" for at in range(self.num_outputs))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, list(shapes)

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        floating = sorted({each for each in dtypes if each is not None and is_floating(each)}, key=lambda d: d.itemsize)
        chosen = (floating[0] if self.cast_narrow else floating[-1]) if floating else None
        return dtypes, [chosen if each is None or is_floating(each) else each for each in dtypes]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        for given, out in zip(inputs, outputs, strict=True):
            run.xp.copyto(out, given, casting="unsafe")

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [F.op("_cast_like", head, shape_of(inputs, at)) for at, head in enumerate(heads)]


@family
class _Finite(Operator, no_gradient=True):
    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [(1,)]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [FLOAT32]

    def answer(self, run: Run, inputs: Sequence[Array], out: Array, afresh: bool) -> None:
        """Write 1 or 0; or leave a 0 that is there already."""
        if run.xp is not np:  # the host does not wait for what it need not know
            if afresh:
                out.fill(1)
            for each in [each for each in inputs if is_floating(each.dtype)]:
                out *= run.xp.isfinite(each).all()
        elif afresh or out[0]:
            out[0] = all(all_finite(run.xp, each) for each in inputs)


_AFRESH = "Test these arrays alone; otherwise the result is ANDed with the array given as out."


@operator("all_finite")
class AllFinite(_Finite):
    """1 where all numbers of the array are finite, else 0: float32 (1,)."""

    input_docs = described(data="any shape, any dtype")
    output_doc = "(1,), float32"
    init_output: bool = option(True, _AFRESH)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self.answer(run, inputs, outputs[0], self.init_output)


@operator("multi_all_finite")
class MultiAllFinite(_Finite):
    """1 where all numbers of all arrays are finite, else 0: float32 (1,)."""

    variadic = "num_arrays"
    input_docs = described(data="arrays of any shapes and dtypes")
    output_doc = "(1,), float32"
    num_arrays: int = option(1, "Number of inputs.", low=1)
    init_output: bool = option(True, _AFRESH)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self.answer(run, inputs, outputs[0], self.init_output)


@operator("reset_arrays")
class ResetArrays(Operator, no_gradient=True):
    """Set all elements of the arrays to 0, in place; there is no output."""

    variadic = "num_arrays"
    input_docs = described(data="arrays of any shapes and dtypes, which are overwritten")
    output_doc = "Nothing"
    output_names = ()
    num_arrays: int = required("Number of inputs.", low=1)

    def __post_init__(self) -> None:
        object.__setattr__(self, "updates", tuple(range(self.num_arrays)))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, []

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, []

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        for each in inputs:
            each[...] = 0
