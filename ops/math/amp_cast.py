"""amp_cast and amp_multicast: the casts that mixed precision inserts into graphs."""

from __future__ import annotations

from collections.abc import Sequence

from flowmx.ops.arrays.linear import Inferred, InferredTypes, shape_of
from flowmx.ops.registry.dtypes import DType, is_floating
from flowmx.ops.registry.operators import (
    Array,
    Operator,
    Run,
    ShapeOrNone,
    describe,
    operator,
    option,
    required,
)
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors
from flowmx.ops.registry.traits import BatchWise


@operator("amp_cast")
class AmpCast(Operator, casts=True, batch_wise=BatchWise.ALL):
    """Cast a floating array to another floating dtype; integer arrays keep theirs."""

    input_docs = describe(data="any shape, any dtype")
    output_doc = "The shape of data; dtype `dtype` where data is floating, otherwise unchanged"
    dtype: DType = required("The target dtype.")

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        data = dtypes[0]
        return dtypes, [self.dtype if data is None or is_floating(data) else data]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.copyto(outputs[0], inputs[0], casting="unsafe")

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_cast_like", heads[0], shape_of(inputs, 0))]


@operator("amp_multicast")
class AmpMulticast(Operator):
    """Cast floating arrays to the widest (or narrowest) of their dtypes; integer arrays keep theirs."""

    variadic = "num_outputs"
    input_docs = describe(data="arrays of any shapes and dtypes")
    output_doc = "A list of arrays of the inputs' shapes; floating ones in one dtype, others unchanged"
    num_outputs: int = required("Number of inputs and outputs.", low=1)
    cast_narrow: bool = option(False, "Take the narrowest type.")

    def outputs(self) -> tuple[str, ...]:
        return tuple(f"output{index}" for index in range(self.num_outputs))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, list(shapes)

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        floating = sorted({d for d in dtypes if d is not None and is_floating(d)}, key=lambda d: d.itemsize)
        target = (floating[0] if self.cast_narrow else floating[-1]) if floating else None
        return dtypes, [target if d is None or is_floating(d) else d for d in dtypes]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        for data, out in zip(inputs, outputs, strict=True):
            run.xp.copyto(out, data, casting="unsafe")

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_cast_like", head, shape_of(inputs, index)) for index, head in enumerate(heads)]
