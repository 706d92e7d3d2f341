"""BatchNorm and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from flowmx.ops.math.reduce import widen
from flowmx.ops.nn.common import positive_axis
from flowmx.ops.nn.normalization.base_normalization import (
    BackwardNormalization,
    Frame,
    Normalization,
    around_axis,
    standardize,
)
from flowmx.ops.registry.operators import Array, Run, Shape, describe, family, operator, option
from flowmx.ops.registry.tensors import ArrayNamespace
from flowmx.ops.registry.traits import BatchParts, BatchWise, Quantization


@family
class BatchStatistics(
    Normalization, in_place=((0, 0),), mode_matters=True, keeps_layout=True, batch_wise=BatchWise.OWN
):
    """Base of BatchNorm and of operators that differ from it only in their parameters."""

    auxiliary: ClassVar[tuple[str, ...]] = ("moving_mean", "moving_var")
    input_docs = describe(
        moving_mean="(channels,), the dtype of gamma; a state, updated in training",
        moving_var="(channels,), the dtype of gamma; a state, updated in training",
    )
    output_doc = "The shape and dtype of data; with output_mean_var also the mean and the second statistic, (channels,)"
    inverse_std = True
    # The last output is 1 if the batch's statistics were used; the gradient reads it.
    output_names: ClassVar[tuple[str, ...]] = ("output", "mean", "var", "batch")
    json_outputs = 3
    eps: float = option(1e-3, "Added to the variance.", low=0)
    momentum: float = option(0.9, "The weight of the old moving statistics at each step.")
    fix_gamma: bool = option(True, "Take gamma as 1, and set it to 1.")
    use_global_stats: bool = option(False, "Use the moving statistics in training too.")
    output_mean_var: bool = option(False, "Return the statistics as further outputs.")

    def fixed_inputs(self) -> tuple[int, ...]:
        return (1,) if self.fix_gamma else ()

    def frame(self, shape: Shape) -> Frame:
        axis = positive_axis(self, self.axis, shape)
        return Frame(around_axis(shape, axis), (0, 2), (1, shape[axis], 1))

    def scale_shape(self, shape: Shape) -> Shape:
        return (shape[positive_axis(self, self.axis, shape)],)

    statistics_shape = scale_shape

    def gamma(self, xp: ArrayNamespace, gamma: Array, frame: Frame) -> Array:
        return xp.ones_like(gamma).reshape(frame.scale) if self.fix_gamma else gamma.reshape(frame.scale)

    def update_moving(self, moving: Array, new: Array) -> None:
        """Update a moving statistic with the batch's."""
        if moving.dtype.itemsize == 2:
            moving[...] = widen(moving) * self.momentum + (1 - self.momentum) * new.reshape(moving.shape)
            return
        moving *= self.momentum
        moving += (1 - self.momentum) * new.reshape(moving.shape)

    def statistics(self, run: Run, x: Array, inputs: Sequence[Array], frame: Frame, out: Array) -> Any:
        moving_mean, moving_var = inputs[-2:]
        if self._by_batch(run, x):
            mean, var, inverse = standardize(run.xp, x, frame.over, self.eps, out)
            self.update_moving(moving_mean, mean)
            self.update_moving(moving_var, var)
            return mean, inverse
        mean = moving_mean.reshape(frame.scale)
        inverse = 1 / run.xp.sqrt(moving_var.reshape(frame.scale) + moving_var.dtype.type(self.eps))
        run.xp.subtract(x, mean, out=out, casting="unsafe")
        run.xp.multiply(out, inverse, out=out, casting="unsafe")
        return mean, inverse

    def batch_parts(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> BatchParts | None:
        # Moving statistics, as in prediction, are independent of the batch; batch statistics are not.
        mixes = self.traits.batch_wise is BatchWise.UNKNOWN or self.axis % len(inputs[0]) == 0
        return None if mixes else BatchParts((0,), (0,))

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        super().forward(run, inputs, outputs)
        outputs[3][...] = self._by_batch(run, inputs[0])

    def updated_inputs(self, train: bool) -> tuple[int, ...]:
        return super().updated_inputs(train and not self.use_global_stats)

    def _by_batch(self, run: Run, data: Array) -> bool:
        """Return whether the batch's statistics are used; an empty batch has none."""
        return run.train and not self.use_global_stats and data.size > 0


@operator("BatchNorm", "BatchNorm_v1")
class BatchNorm(BatchStatistics, quantized=Quantization("_contrib_quantized_batch_norm", real=(1, 2, 3, 4))):
    """Normalize each channel by its mean and variance over the batch, then scale by gamma and add beta.

    Training uses the batch's statistics and updates the moving ones:
    moving = momentum · moving + (1 - momentum) · batch. Otherwise, and with ``use_global_stats``, the moving
    statistics are used. ``fix_gamma`` takes gamma as 1, and sets it to 1: imperative calls always, graphs in
    training. From Ioffe and Szegedy, "Batch Normalization", 2015.

    Shapes: data of any shape; gamma, beta, moving_mean and moving_var (channels,). Further outputs with
    ``output_mean_var``: mean and 1/√(var + eps), each (channels,).
    """

    axis: int = option(1, "The axis of the channels.")
    cudnn_off: bool = option(False, "Ignored.")
    min_calib_range: float | None = option(None, "Ignored.")
    max_calib_range: float | None = option(None, "Ignored.")


@operator("_backward_BatchNorm")
class BackwardBatchNorm(BackwardNormalization, BatchNorm, in_place=((0, 0),), mode_matters=False, quantized=None):
    """Gradients of BatchNorm; a fixed gamma has gradient 0."""

    arguments = ("head", "data", "gamma", "mean", "var", "batch")

    def fixed_inputs(self) -> tuple[int, ...]:
        return ()

    def over_batch(self, inputs: Sequence[Array]) -> Any:
        flag = inputs[5][0]
        return bool(flag) if isinstance(flag, np.generic) else flag

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        super().forward(run, inputs, outputs)
        if self.fix_gamma:
            outputs[1].fill(0)
