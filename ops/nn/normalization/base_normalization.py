"""The common computation of BatchNorm, LayerNorm, InstanceNorm and GroupNorm.

A frame reshapes the data and specifies the axes of the statistics and the shape of gamma and beta. BatchNorm, for
example, reshapes to (batch, channels, positions) and normalizes over axes 0 and 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from flowmx.ops.nn.common import computing_dtype, expect_shape, non_defaults, scratch
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, describe
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensors
from flowmx.ops.registry.traits import BatchParts, BatchWise

_PART = 1 << 16
"""Elements processed at a time."""


class Frame(NamedTuple):
    """The view of data in which a normalization computes."""

    shape: Shape
    over: tuple[int, ...]
    """The axes of the statistics."""
    scale: Shape
    """The shape of gamma and beta, for broadcasting."""

    @property
    def others(self) -> tuple[int, ...]:
        """The axes along which gamma and beta are repeated."""
        return tuple(axis for axis, length in enumerate(self.scale) if length == 1)


def standardize(
    xp: ArrayNamespace, x: Array, over: tuple[int, ...], eps: float, out: Array
) -> tuple[Array, Array, Array]:
    """Compute (x - mean)/√(var + eps) into ``out``; return mean, variance and 1/√(var + eps)."""
    dtype = computing_dtype(x.dtype)
    mean = x.mean(axis=over, keepdims=True, dtype=dtype)
    xp.subtract(x, mean, out=out, casting="unsafe")
    var = xp.square(out, dtype=dtype).mean(axis=over, keepdims=True)
    inverse = 1 / xp.sqrt(var + dtype.type(eps))
    xp.multiply(out, inverse, out=out, casting="unsafe")
    return mean, var, inverse


class Normalization(Operator):
    """Base of the normalizations; a subclass defines its frame and the shapes of its statistics."""

    arguments: ClassVar[tuple[str, ...]] = ("data", "gamma", "beta")
    input_docs = describe(
        data="(batch, channels, ...), float",
        gamma="(channels,), float; float32 for data of 16 bits",
        beta="(channels,), float; float32 for data of 16 bits",
    )
    output_doc = "The shape and dtype of data; with output_mean_var the statistics too"
    inverse_std: ClassVar[bool] = False
    """The second statistic is 1/√(var + eps), not √(var + eps)."""
    output_names: ClassVar[tuple[str, ...]] = ("output", "mean", "std")
    eps: float
    output_mean_var: bool
    axis: int
    """The axis of the channels, or to normalize along, for operators with this parameter."""

    def frame(self, shape: Shape) -> Frame:
        """Return the frame for data of this shape."""
        raise NotImplementedError

    def scale_shape(self, shape: Shape) -> Shape:
        """Return the shape of gamma and beta for data of this shape."""
        raise NotImplementedError

    def statistics_shape(self, shape: Shape) -> Shape:
        """Return the shape of the mean for data of this shape."""
        raise NotImplementedError

    def visible_outputs(self) -> int:
        return 3 if self.output_mean_var else 1

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        data = shapes[0]
        if data is None:
            return shapes, [None] * len(self.outputs())
        names = (*self.inputs(), *self.auxiliary)
        scale = self.scale_shape(data)
        scales = [expect_shape(self, n, s, scale) for n, s in zip(names[1:], shapes[1:], strict=True)]
        return [data, *scales], [data, *[self.statistics_shape(data)] * 2, *[(1,)] * (len(self.outputs()) - 3)]

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        # Statistics and parameters of 16-bit data are float32.
        data = dtypes[0]
        parameter_dtype = None if data is None else computing_dtype(data)
        in_dtypes = [data, *(parameter_dtype if dtype is None else dtype for dtype in dtypes[1:])]
        return in_dtypes, [data, *[parameter_dtype] * (len(self.outputs()) - 1)]

    def statistics(self, run: Run, x: Array, inputs: Sequence[Array], frame: Frame, out: Array) -> Any:
        """Standardize into ``out``; return mean and 1/std."""
        mean, _, inverse = standardize(run.xp, x, frame.over, self.eps, out)
        return mean, inverse

    def gamma(self, xp: ArrayNamespace, gamma: Array, frame: Frame) -> Array:
        """Return gamma in the frame's shape."""
        return gamma.reshape(frame.scale)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, frame = run.xp, self.frame(inputs[0].shape)
        x, out = inputs[0].reshape(frame.shape), outputs[0].reshape(frame.shape)
        mean, inverse = self.statistics(run, x, inputs, frame, out)
        xp.multiply(out, self.gamma(xp, inputs[1], frame), out=out, casting="unsafe")
        xp.add(out, inputs[2].reshape(frame.scale), out=out, casting="unsafe")
        outputs[1][...] = mean.reshape(outputs[1].shape)
        outputs[2][...] = (inverse if self.inverse_std else 1 / inverse).reshape(outputs[2].shape)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        data, gamma = inputs[:2]
        return list(F.op(f"_backward_{self.name}", heads[0], data, gamma, *list(outputs)[1:], **non_defaults(self)))


class BackwardNormalization(Normalization, hidden=True):
    """Gradients for data, gamma and beta."""

    arguments: ClassVar[tuple[str, ...]] = ("head", "data", "gamma", "mean", "var")
    auxiliary: ClassVar[tuple[str, ...]] = ()
    output_names: ClassVar[tuple[str, ...]] = ("data_grad", "gamma_grad", "beta_grad")

    def visible_outputs(self) -> int:
        return 3

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        return shapes, [shapes[1], shapes[2], shapes[2]]

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        return dtypes, [dtypes[1], dtypes[2], dtypes[2]]

    def batch_parts(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> BatchParts | None:
        is_splittable = self.traits.batch_wise is BatchWise.OWN and not self.mixes_batch(inputs)
        return BatchParts((0, 1, 3, 4), (0,), (1, 2)) if is_splittable else None

    def over_batch(self, inputs: Sequence[Array]) -> bool:
        """Return whether the statistics came from the data, and so have gradients; on a GPU an array of 1 or 0."""
        return True

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, data, frame = run.xp, inputs[1], self.frame(inputs[1].shape)
        stat = tuple(1 if axis in frame.over else length for axis, length in enumerate(frame.shape))
        mean, inverse = inputs[3].reshape(stat), inputs[4].reshape(stat)
        if not self.inverse_std:
            inverse = 1 / inverse
        gamma = self.gamma(xp, inputs[2], frame)
        head, x, out = (array.reshape(frame.shape) for array in (inputs[0], data, outputs[0]))
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
        self, run: Run, head: Array, x: Array, mean: Array, inverse: Array, gamma: Array, over_batch: object,
        out: Array, sums: list[Array],
    ) -> None:  # fmt: skip
        """Compute the gradient for statistics over the batch: the sums first, sample by sample.

        dx = gamma/std · (head - mean(head) - x̂ · mean(head · x̂)), computed as a · (x - mean) + b · head + c.
        """
        xp, dtype = run.xp, mean.dtype
        centered = scratch(run, "normalization", x.shape[1:], dtype)
        head_copy = scratch(run, "normalization head", x.shape[1:], dtype)
        for g, sample in zip(head, x, strict=True):
            xp.subtract(sample, mean[0], out=centered)
            xp.copyto(head_copy, g)
            xp.multiply(centered, head_copy, out=centered)
            sums[0][0] += centered.sum(axis=1, keepdims=True)
            sums[1][0] += head_copy.sum(axis=1, keepdims=True)
        sums[0] *= inverse
        b = (gamma * inverse)[0]
        count = x.size // max(1, mean.size)
        a = -b * inverse[0] * sums[0][0] / count
        c = -b * sums[1][0] / count
        if not isinstance(over_batch, bool):
            a, c, over_batch = a * over_batch, c * over_batch, True
        for g, sample, target in zip(head, x, out, strict=True):
            xp.multiply(g, b, out=head_copy)
            if over_batch:
                xp.subtract(sample, mean[0], out=centered)
                centered *= a
                head_copy += centered
                head_copy += c
            xp.copyto(target, head_copy, casting="unsafe")

    @staticmethod
    def _within(
        xp: ArrayNamespace, frame: Frame, head: Array, x: Array, mean: Array, inverse: Array, gamma: Array, out: Array,
        sums: list[Array],
    ) -> None:  # fmt: skip
        """Compute the gradient for statistics within each sample.

        dx = (g - mean(g) - x̂ · mean(g · x̂))/std with g = head · gamma.
        """
        hat = xp.subtract(x, mean, dtype=mean.dtype)
        hat *= inverse
        product = head * hat
        sums[0] += product.sum(axis=frame.others, keepdims=True)
        sums[1] += head.sum(axis=frame.others, keepdims=True, dtype=mean.dtype)
        product *= gamma
        grad = head * gamma
        hat *= product.mean(axis=frame.over, keepdims=True)
        grad -= hat
        grad -= (head * gamma).mean(axis=frame.over, keepdims=True)
        xp.multiply(grad, inverse, out=out, casting="unsafe")

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        raise NotImplementedError  # there is no second derivative


def around_axis(shape: Shape, axis: int) -> Shape:
    """Return the shape as (before, axis, after)."""
    return (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
