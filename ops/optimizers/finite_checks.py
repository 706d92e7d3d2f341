"""Checks that all elements of gradients are finite, and resetting of arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowmx.ops.arrays.linear import Inferred, InferredTypes
from flowmx.ops.math.finite import all_finite
from flowmx.ops.registry.dtypes import FLOAT32, DType, is_floating
from flowmx.ops.registry.operators import (
    Array,
    Operator,
    Run,
    ShapeOrNone,
    describe,
    family,
    operator,
    option,
    required,
)


@family
class _Finite(Operator, no_gradient=True):
    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [(1,)]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [FLOAT32]

    def check(self, run: Run, inputs: Sequence[Array], out: Array, reset: bool) -> None:
        """Write 1 or 0; without ``reset``, a 0 in ``out`` stays."""
        if run.xp is not np:  # on a GPU the host must not wait for the result
            if reset:
                out.fill(1)
            for array in [array for array in inputs if is_floating(array.dtype)]:
                out *= run.xp.isfinite(array).all()
        elif reset or out[0]:
            out[0] = all(all_finite(run.xp, array) for array in inputs)


_RESET = "Test only these arrays; otherwise combine the result with out by AND."


@operator("all_finite")
class AllFinite(_Finite):
    """1 if all numbers of the array are finite, else 0: float32 (1,)."""

    input_docs = describe(data="any shape, any dtype")
    output_doc = "(1,), float32"
    init_output: bool = option(True, _RESET)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self.check(run, inputs, outputs[0], self.init_output)


@operator("multi_all_finite")
class MultiAllFinite(_Finite):
    """1 if all numbers of all arrays are finite, else 0: float32 (1,)."""

    variadic = "num_arrays"
    input_docs = describe(data="arrays of any shapes and dtypes")
    output_doc = "(1,), float32"
    num_arrays: int = option(1, "Number of inputs.", low=1)
    init_output: bool = option(True, _RESET)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self.check(run, inputs, outputs[0], self.init_output)


@operator("reset_arrays")
class ResetArrays(Operator, no_gradient=True):
    """Set all elements of the arrays to 0, in place; there is no output."""

    variadic = "num_arrays"
    input_docs = describe(data="arrays of any shapes and dtypes, which are overwritten")
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
        for array in inputs:
            array[...] = 0
