"""Max pooling that notes where the maxima were, for its gradient: made by the pass ``passes/pooling_indices.py``.

The content of a note is the kernel's own. The plain forwards make none, and find the maxima again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from flowmx.ops.nn.pooling import BackwardPooling, Pooling
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, operator
from flowmx.ops.registry.traits import BatchWise

_BYTE = 256


class _Noted(Operator):
    kernel: tuple[int, ...]

    def note_dtype(self) -> DType:
        """The dtype that can hold the index of an element of a window: uint8 where it suffices, else int32."""
        return np.dtype(np.uint8 if math.prod(self.kernel) < _BYTE else np.int32)


@operator("_noted_Pooling")
class NotedPooling(_Noted, Pooling, hidden=True, batch_wise=BatchWise.EACH):
    """Max pooling, and a note of where the maxima were."""

    output_names = ("output", "note")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        inputs, outputs = super().infer_shape(shapes)
        return inputs, outputs * 2

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        inputs, outputs = super().infer_type(dtypes)
        return inputs, [outputs[0], self.note_dtype()]


@operator("_backward_noted_Pooling")
class BackwardNotedPooling(_Noted, BackwardPooling, hidden=True, batch_wise=BatchWise.EACH):
    """The gradient of max pooling, with the help of a note."""

    arguments: ClassVar[tuple[str, ...]] = ("head", "data", "output", "note")  # type: ignore[assignment]

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        inputs, outputs = super().infer_type(dtypes[:3])
        return [*inputs, dtypes[3]], outputs

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        super().forward(run, inputs[:3], outputs)
