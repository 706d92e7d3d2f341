"""Normalisations. BatchNorm, LayerNorm, InstanceNorm and GroupNorm are one computation in four frames.

A frame sees the data in another shape and says which axes the statistics are taken over and how gamma and
beta lie: BatchNorm, for one, sees (batch, channels, positions) and normalises over axes 0 and 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from flowmx.errors import ParameterError, ShapeError
from flowmx.ops.nn.common import bound, computing_dtype, expect_rank, expect_shape, positive_axis, scratch
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import (
    Array,
    Operator,
    Run,
    Shape,
    ShapeOrNone,
    described,
    operator,
    option,
    required,
)
from flowmx.ops.registry.traits import Precision

_PART = 1 << 16
"""Elements to work on at a time."""


class _Frame(NamedTuple):
    """The view of data in which a normalisation computes."""

    shape: Shape
    over: tuple[int, ...]
    """The axes that the statistics are taken over."""
    scale: Shape
    """The shape of gamma and beta, to be broadcast."""

    @property
    def others(self) -> tuple[int, ...]:
        """The axes that gamma and beta are repeated along."""
        return tuple(axis for axis, length in enumerate(self.scale) if length == 1)


def _standardise(xp: Any, x: Array, over: tuple[int, ...], eps: float, out: Array) -> tuple[Array, Array, Array]:
    """(x - mean)/√(var + eps) into ``out``; returns mean, variance and 1/√(var + eps)."""
    dtype = computing_dtype(x.dtype)
    mean = x.mean(axis=over, keepdims=True, dtype=dtype)
    xp.subtract(x, mean, out=out, casting="unsafe")
    var = xp.square(out, dtype=dtype).mean(axis=over, keepdims=True)
    inverse = 1 / xp.sqrt(var + dtype.type(eps))
    xp.multiply(out, inverse, out=out, casting="unsafe")
    return mean, var, inverse


class _Normalization(Operator):
    """The base of the normalisations; a subclass defines its frame and the shapes of its statistics."""

    arguments: ClassVar[tuple[str, ...]] = ("data", "gamma", "beta")
    input_docs = described(
        data="(batch, channels, ...), float",
        gamma="(channels,), float; float32 for data of 16 bits",
        beta="(channels,), float; float32 for data of 16 bits",
    )
    output_doc = "The shape and dtype of data; with output_mean_var the statistics too"
    inverse_std: ClassVar[bool] = False
    """The second statistic is 1/√(var + eps), not √(var + eps)."""
    eps: float
    output_mean_var: bool

    def frame(self, shape: Shape) -> _Frame:
        """The frame for data of this shape."""
        raise NotImplementedError

    def scale_shape(self, shape: Shape) -> Shape:
        """The shape of gamma and beta for data of this shape."""
        raise NotImplementedError

    def statistics_shape(self, shape: Shape) -> Shape:
        """The shape of the mean for data of this shape."""
        raise NotImplementedError

    def outputs(self) -> tuple[str, ...]:
        return ("output", "mean", "std")

    def visible_outputs(self) -> int:
        return 3 if self.output_mean_var else 1

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        data = shapes[0]
        if data is None:
            return shapes, [None] * len(self.outputs())
        names = (*self.inputs(), *self.auxiliary)
        scale = self.scale_shape(data)
        rest = [expect_shape(self, n, s, scale) for n, s in zip(names[1:], shapes[1:], strict=True)]
        return [data, *rest], [data, *[self.statistics_shape(data)] * 2, *[(1,)] * (len(self.outputs()) - 3)]

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        # Statistics and parameters of 16-bit data are float32.
        data = dtypes[0]
        small = None if data is None else computing_dtype(data)
        completed = [data, *(small if dtype is None else dtype for dtype in dtypes[1:])]
        return completed, [data, *[small] * (len(self.outputs()) - 1)]

    def statistics(self, run: Run, x: Array, inputs: Sequence[Array], frame: _Frame, out: Array) -> Any:
        """Standardise into ``out``; returns mean and 1/std."""
        mean, _, inverse = _standardise(run.xp, x, frame.over, self.eps, out)
        return mean, inverse

    def gamma(self, xp: Any, gamma: Array, frame: _Frame) -> Array:
        """Gamma in the frame."""
        return gamma.reshape(frame.scale)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, frame = run.xp, self.frame(inputs[0].shape)
        x, out = inputs[0].reshape(frame.shape), outputs[0].reshape(frame.shape)
        mean, inverse = self.statistics(run, x, inputs, frame, out)
        xp.multiply(out, self.gamma(xp, inputs[1], frame), out=out, casting="unsafe")
        xp.add(out, inputs[2].reshape(frame.scale), out=out, casting="unsafe")
        outputs[1][...] = mean.reshape(outputs[1].shape)
        outputs[2][...] = (inverse if self.inverse_std else 1 / inverse).reshape(outputs[2].shape)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        data, gamma = inputs[:2]
        return list(F.op(f"_backward_{self.name}", heads[0], data, gamma, *list(outputs)[1:], **bound(self)))


class _BackwardNormalization(_Normalization, hidden=True):
    """Gradients for data, gamma and beta."""

    arguments: ClassVar[tuple[str, ...]] = ("head", "data", "gamma", "mean", "var")
    auxiliary: ClassVar[tuple[str, ...]] = ()

    def outputs(self) -> tuple[str, ...]:
        return ("data_grad", "gamma_grad", "beta_grad")

    def visible_outputs(self) -> int:
        return 3

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        return shapes, [shapes[1], shapes[2], shapes[2]]

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        return dtypes, [dtypes[1], dtypes[2], dtypes[2]]

    def over_batch(self, inputs: Sequence[Array]) -> Any:
        """True where the statistics came from the data and so have gradients too; on a GPU an array of 1 or 0."""
        return True

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, data, frame = run.xp, inputs[1], self.frame(inputs[1].shape)
        stat = tuple(1 if axis in frame.over else length for axis, length in enumerate(frame.shape))
        mean, inverse = inputs[3].reshape(stat), inputs[4].reshape(stat)
        if not self.inverse_std:
            inverse = 1 / inverse
        gamma = self.gamma(xp, inputs[2], frame)
        head, x, out = (each.reshape(frame.shape) for each in (inputs[0], data, outputs[0]))
        sums = [xp.zeros(frame.scale, mean.dtype) for _ in range(2)]
        if 0 in frame.over:
            self._across(run, head, x, mean, inverse, gamma, self.over_batch(inputs), out, sums)
        else:
            step = max(1, _PART // max(1, math.prod(frame.shape[1:])))
            for start in range(0, len(x), step):
                part = slice(start, start + step)
                self._within(xp, frame, head[part], x[part], mean[part], inverse[part], gamma, out[part], sums)
        outputs[1][...] = sums[0].reshape(outputs[1].shape)
        outputs[2][...] = sums[1].reshape(outputs[2].shape)

    def _across(
        self, run: Run, head: Array, x: Array, mean: Array, inverse: Array, gamma: Array, over_batch: Any,
        out: Array, sums: list[Array],
    ) -> None:  # fmt: skip
        """Statistics over the batch: the sums first, example by example, then the gradient.

        dx = gamma/std · (head - mean(head) - x̂ · mean(head · x̂)), seen as a · (x - mean) + b · head + c.
        """
        xp, dtype = run.xp, mean.dtype
        centred = scratch(run, "normalisation", x.shape[1:], dtype)
        wide = scratch(run, "normalisation head", x.shape[1:], dtype)
        for g, each in zip(head, x, strict=True):
            xp.subtract(each, mean[0], out=centred)
            xp.copyto(wide, g)
            xp.multiply(centred, wide, out=centred)
            sums[0][0] += centred.sum(axis=1, keepdims=True)
            sums[1][0] += wide.sum(axis=1, keepdims=True)
        sums[0] *= inverse
        b = (gamma * inverse)[0]
        count = x.size // max(1, mean.size)
        a = -b * inverse[0] * sums[0][0] / count
        c = -b * sums[1][0] / count
        if not isinstance(over_batch, bool):
            a, c, over_batch = a * over_batch, c * over_batch, True
        for g, each, into in zip(head, x, out, strict=True):
            xp.multiply(g, b, out=wide)
            if over_batch:
                xp.subtract(each, mean[0], out=centred)
                centred *= a
                wide += centred
                wide += c
            xp.copyto(into, wide, casting="unsafe")

    @staticmethod
    def _within(
        xp: Any, frame: _Frame, head: Array, x: Array, mean: Array, inverse: Array, gamma: Array, out: Array,
        sums: list[Array],
    ) -> None:  # fmt: skip
        """Statistics within each example: dx = (g - mean(g) - x̂ · mean(g · x̂))/std with g = head · gamma."""
        hat = xp.subtract(x, mean, dtype=mean.dtype)
        hat *= inverse
        product = head * hat
        sums[0] += product.sum(axis=frame.others, keepdims=True)
        sums[1] += head.sum(axis=frame.others, keepdims=True, dtype=mean.dtype)
        product *= gamma
        scaled = head * gamma
        hat *= product.mean(axis=frame.over, keepdims=True)
        scaled -= hat
        scaled -= (head * gamma).mean(axis=frame.over, keepdims=True)
        xp.multiply(scaled, inverse, out=out, casting="unsafe")

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        raise NotImplementedError  # no second order


def _around(shape: Shape, axis: int) -> Shape:
    """The shape seen as (before, axis, after)."""
    return (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))


class BatchStatistics(_Normalization, in_place=((0, 0),), mode_matters=True, keeps_layout=True):
    """Base of BatchNorm and what differs from it in its parameters alone."""

    auxiliary: ClassVar[tuple[str, ...]] = ("moving_mean", "moving_var")
    input_docs = described(
        moving_mean="(channels,), the dtype of gamma; a state, updated in training",
        moving_var="(channels,), the dtype of gamma; a state, updated in training",
    )
    output_doc = "The shape and dtype of data; with output_mean_var also the mean and the second statistic, (channels,)"
    inverse_std = True
    axis: int
    momentum: float
    fix_gamma: bool
    use_global_stats: bool

    def outputs(self) -> tuple[str, ...]:
        # The last is 1 where the batch's statistics were used, for the gradient.
        return ("output", "mean", "var", "batch")

    def counted_outputs(self) -> int:
        return 3

    def frame(self, shape: Shape) -> _Frame:
        axis = positive_axis(self, self.axis, shape)
        return _Frame(_around(shape, axis), (0, 2), (1, shape[axis], 1))

    def scale_shape(self, shape: Shape) -> Shape:
        return (shape[positive_axis(self, self.axis, shape)],)

    statistics_shape = scale_shape

    def gamma(self, xp: Any, gamma: Array, frame: _Frame) -> Array:
        return xp.ones_like(gamma).reshape(frame.scale) if self.fix_gamma else gamma.reshape(frame.scale)

    def follow(self, moving: Array, new: Array) -> None:
        """Let a moving statistic follow the batch's."""
        moving *= self.momentum
        moving += (1 - self.momentum) * new.reshape(moving.shape)

    def statistics(self, run: Run, x: Array, inputs: Sequence[Array], frame: _Frame, out: Array) -> Any:
        moving_mean, moving_var = inputs[-2:]
        if self._by_batch(run, x):
            mean, var, inverse = _standardise(run.xp, x, frame.over, self.eps, out)
            self.follow(moving_mean, mean)
            self.follow(moving_var, var)
            return mean, inverse
        mean = moving_mean.reshape(frame.scale)
        inverse = 1 / run.xp.sqrt(moving_var.reshape(frame.scale) + moving_var.dtype.type(self.eps))
        run.xp.subtract(x, mean, out=out, casting="unsafe")
        run.xp.multiply(out, inverse, out=out, casting="unsafe")
        return mean, inverse

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        super().forward(run, inputs, outputs)
        outputs[3][...] = self._by_batch(run, inputs[0])

    def _by_batch(self, run: Run, data: Array) -> bool:
        """True where the batch's statistics are used; an empty batch has none."""
        return run.train and not self.use_global_stats and data.size > 0


@operator("BatchNorm", "BatchNorm_v1")
class BatchNorm(BatchStatistics):
    """Normalise each channel by its mean and variance over the batch, then scale by gamma and add beta.

    In training the batch's statistics are used and the moving ones follow them:
    moving = momentum · moving + (1 - momentum) · batch. Otherwise, and with ``use_global_stats``, the moving
    ones are used. ``fix_gamma`` takes gamma as 1. From Ioffe and Szegedy, "Batch Normalization", 2015.

    Shapes: data of any shape; gamma, beta, moving_mean and moving_var (channels,). Further outputs with
    ``output_mean_var``: mean and 1/√(var + eps), each (channels,).
    """

    eps: float = option(1e-3, "Added to the variance.", low=0)
    momentum: float = option(0.9, "The part of the moving statistics that is kept at each step.")
    fix_gamma: bool = option(True, "Take gamma as 1.")
    use_global_stats: bool = option(False, "Use the moving statistics in training too.")
    output_mean_var: bool = option(False, "Give the statistics as further outputs.")
    axis: int = option(1, "The axis of the channels.")
    cudnn_off: bool = option(False, "Ignored.")
    min_calib_range: float | None = option(None, "Ignored.")
    max_calib_range: float | None = option(None, "Ignored.")


@operator("_backward_BatchNorm")
class BackwardBatchNorm(_BackwardNormalization, BatchNorm, in_place=((0, 0),), mode_matters=False):
    """Gradients of BatchNorm; gamma's is 0 where it is fixed."""

    arguments = ("head", "data", "gamma", "mean", "var", "batch")

    def over_batch(self, inputs: Sequence[Array]) -> Any:
        flag = inputs[5][0]
        return bool(flag) if isinstance(flag, np.generic) else flag

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        super().forward(run, inputs, outputs)
        if self.fix_gamma:
            outputs[1].fill(0)


@operator("LayerNorm")
class LayerNorm(_Normalization, precision=Precision.FLOAT32):
    """Normalise along one axis, then scale by gamma and add beta (Ba et al., "Layer Normalization", 2016).

    Shapes: data of any shape; gamma and beta as long as the axis. Further outputs with
    ``output_mean_var``: mean and √(var + eps), with the axis 1 long.
    """

    input_docs = described(
        data="any shape, float",
        gamma="(length of the axis,), float; float32 for data of 16 bits",
        beta="(length of the axis,), float; float32 for data of 16 bits",
    )
    output_doc = "The shape and dtype of data; with output_mean_var also mean and √(var + eps), with the axis 1 long"
    axis: int = option(-1, "The axis to normalise along.")
    eps: float = option(1e-5, "Added to the variance.", low=0)
    output_mean_var: bool = option(False, "Give the statistics as further outputs.")

    def frame(self, shape: Shape) -> _Frame:
        axis = positive_axis(self, self.axis, shape)
        return _Frame(_around(shape, axis), (1,), (1, shape[axis], 1))

    def scale_shape(self, shape: Shape) -> Shape:
        return (shape[positive_axis(self, self.axis, shape)],)

    def statistics_shape(self, shape: Shape) -> Shape:
        axis = positive_axis(self, self.axis, shape)
        return (*shape[:axis], 1, *shape[axis + 1 :])


@operator("_backward_LayerNorm")
class BackwardLayerNorm(_BackwardNormalization, LayerNorm):
    """Gradients of LayerNorm."""


@operator("InstanceNorm")
class InstanceNorm(_Normalization, precision=Precision.FLOAT32):
    """Normalise each channel of each example over its positions (Ulyanov et al., 2016).

    Shapes: data (batch, channels, *size), gamma and beta (channels,).
    """

    output_mean_var = False
    onnx = "InstanceNormalization"
    onnx_attributes: ClassVar[dict[str, str]] = {"epsilon": "eps"}
    eps: float = option(1e-3, "Added to the variance.", low=0)

    def frame(self, shape: Shape) -> _Frame:
        return _Frame((*shape[:2], math.prod(shape[2:])), (2,), (1, shape[1], 1))

    def scale_shape(self, shape: Shape) -> Shape:
        expect_rank(self, "data", shape, 3)
        return (shape[1],)

    def statistics_shape(self, shape: Shape) -> Shape:
        return shape[:2]


@operator("_backward_InstanceNorm")
class BackwardInstanceNorm(_BackwardNormalization, InstanceNorm):
    """Gradients of InstanceNorm."""


@operator("GroupNorm")
class GroupNorm(_Normalization, precision=Precision.FLOAT32):
    """Normalise each group of channels of each example (Wu and He, "Group Normalization", 2018).

    Shapes: data (batch, channels, ...), gamma and beta (num_groups,), as in MXNet 1.9. Further outputs with
    ``output_mean_var``: mean and √(var + eps), each (batch, num_groups).
    """

    input_docs = described(
        gamma="(num_groups,), float; float32 for data of 16 bits",
        beta="(num_groups,), float; float32 for data of 16 bits",
    )
    output_doc = "The shape and dtype of data; with output_mean_var also mean and √(var + eps), (batch, num_groups)"
    num_groups: int = option(1, "Number of groups; divides the channels.", low=1)
    eps: float = option(1e-5, "Added to the variance.", low=0)
    output_mean_var: bool = option(False, "Give the statistics as further outputs.")

    def frame(self, shape: Shape) -> _Frame:
        groups = self.num_groups
        return _Frame((shape[0], groups, math.prod(shape[1:]) // groups), (2,), (1, groups, 1))

    def scale_shape(self, shape: Shape) -> Shape:
        expect_rank(self, "data", shape, 3)
        if shape[1] > 0 and shape[1] % self.num_groups:
            raise ShapeError(
                f"{self.name}: input data has shape {shape}, expected a multiple of num_groups "
                f"{self.num_groups} channels"
            )
        return (self.num_groups,)

    def statistics_shape(self, shape: Shape) -> Shape:
        return (shape[0], self.num_groups)


@operator("_backward_GroupNorm")
class BackwardGroupNorm(_BackwardNormalization, GroupNorm):
    """Gradients of GroupNorm."""


# -- norms over a neighbourhood ----------------------------------------------------------------------------


@operator("L2Normalization")
class L2Normalization(Operator, precision=Precision.FLOAT32, input_named=True):
    """Divide by the Euclidean norm √(Σx² + eps).

    Over each whole example (``instance``), over the channels at each position (``channel``), or over the
    positions of each channel (``spatial``).
    """

    input_docs = described(data="(batch, ...), float; at least 3 axes but for mode 'instance'")
    output_doc = "The shape and dtype of data"
    eps: float = option(1e-10, "Added to the sum of squares.", low=0)
    mode: Literal["channel", "instance", "spatial"] = option("instance", "The elements that the norm is taken over.")

    def counted_outputs(self) -> int:
        return 2

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        expect_rank(self, "data", shapes[0], 1 if self.mode == "instance" else 3)
        return shapes, shapes[:1]

    def axes(self) -> dict[str, Any]:
        """The axes of the norm, as the arguments of a reduction."""
        if self.mode == "channel":
            return {"axis": 1}
        return {"axis": 0 if self.mode == "instance" else (0, 1), "exclude": True}

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, x = run.xp, inputs[0]
        start = {"channel": 1, "instance": 1, "spatial": 2}[self.mode]
        axes = (1,) if self.mode == "channel" else tuple(range(start, x.ndim))
        total = xp.square(x, dtype=computing_dtype(x.dtype)).sum(axis=axes, keepdims=True)
        xp.divide(x, xp.sqrt(total + total.dtype.type(self.eps)), out=outputs[0], casting="unsafe")

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        x, y, head = inputs[0], outputs[0], heads[0]
        norm = F.sqrt(F.sum(x * x, keepdims=True, **self.axes()) + self.eps)
        return [(head - y * F.sum(head * y, keepdims=True, **self.axes())) / norm]


@operator("LRN")
class LRN(Operator, keeps_layout=True, precision=Precision.FLOAT32, input_named=True):
    """Local response normalisation across channels (Krizhevsky et al., 2012).

    y = x/(knorm + alpha/nsize · Σx²)^beta, the sum over the ``nsize`` channels around each.
    """

    input_docs = described(data="(batch, channels, height, width), float")
    output_doc = "The shape and dtype of data"
    onnx = "LRN"
    onnx_attributes: ClassVar[dict[str, str]] = {"alpha": "alpha", "beta": "beta", "bias": "knorm", "size": "nsize"}
    alpha: float = option(1e-4, "Weight of the sum of squares.")
    beta: float = option(0.75, "Exponent.")
    knorm: float = option(2.0, "Added to the sum.")
    nsize: int = required("The number of channels in the window; odd.", low=1)

    def __post_init__(self) -> None:
        if self.nsize % 2 == 0:
            raise ParameterError(f"{self.name}: nsize is {self.nsize}, expected an odd number")

    def counted_outputs(self) -> int:
        return 2

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        expect_rank(self, "data", shapes[0], 4, 4)
        return super().infer_shape(shapes)

    def norm(self, xp: Any, x: Array) -> Array:
        """The base of the power: knorm + alpha/nsize · Σx²."""
        norm = xp.empty(x.shape, computing_dtype(x.dtype))
        _window_sum(xp, xp.square(x, dtype=norm.dtype), self.nsize, norm)
        norm *= self.alpha / self.nsize
        norm += self.knorm
        return norm

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        norm = self.norm(run.xp, inputs[0])
        run.xp.power(norm, -self.beta, out=norm)
        run.xp.multiply(inputs[0], norm, out=outputs[0], casting="unsafe")

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [F.op("_backward_LRN", heads[0], inputs[0], **bound(self))]


@operator("_backward_LRN")
class BackwardLRN(LRN, hidden=True):
    """Gradient of LRN: g = h·n^-β - c·x·W(h·x·n^(-β-1)), with W the sum over a window and c = 2·β·alpha/nsize."""

    arguments = ("head", "data")

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (head, x) = run.xp, inputs
        norm = self.norm(xp, x)
        scaled = head * norm**-self.beta
        around = xp.empty_like(norm)
        _window_sum(xp, scaled * x / norm, self.nsize, around)
        around *= x
        around *= 2 * self.beta * self.alpha / self.nsize
        xp.subtract(scaled, around, out=outputs[0], casting="unsafe")

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        def around(x: Any) -> Any:
            return F.op("_channel_window_sum", x, nsize=self.nsize)

        (h, x), q, share = inputs, heads[0], self.alpha / self.nsize
        c = 2 * share * self.beta
        n = around(x * x) * share + self.knorm
        m = n ** (-self.beta - 1.0)
        sums = around(q * x)
        by_head = q * n**-self.beta - x * m * sums * c
        by_data = x * around(sums * h * x * m / n) * (2 * share * (self.beta + 1.0)) - x * around(m * q * h)
        return [by_head, (by_data - q * around(h * x * m) - h * m * sums) * c]


def _window_sum(xp: Any, x: Array, size: int, out: Array) -> None:
    """Sum ``size`` channels around each channel (axis 1)."""
    out[...] = x
    for shift in range(1, min(size // 2, x.shape[1] - 1) + 1):
        out[:, shift:] += x[:, :-shift]
        out[:, :-shift] += x[:, shift:]


@operator("_channel_window_sum")
class ChannelWindowSum(Operator, hidden=True):
    """The sum of the ``nsize`` channels around each; its own adjoint."""

    nsize: int = 5

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        _window_sum(run.xp, inputs[0], self.nsize, outputs[0])

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [F.op("_channel_window_sum", heads[0], nsize=self.nsize)]
