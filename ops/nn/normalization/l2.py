"""Division by the Euclidean norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from flowmx.ops.nn.common import computing_dtype, expect_rank
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, describe, operator, option
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors
from flowmx.ops.registry.traits import BatchWise, Precision


@operator("L2Normalization")
class L2Normalization(Operator, precision=Precision.FLOAT32, input_named=True, batch_wise=BatchWise.FIRST):
    """Divide by the Euclidean norm √(Σx² + eps).

    Over each whole sample (``instance``), over the channels at each position (``channel``), or over the
    positions of each channel (``spatial``).
    """

    input_docs = describe(data="(batch, ...), float; at least 3 axes except in mode 'instance'")
    output_doc = "The shape and dtype of data"
    json_outputs = 2
    eps: float = option(1e-10, "Added to the sum of squares.", low=0)
    mode: Literal["channel", "instance", "spatial"] = option("instance", "The elements of one norm.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        expect_rank(self, "data", shapes[0], 1 if self.mode == "instance" else 3)
        return shapes, shapes[:1]

    def axes(self) -> dict[str, object]:
        """Return the axes of the norm, as the arguments of a reduction."""
        if self.mode == "channel":
            return {"axis": 1}
        return {"axis": 0 if self.mode == "instance" else (0, 1), "exclude": True}

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, x = run.xp, inputs[0]
        start = {"channel": 1, "instance": 1, "spatial": 2}[self.mode]
        axes = (1,) if self.mode == "channel" else tuple(range(start, x.ndim))
        total = xp.square(x, dtype=computing_dtype(x.dtype)).sum(axis=axes, keepdims=True)
        xp.divide(x, xp.sqrt(total + total.dtype.type(self.eps)), out=outputs[0], casting="unsafe")

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        x, y, head = inputs[0], outputs[0], heads[0]
        norm = F.sqrt(F.sum(x * x, keepdims=True, **self.axes()) + self.eps)
        return [(head - y * F.sum(head * y, keepdims=True, **self.axes())) / norm]
