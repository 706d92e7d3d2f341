"""Operators that passes insert into a bound graph: fused layers and copies.

The passes run after differentiation, so these operators have no gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal, NamedTuple

from flowmx.errors import TypeInferenceError
from flowmx.ops.arrays.linear import Inferred, InferredTypes
from flowmx.ops.math.reduce import widen
from flowmx.ops.math.select import Clip
from flowmx.ops.nn.activation import Activation, LeakyReLU
from flowmx.ops.nn.common import computing_dtype, expect_shape
from flowmx.ops.nn.convolution import Convolution, ConvolutionWeight, DeconvolutionWeight
from flowmx.ops.nn.linear import FullyConnected, FullyConnectedWeight
from flowmx.ops.nn.normalization.batch_norm import BatchNorm
from flowmx.ops.registry.dtypes import FLOAT32, DType, name_of
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, family, operator, option
from flowmx.ops.registry.traits import BatchParts, BatchWise

ActivationName = Literal["", "relu", "sigmoid", "tanh", "swish", "leaky", "clip"]


class LayerInputs(NamedTuple):
    """The inputs of a fused layer by role; None for an absent input."""

    data: Any
    weight: Any
    bias: Any
    scale: Any
    addend: Any


@family
class Fused(Operator, hidden=True):
    """Mixin of a layer fused with the operators after it: activation(scale · (data * weight) + bias + addend).

    The scale has one number for each output channel. The addend has the shape of the output, and may share its memory.
    A packed weight is a copy in the layout of the kernel.
    """

    scaled: bool = option(False, "Multiply by the scale.")
    has_addend: bool = option(False, "Add the addend.")
    packed: bool = option(False, "The weight is packed.")
    panels: bool = option(False, "It is packed in panels of outputs, for a compiled loop.")
    activation: ActivationName = option("", "The activation at the end.")
    slope: float = option(0.25, "Slope below 0, for leaky.")
    top: float = option(0.0, "Upper bound of clip; the lower bound is 0.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.has_addend and not self.traits.once:  # the output may overwrite the addend
            self.with_traits(in_place=((len(self.inputs()) - 1, 0),))

    def inputs(self) -> tuple[str, ...]:
        return (*super().inputs(), *(["scale"] if self.scaled else []), *(["addend"] if self.has_addend else []))

    def parts(self, values: Sequence[object]) -> LayerInputs:
        """Return the inputs, or values that belong to them, by role."""
        by_name = dict(zip(self.inputs(), values, strict=True))
        return LayerInputs(*[by_name.get(name) for name in LayerInputs._fields])

    def batch_parts(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> BatchParts | None:
        if self.traits.batch_wise is BatchWise.UNKNOWN or inputs[0][:1] != outputs[0][:1]:
            return None
        return BatchParts((0, *([len(inputs) - 1] if self.has_addend else [])), (0,))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        count = len(super().inputs())
        layer_shapes = [shapes[0], None if self.packed else shapes[1], *shapes[2:count]]
        completed, outputs = super().infer_shape(layer_shapes)
        weight, extra_shapes = completed[1], shapes[count:]
        if self.packed:
            completed[1] = shapes[1]
        if self.scaled:
            completed.append(expect_shape(self, "scale", extra_shapes.pop(0), None if weight is None else weight[:1]))
        if self.has_addend:
            completed.append(expect_shape(self, "addend", extra_shapes.pop(0), outputs[0]))
        return completed, outputs

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        # Bias and scale may be float32 with 16-bit data.
        parts = self.parts(dtypes)
        by_name = parts._asdict()
        names = [name for name in self.inputs() if name not in ("bias", "scale")]
        dtype = next((by_name[name] for name in names if by_name[name] is not None), None)
        for name in names:
            if dtype is not None and by_name[name] not in (None, dtype):
                raise TypeInferenceError(
                    f"{self.name}: {name} has dtype {name_of(by_name[name])}, expected {name_of(dtype)}"
                )
        completed = [dtype if by_name[name] is None else by_name[name] for name in self.inputs()]
        return completed, [dtype] * len(self.outputs())

    def weight_shape(self, data: Shape) -> Shape:
        """Return the shape of the weight for data of a shape."""
        count = len(super().inputs())
        shape = super().infer_shape([data, *[None] * (count - 1)])[0][1]
        assert shape is not None
        return shape

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        plain_inputs = [inputs[0], self.weight_shape(inputs[0]), *inputs[2:]] if self.packed else inputs
        return super().cost(plain_inputs, outputs)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, parts, out = run.xp, self.parts(inputs), outputs[0]
        weight = parts.weight
        if self.packed:
            shape = self.weight_shape(parts.data.shape)
            weight = weight[: prod(shape)].reshape(shape)
        if self.scaled:
            weight = scaled_weight(weight, parts.scale)
        addend = parts.addend.copy() if self.has_addend else None  # it may share memory with the output
        super().forward(run, [parts.data, weight, parts.bias], outputs)
        if self.has_addend:
            xp.add(out, addend, out=out)
        if self.activation == "swish":
            gate = xp.empty_like(out)
            self.activation_operator().forward(run, [out], [gate])
            xp.multiply(out, gate, out=out)
        elif self.activation:
            self.activation_operator().forward(run, [out], [out])

    @property
    def activation_bound(self) -> float:
        """The parameter of the activation: the slope of leaky, the upper bound of clip, 1 for swish; otherwise 0."""
        return float({"leaky": self.slope, "clip": self.top, "swish": 1.0}.get(self.activation, 0.0))

    def activation_operator(self) -> Operator:
        """Return the operator that computes the activation; for swish, the factor of its argument."""
        if self.activation == "leaky":
            return LeakyReLU.create(slope=self.slope)
        if self.activation == "clip":
            return Clip.create(a_min=0, a_max=self.top)
        return Activation.create(act_type="sigmoid" if self.activation == "swish" else self.activation)


def scaled_weight(weight: Array, *scale: Array) -> Array:
    """Return a weight, multiplied by a number for each output channel if there is a scale."""
    return weight * scale[0].reshape(-1, *(1,) * (weight.ndim - 1)) if scale else weight


@operator("_fused_Convolution")
class FusedConvolution(Fused, Convolution, batch_wise=BatchWise.OWN):
    """Convolution with the operators that follow it: scale, addition, activation."""

    winograd: int = option(0, "The side of output tiles of Winograd's algorithm; 0: the direct one.", low=0)


@operator("_fused_FullyConnected")
class FusedFullyConnected(Fused, FullyConnected, batch_wise=BatchWise.OWN):
    """FullyConnected with the operators that follow it: scale, addition, activation."""

    whole: bool = option(False, "The rows are part of a larger batch: sum in the same order as for the whole batch.")


@operator("_relu_BatchNorm")
class BatchNormRelu(BatchNorm, hidden=True, batch_wise=BatchWise.OWN):
    """BatchNorm followed by ReLU."""

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        super().forward(run, inputs, outputs)
        run.xp.maximum(outputs[0], 0, out=outputs[0])


@operator("_scale_and_shift")
class ScaleAndShift(Operator, hidden=True, once=True):
    """BatchNorm in prediction as two vectors (channels,): a factor and an addend for each channel.

    The bias is that of the layer before. The vectors are float32 for 16-bit parameters.
    """

    arguments = ("gamma", "beta", "mean", "var", "bias")
    output_names = ("scale", "shift")
    eps: float = option(1e-3, "Added to the variance.", low=0)
    fix_gamma: bool = option(True, "Take gamma as 1.")
    biased: bool = option(False, "There is a bias.")

    def inputs(self) -> tuple[str, ...]:
        return self.arguments[: 5 if self.biased else 4]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        var = dtypes[3]
        return dtypes, [None if var is None else computing_dtype(var)] * 2

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        (gamma, beta, mean, var), (scale, shift) = inputs[:4], outputs
        var, mean = widen(var), widen(mean)
        scale[...] = 1 / run.xp.sqrt(var + var.dtype.type(self.eps))
        if not self.fix_gamma:
            scale *= widen(gamma)
        shift[...] = (widen(inputs[4]) - mean if self.biased else -mean) * scale
        shift += widen(beta)


@operator("_backward_Convolution_weight_bias")
class ConvolutionWeightBias(ConvolutionWeight, batch_wise=BatchWise.SUM):
    """The gradients of Convolution for its weight and its bias."""

    output_names = ("weight_grad", "bias_grad")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [super().infer_shape(shapes)[1][0], (self.num_filter,)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        super().forward(run, inputs, outputs)
        axes = (0, *range(2, inputs[0].ndim))
        inputs[0].sum(axis=axes, out=outputs[1])


@family
class WideGradient(Operator, hidden=True):
    """Mixin of the gradient of a weight: the float32 sum for 16-bit factors, not rounded to 16 bits."""

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return super().infer_type(dtypes)[0], [FLOAT32]


@operator("_wide_backward_Convolution_weight")
class WideConvolutionWeight(WideGradient, ConvolutionWeight, batch_wise=BatchWise.SUM):
    """The gradient of Convolution for its weight, in float32."""


@operator("_wide_backward_Deconvolution_weight")
class WideDeconvolutionWeight(WideGradient, DeconvolutionWeight, batch_wise=BatchWise.SUM):
    """The gradient of Deconvolution for its weight, in float32."""


@operator("_wide_backward_FullyConnected_weight")
class WideFullyConnectedWeight(WideGradient, FullyConnectedWeight, batch_wise=BatchWise.SUM):
    """The gradient of FullyConnected for its weight, in float32."""


@operator("_copy_to_device")
class CopyToDevice(Operator, hidden=True):
    """A copy of an array from another device."""

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.device.copy(inputs[0], outputs[0])
