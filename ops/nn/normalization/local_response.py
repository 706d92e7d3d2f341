"""Local response normalization, over neighboring channels, with its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from flowmx.errors import ParameterError
from flowmx.ops.nn.common import computing_dtype, expect_rank, non_defaults
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, describe, operator, option, required
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensor, Tensors
from flowmx.ops.registry.traits import BatchWise, Precision


@operator("LRN")
class LRN(Operator, keeps_layout=True, precision=Precision.FLOAT32, input_named=True, batch_wise=BatchWise.FIRST):
    """Local response normalization across channels (Krizhevsky et al., 2012).

    y = x/(knorm + alpha/nsize · Σx²)^beta, with the sum over the ``nsize`` channels around each channel.
    """

    input_docs = describe(data="(batch, channels, height, width), float")
    output_doc = "The shape and dtype of data"
    onnx = "LRN"
    onnx_attributes: ClassVar[dict[str, str]] = {"alpha": "alpha", "beta": "beta", "bias": "knorm", "size": "nsize"}
    json_outputs = 2
    alpha: float = option(1e-4, "Weight of the sum of squares.")
    beta: float = option(0.75, "Exponent.")
    knorm: float = option(2.0, "Added to the sum.")
    nsize: int = required("The number of channels in the window; odd.", low=1)

    def __post_init__(self) -> None:
        if self.nsize % 2 == 0:
            raise ParameterError(f"{self.name}: nsize is {self.nsize}, expected an odd number")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        expect_rank(self, "data", shapes[0], 4, 4)
        return super().infer_shape(shapes)

    def norm(self, xp: ArrayNamespace, x: Array) -> Array:
        """Return the base of the power: knorm + alpha/nsize · Σx²."""
        norm = xp.empty(x.shape, computing_dtype(x.dtype))
        _window_sum(xp, xp.square(x, dtype=norm.dtype), self.nsize, norm)
        norm *= self.alpha / self.nsize
        norm += self.knorm
        return norm

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        norm = self.norm(run.xp, inputs[0])
        run.xp.power(norm, -self.beta, out=norm)
        run.xp.multiply(inputs[0], norm, out=outputs[0], casting="unsafe")

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_backward_LRN", heads[0], inputs[0], **non_defaults(self))]


@operator("_backward_LRN")
class BackwardLRN(LRN, hidden=True, batch_wise=BatchWise.EACH):
    """Gradient of LRN: g = h·n^-β - c·x·W(h·x·n^(-β-1)), with W the sum over a window and c = 2·β·alpha/nsize."""

    arguments = ("head", "data")

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (head, x) = run.xp, inputs
        norm = self.norm(xp, x)
        grad = head * norm**-self.beta
        window_sums = xp.empty_like(norm)
        _window_sum(xp, grad * x / norm, self.nsize, window_sums)
        window_sums *= x
        window_sums *= 2 * self.beta * self.alpha / self.nsize
        xp.subtract(grad, window_sums, out=outputs[0], casting="unsafe")

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        def window_sum(x: object) -> Tensor:
            return F.op("_channel_window_sum", x, nsize=self.nsize)

        (h, x), q, share = inputs, heads[0], self.alpha / self.nsize
        c = 2 * share * self.beta
        n = window_sum(x * x) * share + self.knorm
        m = n ** (-self.beta - 1.0)
        sums = window_sum(q * x)
        by_head = q * n**-self.beta - x * m * sums * c
        by_data = x * window_sum(sums * h * x * m / n) * (2 * share * (self.beta + 1.0)) - x * window_sum(m * q * h)
        return [by_head, (by_data - q * window_sum(h * x * m) - h * m * sums) * c]


def _window_sum(xp: ArrayNamespace, x: Array, size: int, out: Array) -> None:
    """Sum ``size`` channels around each channel (axis 1)."""
    out[...] = x
    for shift in range(1, min(size // 2, x.shape[1] - 1) + 1):
        out[:, shift:] += x[:, :-shift]
        out[:, :-shift] += x[:, shift:]


@operator("_channel_window_sum")
class ChannelWindowSum(Operator, hidden=True, batch_wise=BatchWise.EACH):
    """The sum of the ``nsize`` channels around each channel; it is self-adjoint."""

    nsize: int = 5

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        _window_sum(run.xp, inputs[0], self.nsize, outputs[0])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_channel_window_sum", heads[0], nsize=self.nsize)]
