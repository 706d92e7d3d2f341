"""Convolution and FullyConnected on quantized data, with int32 sums (``int8_layers.py``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from flowmx.ops.nn.convolution import Convolution
from flowmx.ops.nn.linear import FullyConnected, as_matrix
from flowmx.ops.quantization.int8_layers import convolve_int8, multiply_int8
from flowmx.ops.quantization.ranges import (
    INT8,
    INT32,
    UINT8,
    Inferred,
    InferredTypes,
    Quantized,
    magnitude,
    operator,
    product_magnitude,
    put_range,
    scale_of,
)
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Form, Run, Shape, ShapeOrNone, describe
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensors
from flowmx.ops.registry.traits import Precision

_INPUTS = describe(
    weight="the shape of the floating-point operator's weight, int8",
    bias="(outputs,), int8; not with no_bias",
    min_data="(1,), float32; the lower end of the data's range",
    max_data="(1,), float32; the upper end",
    min_weight="(1,), float32; the lower end of the weight's range",
    max_weight="(1,), float32; the upper end",
    min_bias="(1,), float32; the lower end of the bias's range; not with no_bias",
    max_bias="(1,), float32; the upper end; not with no_bias",
)


class _Product(Quantized, skips=True, requantizes=True):
    """Base of convolution and FullyConnected: the inputs."""

    arguments: ClassVar[tuple[str, ...]] = (
        "data", "weight", "bias", "min_data", "max_data", "min_weight", "max_weight", "min_bias", "max_bias",
    )  # fmt: skip
    no_bias: bool

    def inputs(self) -> tuple[str, ...]:
        return tuple(name for name in self.arguments if not (self.no_bias and "bias" in name))

    def ranges_from(self) -> int:
        return 2 if self.no_bias else 3

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return self.with_types(dtypes, [(INT8, UINT8), *[(INT8,)] * (self.ranges_from() - 1)], INT32)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        raise NotImplementedError


@operator("_contrib_quantized_conv")
class QuantizedConv(_Product, Convolution, precision=Precision.GIVEN, makes_channels_last=False):
    """Convolve quantized data with quantized filters, into int32 sums."""

    input_docs = describe(data="(batch, channels, *size), int8 or uint8", **_INPUTS)
    output_doc = "(batch, num_filter, *out), int32; the values of the smallest and largest int32, (1,), float32"

    def infer_back(self, shapes: list[ShapeOrNone], outputs: list[ShapeOrNone]) -> list[ShapeOrNone]:
        first = self.ranges_from()
        return [*Convolution.infer_back(self, shapes[:first], outputs), *shapes[first:]]

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        return Convolution.cost(self, inputs, outputs)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        first = self.ranges_from()
        inputs, outputs = Convolution.infer_shape(self, shapes[:first])
        return self.with_ranges([*inputs, *shapes[first:]], outputs[0])

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, weight, *rest = inputs
        ends = rest[-4:] if self.no_bias else rest[1:]
        size = product_magnitude(magnitude(*ends[2:4]), magnitude(*ends[:2]), data.dtype)
        sums = convolve_int8(run, self, data, weight, outputs[0].shape)
        run.xp.copyto(outputs[0], sums, casting="unsafe")
        if not self.no_bias:
            unit = np.float32(size / np.float32(2147483647))
            scale = magnitude(*ends[4:]) / np.float32(127) / unit if size else np.float32(0)
            bias = run.xp.rint(rest[0] * np.float32(scale)).astype(np.int32)
            outputs[0][...] += bias.reshape(-1, *(1,) * (data.ndim - 2))
        put_range(outputs, -size, size)


@operator("_contrib_quantized_fully_connected")
class QuantizedFullyConnected(_Product, FullyConnected, precision=Precision.GIVEN):
    """Multiply quantized data by a quantized weight, into int32 sums."""

    input_docs = describe(data="(batch, ...), or (..., inputs) without flatten, int8 or uint8", **_INPUTS)
    output_doc = "(batch, num_hidden), int32; the values of the smallest and largest int32, (1,), float32"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        first = self.ranges_from()
        inputs, outputs = FullyConnected.infer_shape(self, shapes[:first])
        return self.with_ranges([*inputs, *shapes[first:]], outputs[0])

    def infer_back(self, shapes: list[ShapeOrNone], outputs: list[ShapeOrNone]) -> list[ShapeOrNone]:
        first = self.ranges_from()
        return [*FullyConnected.infer_back(self, shapes[:first], outputs), *shapes[first:]]

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        return FullyConnected.cost(self, inputs, outputs)

    def bound(self, xp: ArrayNamespace, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> None:
        return None

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, weight, *rest = inputs
        ends = rest if self.no_bias else rest[1:]
        data_size, weight_size = magnitude(*ends[:2]), magnitude(*ends[2:4])
        out = as_matrix(outputs[0], self.flatten)
        run.xp.copyto(out, multiply_int8(run, as_matrix(data, self.flatten), weight), casting="unsafe")
        if not self.no_bias:
            scale = (
                scale_of(data.dtype, data_size) * scale_of(INT8, weight_size) * magnitude(*ends[4:]) / np.float32(127.5)
            )
            out += (rest[0] * np.float32(scale)).astype(np.int32)
        size = product_magnitude(data_size, weight_size, data.dtype)
        put_range(outputs, -size, size)
