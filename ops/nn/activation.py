"""Activations and softmax, with fused backward operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from flowmx.errors import ParameterError, ShapeError
from flowmx.ops.arrays.linear import shape_of
from flowmx.ops.formulas.activations import ACTIVATIONS, RECTIFIERS, hard_sigmoid
from flowmx.ops.formulas.array_formula import ArrayFormula
from flowmx.ops.formulas.frontend_formula import FrontendFormula
from flowmx.ops.nn.common import (
    blocks,
    computing_dtype,
    expect_rank,
    expect_shape,
    non_defaults,
    positive_axis,
)
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.operators import (
    Array,
    Bound,
    Form,
    Operator,
    Run,
    Shape,
    ShapeOrNone,
    describe,
    operator,
    option,
    required,
    same_shape,
)
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensor, Tensors
from flowmx.ops.registry.traits import BatchWise, Precision, Quantization

_FORWARD = {kind: ArrayFormula(lambda p, x, of=row: of.compute(x)) for kind, row in ACTIVATIONS.items()}
_BACKWARD = {kind: ArrayFormula(lambda p, head, y, of=row: head * of.slope(y), 2) for kind, row in ACTIVATIONS.items()}
_ONE_BLOCK = 1 << 13
"""Arrays of at most this many elements are computed without blocks."""
_PLAIN_TYPES = (FLOAT32, np.dtype(np.float64))
_SLOPE_DERIVATIVE = {
    kind: FrontendFormula(lambda p, y, of=row: of.slope_derivative(y), ("y",)) for kind, row in ACTIVATIONS.items()
}


@operator("Activation")
class Activation(
    Operator, in_place=((0, 0),), keeps_layout=True, float32_where=("act_type", ("softrelu",)),
    quantized=Quantization("_contrib_quantized_act"), batch_wise=BatchWise.ALL,
):  # fmt: skip
    """Apply an activation to each element: relu max(x, 0), sigmoid 1/(1 + e⁻ˣ), tanh, softrelu log(1 + eˣ),
    softsign x/(1 + |x|).
    """  # noqa: D205

    act_type: Literal["relu", "sigmoid", "softrelu", "softsign", "tanh"] = required("The activation.")

    def __post_init__(self) -> None:
        if self.act_type != "relu":
            self.with_traits(quantized=None)

    def bound(self, xp: ArrayNamespace, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> Bound | None:
        return _FORWARD[self.act_type].bound(xp, in_forms[0][1])

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        _FORWARD[self.act_type](run.xp, inputs, outputs)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_backward_Activation", heads[0], outputs[0], act_type=self.act_type)]


@operator("_backward_Activation")
class BackwardActivation(Activation, hidden=True, in_place=((0, 0), (1, 0)), quantized=None, batch_wise=BatchWise.EACH):
    """The head times the activation's derivative, computed from the activation's output."""

    arguments = ("head", "output")

    def bound(self, xp: ArrayNamespace, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> Bound | None:
        is_one_block = in_forms[0] == in_forms[1] == out_forms[0] and math.prod(in_forms[0][0]) <= _ONE_BLOCK
        return _BACKWARD[self.act_type].bound(xp, in_forms[0][1]) if is_one_block else None

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        for head, output, out in blocks(inputs[0], inputs[1], outputs[0]):
            _BACKWARD[self.act_type](run.xp, (head, output), (out,))

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        head, output = inputs
        formula = _SLOPE_DERIVATIVE[self.act_type]
        second = formula(F, None, *[output for _ in formula.reads])
        return [
            F.op("_backward_Activation", heads[0], output, act_type=self.act_type),
            F.zeros_like(output) if isinstance(second, float) else heads[0] * head * second,
        ]


_HARD_SIGMOID = ArrayFormula(hard_sigmoid)


@operator("hard_sigmoid")
class HardSigmoid(Operator, in_place=((0, 0),), batch_wise=BatchWise.ALL):
    """Clip alpha·x + beta to 0 ... 1, elementwise."""

    onnx = "HardSigmoid"
    onnx_attributes: ClassVar[dict[str, str]] = {"alpha": "alpha", "beta": "beta"}
    alpha: float = option(0.2, "Slope.")
    beta: float = option(0.5, "Value at 0.")

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        _HARD_SIGMOID.run(run.xp, _HARD_SIGMOID.numbers(self, inputs[0].dtype), inputs, outputs)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        y = outputs[0]
        return [heads[0] * (y > 0.0) * (y < 1.0) * self.alpha]


_RECTIFIER = {kind: ArrayFormula(row.compute) for kind, row in RECTIFIERS.items()}
_SLOPE = {kind: ArrayFormula(lambda p, head, x, of=row: head * of.slope(p, x), 2) for kind, row in RECTIFIERS.items()}
_SECOND_DERIVATIVE = {kind: FrontendFormula(row.second_derivative, ("x",)) for kind, row in RECTIFIERS.items()}


@operator("LeakyReLU")
class LeakyReLU(
    Operator,
    in_place=((0, 0),),
    uses_random=True,
    mode_matters=True,
    float32_where=("act_type", ("elu", "selu")),
    batch_wise=BatchWise.FIRST,
):
    """Rectifiers with a slope below zero, chosen by ``act_type``.

    ``leaky`` y = slope·x below 0; ``prelu`` with a learned slope gamma, one for all or one per channel
    (He et al., 2015); ``elu`` slope·(eˣ - 1) below 0 (Clevert et al., 2016); ``selu`` (Klambauer et al.,
    2017); ``gelu`` x·Φ(x) (Hendrycks and Gimpel, 2016); ``rrelu`` a random slope from lower_bound to
    upper_bound in training, their mean otherwise (Xu et al., 2015).
    """

    arguments = ("data", "gamma")
    input_docs = describe(
        data="(batch, channels, ...), float",
        gamma="(channels,) or (1,), the dtype of data; only for act_type 'prelu'",
    )
    output_doc = "The shape and dtype of data"
    act_type: Literal["elu", "gelu", "leaky", "prelu", "rrelu", "selu"] = option("leaky", "The rectifier.")
    slope: float = option(0.25, "Slope below 0, of leaky and elu.")
    lower_bound: float = option(0.125, "Lowest slope of rrelu.")
    upper_bound: float = option(0.334, "Highest slope of rrelu.")

    def __post_init__(self) -> None:
        if self.act_type != "rrelu":
            self.with_traits(uses_random=False, mode_matters=False)

    def draws(self, train: bool) -> bool:
        return self.traits.uses_random and train

    def inputs(self) -> tuple[str, ...]:
        return self.arguments[: 2 if self.act_type == "prelu" else 1]

    def outputs(self) -> tuple[str, ...]:
        return ("output", "mask") if self.act_type == "rrelu" else ("output",)

    def mixes_batch(self, inputs: Sequence[Shape]) -> bool:
        return len(inputs[0]) < 2

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        data = shapes[0]
        if self.act_type == "prelu" and data is not None:
            gamma = shapes[1]
            if gamma is None or gamma == (-1,):
                shapes = [data, (data[1] if len(data) > 1 else 1,)]
            elif -1 not in (*gamma, *data[:2]) and _front_shape(gamma, data) is None:
                raise ShapeError(f"{self.name}: input gamma has shape {gamma}, expected {data[1:2] or (1,)} or (1,)")
        return shapes, [data] * len(self.outputs())

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, x, out = run.xp, inputs[0], outputs[0]
        formula = _RECTIFIER.get(self.act_type)
        if formula is not None:
            formula.run(xp, formula.numbers(self, x.dtype), inputs, outputs)
            return
        negative = xp.minimum(x, 0)
        if self.act_type == "prelu":
            negative *= per_channel(inputs[1], x)
        else:
            slopes = outputs[1]
            if run.train:
                slopes[...] = run.random.uniform(self.lower_bound, self.upper_bound, x.shape)
            else:
                slopes[...] = (self.lower_bound + self.upper_bound) / 2
            negative *= slopes
        xp.maximum(x, 0, out=out)
        xp.add(out, negative, out=out)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        x, head = inputs[0], heads[0]
        if self.act_type == "prelu":
            negative = head * F.op("_minimum_scalar", x, scalar=0.0)
            slopes = F.op("_spread_channel", inputs[1], shape_of(inputs, 0))
            return [
                head * ((x > 0.0) + (x <= 0.0) * slopes),
                F.op("_gather_channel", negative, shape_of(inputs, 1)),
            ]
        if self.act_type == "rrelu":
            return [head * ((x > 0.0) + (x <= 0.0) * outputs[1])]
        return [F.op("_backward_LeakyReLU", head, x, **non_defaults(self))]


@operator("_backward_LeakyReLU")
class BackwardLeakyReLU(
    LeakyReLU, hidden=True, in_place=((0, 0), (1, 0)), uses_random=False, mode_matters=False,
    batch_wise=BatchWise.EACH,
):  # fmt: skip
    """The head times the derivative of leaky, elu, selu or gelu, computed from the data."""

    arguments = ("head", "data")

    def inputs(self) -> tuple[str, ...]:
        return self.arguments

    def outputs(self) -> tuple[str, ...]:
        return ("output",)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        shape = same_shape(self, shapes)
        return [shape, shape], [shape]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        slope = _SLOPE[self.act_type]
        numbers = slope.numbers(self, inputs[1].dtype)
        for head, x, out in blocks(*inputs, outputs[0]):
            slope.run(run.xp, numbers, (head, x), (out,))

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        head, x = inputs
        formula = _SECOND_DERIVATIVE[self.act_type]
        second = formula(F, self, *[x for _ in formula.reads])
        return [
            F.op("_backward_LeakyReLU", heads[0], x, **non_defaults(self)),
            F.zeros_like(x) if isinstance(second, float) else heads[0] * head * second,
        ]


def _front_shape(slopes: Shape, data: Shape) -> Shape | None:
    """Return the shape with which slopes broadcast over data (batch, channels, ...); None if they do not.

    Slopes have the shape (), (1,), (channels,), (batch, channels) or the same with ones.
    """
    shape, lengths = [1] * len(data), list(slopes)
    for axis in reversed(range(min(2, len(data)))):
        if lengths and lengths[-1] in (1, data[axis]):
            shape[axis] = lengths.pop()
    return None if lengths else tuple(shape)


def per_channel(slopes: Array, data: Array) -> Array:
    """Reshape slopes to broadcast along the channels (axis 1), or batch and channels, of the data."""
    shape = _front_shape(slopes.shape, data.shape)
    assert shape is not None
    return slopes.reshape(shape)


@operator("_spread_channel")
class SpreadChannel(Operator, hidden=True):
    """One number, or one per channel (and sample), repeated to the shape of ``like``."""

    arguments = ("vector", "like")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        return shapes, [shapes[1]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = per_channel(inputs[0], outputs[0])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_gather_channel", heads[0], shape_of(inputs, 0)), None]


@operator("_gather_channel")
class GatherChannel(Operator, hidden=True):
    """The sum over all elements, or per channel (and sample), in the shape of ``like``: the adjoint of the spread."""

    arguments = ("data", "like")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        return shapes, [shapes[1]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, out = inputs[0], outputs[0]
        shape = _front_shape(out.shape, data.shape) or ()
        axes = tuple(axis for axis, length in enumerate(shape) if length == 1)
        out[...] = data.sum(axis=axes, dtype=computing_dtype(data.dtype)).reshape(out.shape)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_spread_channel", heads[0], shape_of(inputs, 0)), None]


# -- softmax -----------------------------------------------------------------------------------------------


def softmax_into(xp: ArrayNamespace, x: Array, axis: int | tuple[int, ...], out: Array) -> None:
    """Compute eˣ/Σeˣ along axes, shifted by the maximum to prevent overflow."""
    xp.subtract(x, x.max(axis=axis, keepdims=True), out=out)
    xp.exp(out, out=out)
    xp.divide(out, out.sum(axis=axis, keepdims=True, dtype=computing_dtype(out.dtype)), out=out, casting="unsafe")


def refuse_length(op: Any) -> None:
    """Raise if use_length is set: softmin and log_softmax have the parameter, as in MXNet, but no length input.

    Raises:
        ParameterError: use_length is set.
    """
    if op.use_length:
        raise ParameterError(f"{op.name}: use_length is True, but only softmax takes lengths")


class _Softmax(Operator, batch_wise=BatchWise.EACH):
    """Base of softmax, softmin and log_softmax."""

    arguments: ClassVar[tuple[str, ...]] = ("data", "length")
    input_docs = describe(
        data="any shape, float",
        length="the shape of data without the axis, int; only with use_length",
    )
    output_doc = "The shape of data; dtype `dtype`, or that of data"
    axis: int
    temperature: float | None
    dtype: DType | None
    use_length: bool

    def inputs(self) -> tuple[str, ...]:
        return self.arguments[: 2 if self.use_length else 1]

    def mixes_batch(self, inputs: Sequence[Shape]) -> bool:
        return self.axis % len(inputs[0]) == 0

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        data, *length = shapes
        axis = positive_axis(self, self.axis, data)
        if length and data is not None:
            length = [expect_shape(self, "length", length[0], data[:axis] + data[axis + 1 :])]
        return [data, *length], [data]

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        return dtypes, [self.dtype or dtypes[0]]

    def scale(self) -> float:
        """Return the factor of the data: 1/temperature."""
        return 1 / (self.temperature or 1.0)

    def scaled(self, run: Run, inputs: Sequence[Array], out: Array) -> Array:
        """Return the data times the scale; elements from each length on are minus infinity."""
        x = inputs[0] if inputs[0].dtype == out.dtype else inputs[0].astype(out.dtype)
        if self.scale() != 1:
            x = x * out.dtype.type(self.scale())
        if self.use_length:
            x = run.xp.where(self.length_mask(run.xp, x, inputs[1]), x, -run.xp.inf)
        return x

    def length_mask(self, xp: ArrayNamespace, x: Array, length: Array) -> Array:
        """Return the mask, broadcastable to ``x``, of positions along the axis that are below the length."""
        axis = self.axis % x.ndim
        position = xp.arange(x.shape[axis]).reshape(-1, *(1,) * (x.ndim - axis - 1))
        return position < xp.expand_dims(length, axis)

    def grads(self, gradient: object) -> list[Any]:
        """Return the gradient of the data, and None for the lengths."""
        return [gradient, None][: len(self.inputs())]


@operator("softmax")
class Softmax(_Softmax, in_place=((0, 0),), precision=Precision.FLOAT32):
    """Softmax along an axis: e^(x/T)/Σe^(x/T); positions from ``length`` on are 0 with ``use_length``."""

    axis: int = option(-1, "The axis that sums to 1.")
    temperature: float | None = option(None, "T.")
    dtype: DType | None = option(None, "The output's dtype, by default the data's.")
    use_length: bool = option(False, "Take a second input: the number of valid positions along the axis.")

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        softmax_into(run.xp, self.scaled(run, inputs, outputs[0]), self.axis, outputs[0])
        if self.use_length:
            outputs[0][...] = run.xp.where(self.length_mask(run.xp, inputs[0], inputs[1]), outputs[0], 0)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        gradient = F.op("_backward_softmax", heads[0], outputs[0], axis=self.axis, scaling=self.scale())
        return self.grads(_cast_back(F, self, gradient, inputs))


@operator("softmin")
class Softmin(Softmax, in_place=((0, 0),), precision=Precision.FLOAT32, batch_wise=BatchWise.EACH):
    """Softmax of the negated data along an axis."""

    arguments = ("data",)

    def __post_init__(self) -> None:
        refuse_length(self)

    def scale(self) -> float:
        return -1 / (self.temperature or 1.0)


@operator("log_softmax")
class LogSoftmax(_Softmax, in_place=((0, 0),), precision=Precision.FLOAT32, input_named=True):
    """The logarithm of softmax along an axis."""

    arguments = ("data",)
    axis: int = option(-1, "The axis along which softmax sums to 1.")
    temperature: float | None = option(None, "T.")
    dtype: DType | None = option(None, "The output's dtype, by default the data's.")
    use_length: bool = option(False, "Take a second input: the number of valid positions along the axis.")

    def __post_init__(self) -> None:
        refuse_length(self)

    def bound(self, xp: ArrayNamespace, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> Bound | None:
        axis, dtype = self.axis, out_forms[0][1]
        is_plain = xp is np and in_forms == out_forms and dtype in _PLAIN_TYPES
        if not is_plain or self.scale() != 1 or 0 in in_forms[0][0]:
            return None

        def forward(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            x, out = inputs[0], outputs[0]
            np.subtract(x, np.maximum.reduce(x, axis, keepdims=True), out=out)
            total = np.add.reduce(np.exp(out), axis, keepdims=True)
            np.subtract(out, np.log(total, out=total), out=out)

        return forward

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, out = run.xp, outputs[0]
        x = self.scaled(run, inputs, out)
        xp.subtract(x, x.max(axis=self.axis, keepdims=True), out=out)
        total = xp.exp(out).sum(axis=self.axis, keepdims=True, dtype=computing_dtype(out.dtype))
        xp.subtract(out, xp.log(total), out=out, casting="unsafe")

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        gradient = F.op("_backward_log_softmax", heads[0], outputs[0], axis=self.axis, scaling=self.scale())
        return self.grads(_cast_back(F, self, gradient, inputs))


class _BackwardSoftmax(Operator, hidden=True):
    """A gradient computed from head and output; ``scaling`` is the factor of the data."""

    arguments = ("head", "output")
    axis: int
    scaling: float

    def mixes_batch(self, inputs: Sequence[Shape]) -> bool:
        return self.axis % len(inputs[0]) == 0

    def total(self, run: Run, x: Array) -> Array:
        """Return the sum along the axis."""
        result: Array = x.sum(axis=self.axis, keepdims=True, dtype=computing_dtype(x.dtype))
        return result


@operator("_backward_softmax")
class BackwardSoftmax(_BackwardSoftmax, batch_wise=BatchWise.EACH):
    """Gradient of softmax: y · (head - Σ head · y)."""

    axis: int = -1
    scaling: float = 1.0

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        (head, y), out = inputs, outputs[0]
        gradient = head - self.total(run, head * y)
        gradient *= self.scaling
        run.xp.multiply(gradient, y, out=out, casting="unsafe")

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        head, y = inputs
        inner, outer = (F.sum(factor * y, axis=self.axis, keepdims=True) for factor in (head, heads[0]))
        return [
            F.op("_backward_softmax", heads[0], y, axis=self.axis, scaling=self.scaling),
            (heads[0] * (head - inner) - head * outer) * self.scaling,
        ]


@operator("_backward_log_softmax")
class BackwardLogSoftmax(_BackwardSoftmax, batch_wise=BatchWise.EACH):
    """Gradient of log_softmax: head - eʸ · Σ head."""

    axis: int = -1
    scaling: float = 1.0

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (head, y), out = run.xp, inputs, outputs[0]
        gradient = xp.exp(y) * self.total(run, head)
        xp.subtract(head, gradient, out=gradient, casting="unsafe")
        xp.multiply(gradient, self.scaling, out=out, casting="unsafe")

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        head, y = inputs
        probability = F.exp(y)
        inner, outer = (F.sum(factor, axis=self.axis, keepdims=True) for factor in (head, heads[0] * probability))
        return [(heads[0] - outer) * self.scaling, heads[0] * probability * inner * -self.scaling]


def _cast_back(F: Functions, op: _Softmax, gradient: Tensor, inputs: Tensors) -> Tensor:
    return gradient if op.dtype is None else F.op("_cast_like", gradient, inputs[0])


@operator("SoftmaxActivation")
class SoftmaxActivation(Operator, precision=Precision.FLOAT32, batch_wise=BatchWise.FIRST):
    """Softmax along the last axis (``instance``), or over the channels, axis 1 (``channel``)."""

    input_docs = describe(data="(batch, channels, ...), float")
    output_doc = "The shape and dtype of data"
    mode: Literal["channel", "instance"] = option(
        "instance", "The axis that sums to 1: the last, or the channels, axis 1."
    )

    def axis(self) -> int:
        """Return the axis that sums to 1."""
        return 1 if self.mode == "channel" else -1

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        expect_rank(self, "data", shapes[0], 2)
        return shapes, shapes[:1]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        softmax_into(run.xp, inputs[0], self.axis(), outputs[0])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        y, head = outputs[0], heads[0]
        return [y * (head - F.sum(head * y, axis=self.axis(), keepdims=True))]
