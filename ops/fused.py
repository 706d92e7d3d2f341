"""Operators that passes over a bound graph put into it: those that stand for several, and copies.

They come in after differentiation, so they have no gradients of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowmx.ops.nn_convolution import Convolution, ConvolutionWeight
from flowmx.ops.nn_linear import FullyConnected
from flowmx.ops.nn_normalization import BatchNorm
from flowmx.ops.registry import Array, Operator, Run, ShapeOrNone, operator


class _ThenRelu(Operator):
    """The operator that it stands before among the bases, then a ReLU on the first output."""

    hidden = True

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        super().forward(run, inputs, outputs)
        run.xp.maximum(outputs[0], 0, out=outputs[0])


@operator("_relu_Convolution")
class ConvolutionRelu(_ThenRelu, Convolution):
    """Convolution, then a ReLU."""


@operator("_relu_FullyConnected")
class FullyConnectedRelu(_ThenRelu, FullyConnected):
    """FullyConnected, then a ReLU."""


@operator("_relu_BatchNorm")
class BatchNormRelu(_ThenRelu, BatchNorm):
    """BatchNorm, then a ReLU."""


@operator("_backward_Convolution_weight_bias")
class ConvolutionWeightBias(ConvolutionWeight):
    """The gradients of Convolution for its weight and its bias."""

    def outputs(self) -> tuple[str, ...]:
        return ("weight_grad", "bias_grad")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        return shapes, [super().infer_shape(shapes)[1][0], (self.num_filter,)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        super().forward(run, inputs, outputs)
        axes = (0, *range(2, inputs[0].ndim))
        inputs[0].sum(axis=axes, out=outputs[1])


@operator("_copy_to_device")
class CopyToDevice(Operator):
    """A copy of an array of another device."""

    hidden = True

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.device.copy(inputs[0], outputs[0])
