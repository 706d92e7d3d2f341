"""Operators that passes over a bound graph put into it: those that stand for several, and copies.

They come in after differentiation, so they have no gradients of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal, NamedTuple

from flowmx.errors import TypeInferenceError
from flowmx.ops.math.reduce import wide
from flowmx.ops.math.select import Clip
from flowmx.ops.nn.activation import Activation, LeakyReLU
from flowmx.ops.nn.common import computing_dtype, expect_shape
from flowmx.ops.nn.convolution import Convolution, ConvolutionWeight, DeconvolutionWeight
from flowmx.ops.nn.linear import FullyConnected, FullyConnectedWeight
from flowmx.ops.nn.normalization.batch_norm import BatchNorm
from flowmx.ops.registry.dtypes import FLOAT32, DType, name_of
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, family, operator, option
from flowmx.ops.registry.traits import BatchParts, BatchWise

Then = Literal["", "relu", "sigmoid", "tanh", "leaky", "clip"]


class Given(NamedTuple):
    """The inputs of a fused layer by their parts; None for what it does without."""

    data: Any
    weight: Any
    bias: Any
    scale: Any
    addend: Any


@family
class Fused(Operator, hidden=True):
    """A layer and what follows it: then(scale · (data * weight) + bias + addend).

    It stands before the layer among the bases. The scale is a number for each output channel; the addend has the
    output's shape, and may be in the output's memory. A packed weight is a copy in the order that a kernel wants.
    """

    scaled: bool = option(False, "Multiply by the scale.")
    added: bool = option(False, "Add the addend.")
    packed: bool = option(False, "The weight is such a copy.")
    then: Then = option("", "The activation in the end.")
    slope: float = option(0.25, "Slope below 0, of leaky.")
    top: float = option(0.0, "The largest result, of clip; the least is 0.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.added and not self.traits.once:  # the output may take the addend's place
            self.with_traits(in_place=((len(self.inputs()) - 1, 0),))

    def inputs(self) -> tuple[str, ...]:
        return (*super().inputs(), *(["scale"] if self.scaled else []), *(["addend"] if self.added else []))

    def parts(self, values: Sequence[Any]) -> Given:
        """The inputs, or what belongs to each of them, by what they are for."""
        named = dict(zip(self.inputs(), values, strict=True))
        return Given(*[named.get(name) for name in Given._fields])

    def batch_parts(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> BatchParts | None:
        if self.traits.batch_wise is BatchWise.UNKNOWN or inputs[0][:1] != outputs[0][:1]:
            return None
        return BatchParts((0, *([len(inputs) - 1] if self.added else [])), (0,))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        count = len(super().inputs())
        given = [shapes[0], None if self.packed else shapes[1], *shapes[2:count]]
        completed, outputs = super().infer_shape(given)
        weight, rest = completed[1], shapes[count:]
        if self.packed:
            completed[1] = shapes[1]
        if self.scaled:
            completed.append(expect_shape(self, "scale", rest.pop(0), None if weight is None else weight[:1]))
        if self.added:
            completed.append(expect_shape(self, "addend", rest.pop(0), outputs[0]))
        return completed, outputs

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        # Bias and scale may be float32 beside data of 16 bits.
        given = self.parts(dtypes)
        named = given._asdict()
        of_data = [name for name in self.inputs() if name not in ("bias", "scale")]
        found = next((named[name] for name in of_data if named[name] is not None), None)
        for name in of_data:
            if found is not None and named[name] not in (None, found):
                raise TypeInferenceError(
                    f"{self.name}: {name} has dtype {name_of(named[name])}, expected {name_of(found)}"
                )
        completed = [found if named[name] is None else named[name] for name in self.inputs()]
        return completed, [found] * len(self.outputs())

    def weight_shape(self, data: Shape) -> Shape:
        """The shape of the weight for data of this shape."""
        count = len(super().inputs())
        found = super().infer_shape([data, *[None] * (count - 1)])[0][1]
        assert found is not None
        return found

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        given = [inputs[0], self.weight_shape(inputs[0]), *inputs[2:]] if self.packed else inputs
        return super().cost(given, outputs)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, given, out = run.xp, self.parts(inputs), outputs[0]
        weight = given.weight
        if self.packed:
            shape = self.weight_shape(given.data.shape)
            weight = weight[: prod(shape)].reshape(shape)
        if self.scaled:
            weight = scaled_weight(weight, given.scale)
        addend = given.addend.copy() if self.added else None  # it may be where the output is
        super().forward(run, [given.data, weight, given.bias], outputs)
        if self.added:
            xp.add(out, addend, out=out)
        if self.then:
            self.activation().forward(run, [out], [out])

    @property
    def edge(self) -> float:
        """The number that the activation takes: the slope of leaky, the upper end of clip; 0 for others."""
        return float({"leaky": self.slope, "clip": self.top}.get(self.then, 0.0))

    def activation(self) -> Operator:
        """The operator that computes the activation."""
        if self.then == "leaky":
            return LeakyReLU.create(slope=self.slope)
        if self.then == "clip":
            return Clip.create(a_min=0, a_max=self.top)
        return Activation.create(act_type=self.then)


def scaled_weight(weight: Array, *scale: Array) -> Array:
    """A weight, multiplied by a number for each output channel where these are given."""
    return weight * scale[0].reshape(-1, *(1,) * (weight.ndim - 1)) if scale else weight


@operator("_fused_Convolution")
class FusedConvolution(Fused, Convolution, batch_wise=BatchWise.OWN):
    """Convolution with the operators that follow it: scale, addition, activation."""


@operator("_fused_FullyConnected")
class FusedFullyConnected(Fused, FullyConnected, batch_wise=BatchWise.OWN):
    """FullyConnected with the operators that follow it: scale, addition, activation."""

    whole: bool = option(False, "Multiply as for more rows, of which these are some: add up in the same order.")


@operator("_relu_BatchNorm")
class BatchNormRelu(BatchNorm, hidden=True, batch_wise=BatchWise.OWN):
    """BatchNorm, then a ReLU."""

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        super().forward(run, inputs, outputs)
        run.xp.maximum(outputs[0], 0, out=outputs[0])


@operator("_scale_and_shift")
class ScaleAndShift(Operator, hidden=True, once=True):
    """BatchNorm in prediction as two vectors (channels,): a factor and an addend for each channel.

    A bias is what was added before it. For numbers of 16 bits they are float32.
    """

    arguments = ("gamma", "beta", "mean", "var", "bias")
    output_names = ("scale", "shift")
    eps: float = option(1e-3, "Added to the variance.", low=0)
    fix_gamma: bool = option(True, "Take gamma as 1.")
    biased: bool = option(False, "There is a bias.")

    def inputs(self) -> tuple[str, ...]:
        return self.arguments[: 5 if self.biased else 4]

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        var = dtypes[3]
        return dtypes, [None if var is None else computing_dtype(var)] * 2

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        (gamma, beta, mean, var), (scale, shift) = inputs[:4], outputs
        var, mean = wide(var), wide(mean)
        scale[...] = 1 / run.xp.sqrt(var + var.dtype.type(self.eps))
        if not self.fix_gamma:
            scale *= wide(gamma)
        shift[...] = (wide(inputs[4]) - mean if self.biased else -mean) * scale
        shift += wide(beta)


@operator("_backward_Convolution_weight_bias")
class ConvolutionWeightBias(ConvolutionWeight, batch_wise=BatchWise.SUM):
    """The gradients of Convolution for its weight and its bias."""

    output_names = ("weight_grad", "bias_grad")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        return shapes, [super().infer_shape(shapes)[1][0], (self.num_filter,)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        super().forward(run, inputs, outputs)
        axes = (0, *range(2, inputs[0].ndim))
        inputs[0].sum(axis=axes, out=outputs[1])


@family
class WideGradient(Operator, hidden=True):
    """The gradient of a layer's weight in float32, in which it is summed, for factors of 16 bits.

    It stands before the gradient in 16 bits among the bases.
    """

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
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
    """A copy of an array of another device."""

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.device.copy(inputs[0], outputs[0])
