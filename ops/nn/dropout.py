"""Dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from flowmx.errors import ShapeError
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, describe, operator, option
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors
from flowmx.ops.registry.traits import BatchWise


@operator("Dropout")
class Dropout(
    Operator, uses_random=True, draws_by_part=True, mode_matters=True, keeps_layout=True, input_named=True,
    batch_wise=BatchWise.FIRST,
):  # fmt: skip
    """In training, set each element to 0 with probability p and divide the others by 1 - p.

    From Srivastava et al., "Dropout", 2014. All elements along ``axes`` share one decision;
    ``mode="always"`` drops outside training too.
    """

    input_docs = describe(data="any shape, float")
    output_doc = "The shape and dtype of data"
    output_names: ClassVar[tuple[str, ...]] = ("output", "mask")
    outputs_visible = 1
    p: float = option(0.5, "Probability of dropping.", low=0, high=1)
    mode: Literal["always", "training"] = option("training", "Drop in training only, or always.")
    axes: Shape = option((), "Axes that share one decision.")
    cudnn_off: bool | None = option(False, "Ignored.")

    def draws(self, train: bool) -> bool:
        return self.p > 0 and (train or self.mode == "always")

    def skip_draws(self, run: Run, outputs: Sequence[Shape]) -> None:
        self._draw(run, outputs[1])

    def _draw(self, run: Run, shape: Shape) -> Array:
        """Draw numbers from 0 to 1, one per decision."""
        return run.random.random(shape, np.float32)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        data = shapes[0]
        if data is None:
            return shapes, [None, None]
        if any(not -len(data) <= axis < len(data) for axis in self.axes):
            raise ShapeError(f"{self.name}: axes are {self.axes}, but input data has shape {data}")
        shared_axes = {axis % len(data) for axis in self.axes}
        mask = tuple(1 if axis in shared_axes else length for axis, length in enumerate(data))
        return shapes, [data, mask]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (out, mask) = run.xp, outputs
        if not self.draws(run.train):
            mask.fill(1)
            xp.copyto(out, inputs[0])
            return
        keep = 1 - self.p
        xp.less(self._draw(run, mask.shape), keep, out=mask, casting="unsafe")
        if keep:
            xp.divide(mask, mask.dtype.type(keep), out=mask)
        xp.multiply(inputs[0], mask, out=out)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [heads[0] * outputs[1]]
