"""Max pooling that stores the positions of the maxima for its gradient; inserted by ``passes/pooling_indices.py``.

The format of the positions is private to the kernel. The fallback forwards store none and search the maxima again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from flowmx.ops.arrays.linear import Inferred, InferredTypes
from flowmx.ops.nn.pooling import BackwardPooling, Pooling
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, operator
from flowmx.ops.registry.traits import BatchWise

_BYTE = 256


class _WithPositions(Operator):
    kernel: tuple[int, ...]

    def position_dtype(self) -> DType:
        """Return the dtype for the index of an element in a window: uint8 if it suffices, else int32."""
        return np.dtype(np.uint8 if math.prod(self.kernel) < _BYTE else np.int32)


@operator("_noted_Pooling")
class PoolingWithIndices(_WithPositions, Pooling, hidden=True, batch_wise=BatchWise.EACH):
    """Max pooling, and the positions of the maxima."""

    output_names = ("output", "note")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        inputs, outputs = super().infer_shape(shapes)
        return inputs, outputs * 2

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        inputs, outputs = super().infer_type(dtypes)
        return inputs, [outputs[0], self.position_dtype()]


@operator("_backward_noted_Pooling")
class BackwardPoolingWithIndices(_WithPositions, BackwardPooling, hidden=True, batch_wise=BatchWise.EACH):
    """The gradient of max pooling from the positions of the maxima."""

    arguments = ("head", "data", "output", "note")

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        inputs, outputs = super().infer_type(dtypes[:3])
        return [*inputs, dtypes[3]], outputs

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        super().forward(run, inputs[:3], outputs)
