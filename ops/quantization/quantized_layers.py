"""Quantized layers without matrix products: pooling, concatenation, sums, activations, BatchNorm, embedding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from flowmx.errors import ParameterError
from flowmx.ops.arrays.indexing import Embedding
from flowmx.ops.arrays.joining import Concat
from flowmx.ops.arrays.reshape import Flatten
from flowmx.ops.nn.activation import Activation
from flowmx.ops.nn.common import expect_shape, non_defaults
from flowmx.ops.nn.normalization.batch_norm import BatchNorm
from flowmx.ops.nn.pooling import Pooling
from flowmx.ops.quantization.ranges import (
    INT8,
    INT32,
    STEPS,
    UINT8,
    Inferred,
    InferredTypes,
    Quantized,
    Range,
    largest,
    magnitude,
    operator,
    product_magnitude,
    put_range,
    range_of,
    round_into,
    scale_of,
)
from flowmx.ops.quantization.zero_point import BytesPooling
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.kernels import compute_operator
from flowmx.ops.registry.operators import Array, Run, ShapeOrNone, describe, family, option, same_shape
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors
from flowmx.ops.registry.traits import Passing, Precision

_RANGE_DOCS = describe(
    min_data="(1,), float32; the lower end of the data's range", max_data="(1,), float32; the upper end"
)
_INT32_STEPS = np.float32(2147483648)
_SAME_FORM = "The shape and dtype of data; the ends of its range, (1,), float32"


class _Unary(Quantized):
    """Base of operators on one quantized array that keep its range."""

    arguments: ClassVar[tuple[str, ...]] = ("data", "min_data", "max_data")
    input_docs = describe(data="any shape, int8 or uint8", **_RANGE_DOCS)
    output_doc = _SAME_FORM

    def inputs(self) -> tuple[str, ...]:
        return self.arguments

    def outputs(self) -> tuple[str, ...]:
        return self.output_names

    def json_output_count(self) -> int:
        return 3

    def infer_back(self, shapes: list[ShapeOrNone], outputs: list[ShapeOrNone]) -> list[ShapeOrNone]:
        return shapes

    def known_range(self, dtypes: Sequence[DType], ranges: Sequence[Range | None]) -> Range | None:
        return ranges[0]

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        raise NotImplementedError


@operator("_contrib_quantized_pooling")
class QuantizedPooling(_Unary, Pooling, input_named=False):
    """Reduce each window of the spatial axes to its maximum or mean; means are rounded."""

    input_docs = describe(data="(batch, channels, *size), int8 or uint8", **_RANGE_DOCS)
    output_doc = "(batch, channels, *out), the dtype of data; the ends of its range, (1,), float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pool_type not in ("max", "avg"):
            raise ParameterError(f"{self.name}: pool_type is {self.pool_type!r}, expected 'max' or 'avg'")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return self.with_ranges(shapes, Pooling.infer_shape(self, shapes[:1])[1][0])

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, low, high = inputs
        compute_operator(BytesPooling.create(**non_defaults(self)), run, [data], outputs[:1])
        put_range(outputs, low, high)


@operator("_contrib_quantized_act")
class QuantizedActivation(_Unary, Activation, in_place=(), float32_where=None):
    """ReLU of quantized data."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.act_type != "relu":
            raise ParameterError(f"{self.name}: act_type is {self.act_type!r}, expected 'relu'")

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, low, high = inputs
        run.xp.maximum(data, 0, out=outputs[0])
        put_range(outputs, low, high)


@operator("_contrib_quantized_flatten")
class QuantizedFlatten(_Unary):
    """Collapse all axes except the first."""

    output_doc = "(batch, rest), the dtype of data; the ends of its range, (1,), float32"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return self.with_ranges(shapes, _FLATTEN.infer_shape(shapes[:1])[1][0])

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        (data, low, high), out = inputs, outputs[0]
        if out.flags.c_contiguous:
            run.xp.copyto(out.reshape(data.shape), data)
        else:
            run.xp.copyto(out, data.reshape(out.shape))
        put_range(outputs, low, high)


_FLATTEN = Flatten.create()


@operator("_contrib_quantized_concat")
class QuantizedConcat(_Unary, Concat, passing=Passing.NEVER, precision=Precision.GIVEN):
    """Quantized arrays joined along an axis, with a common range; int8 if one of them is int8."""

    inputs_counted = (3, 0)
    onnx = ""
    input_docs = describe(data="arrays of int8 or uint8, whose shapes differ only along `dim`; then the ends of each "
                           "array's range, (1,), float32")  # fmt: skip
    output_doc = "The joined shape, int8 or uint8; the ends of its range, (1,), float32"

    def inputs(self) -> tuple[str, ...]:
        return tuple(f"arg{index}" for index in range(3 * self.num_args))

    def ranges_from(self) -> int:
        return self.num_args

    def infer_back(self, shapes: list[ShapeOrNone], outputs: list[ShapeOrNone]) -> list[ShapeOrNone]:
        count = self.num_args
        return [*Concat.infer_back(self, shapes[:count], outputs), *shapes[count:]]

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        joined, outputs = Concat.infer_shape(self, shapes[: self.num_args])
        return self.with_ranges([*joined, *shapes[self.num_args :]], outputs[0])

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        out_dtype = INT8 if INT8 in dtypes[: self.num_args] else UINT8
        return self.with_types(dtypes, [(INT8, UINT8)] * self.num_args, out_dtype)

    def known_range(self, dtypes: Sequence[DType], ranges: Sequence[Range | None]) -> Range | None:
        known_ranges = [ends for ends in ranges if ends is not None]
        return None if len(known_ranges) < len(ranges) else self.common_range(known_ranges)

    def common_range(self, ranges: Sequence[Range]) -> Range:
        """Return the smallest range that contains all of these and 0."""
        lows, highs = zip(*ranges, strict=True)
        return min(np.float32(0), *lows), max(np.float32(0), *highs)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        for part, array, factor in self.pieces(inputs, outputs):
            if factor is None:
                part[...] = array
            else:
                round_into(run.xp, run.xp.multiply(array, factor, dtype=np.float32), part)

    def pieces(
        self, inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> Iterator[tuple[Array, Array, np.float32 | None]]:
        """Iterate over the output part, the array and its factor (None: 1) for each array; then write the range."""
        out, count = outputs[0], self.num_args
        ranges = [range_of(*inputs[index : index + 2]) for index in range(count, 3 * count, 2)]
        total = self.common_range(ranges)
        scale, start = scale_of(out.dtype, largest(total)), 0
        for array, ends in zip(inputs, ranges, strict=False):
            end = start + array.shape[self.dim]
            part = out[(*(slice(None),) * (self.dim % out.ndim), slice(start, end))]
            array_scale = scale_of(array.dtype, largest(ends))
            is_unchanged = array_scale == scale and array.dtype == out.dtype
            yield part, array, None if is_unchanged else np.float32(scale / array_scale)
            start = end
        self.put_range(outputs, total)


@family
class _Binary(Quantized, requantizes=True, keeps_layout=True):
    """Base of the sum and the product of two quantized arrays."""

    arguments: ClassVar[tuple[str, ...]] = ("lhs", "rhs", "lhs_min", "lhs_max", "rhs_min", "rhs_max")
    input_docs = describe(
        lhs_min="(1,), float32; the lower end of lhs's range", lhs_max="(1,), float32; the upper end",
        rhs_min="(1,), float32; the lower end of rhs's range", rhs_max="(1,), float32; the upper end",
    )  # fmt: skip
    output_doc = "The shape of lhs, int32, or int8/uint8 with a calibrated range; the ends of its range, (1,), float32"
    min_calib_range: float | None = option(None, "The lower end of the output's range, if calibrated.")
    max_calib_range: float | None = option(None, "The upper end.")

    @property
    def calibrated(self) -> tuple[np.float32, np.float32] | None:
        """The calibrated range, or None."""
        low, high = self.min_calib_range, self.max_calib_range
        return None if low is None or high is None else (np.float32(low), np.float32(high))

    def ranges_from(self) -> int:
        return 2

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = same_shape(self, shapes[:2])
        return self.with_ranges([shape, shape, *shapes[2:]], shape)


@operator("_contrib_quantized_elemwise_add")
class QuantizedAdd(_Binary):
    """The sum of two quantized arrays of the same shape."""

    input_docs = describe(lhs="any shape, int8 or uint8", rhs="the shape of lhs, int8 or uint8", **_Binary.input_docs)

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        out_dtype = INT32
        if self.calibrated is not None:
            out_dtype = (dtypes[0] or INT8) if dtypes[0] == dtypes[1] else INT8
        return self.with_types(dtypes, [(INT8, UINT8)] * 2, out_dtype)

    def known_range(self, dtypes: Sequence[DType], ranges: Sequence[Range | None]) -> Range | None:
        if self.calibrated is not None or None in ranges:
            return self.calibrated
        size = np.float32(sum(largest(ends) for ends in ranges if ends is not None))
        return -size, size

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (lhs, rhs), out = run.xp, inputs[:2], outputs[0]
        wide = np.float64 if out.dtype == INT32 else np.float32
        factors, ends = self.factors(inputs, out.dtype)
        first, second = (
            xp.multiply(array, wide(factor), dtype=wide) for array, factor in zip((lhs, rhs), factors, strict=True)
        )
        if lhs.dtype != rhs.dtype and out.dtype == INT8:  # MXNet first converts the unsigned summand to int8
            unsigned = first if lhs.dtype == UINT8 else second
            xp.clip(xp.rint(unsigned, out=unsigned), -128, 127, out=unsigned)
        first += second
        round_into(xp, first, out)
        self.put_range(outputs, ends)

    def factors(self, inputs: Sequence[Array], out_dtype: DType) -> tuple[list[np.float32], Range]:
        """Return the factors of both summands and the range of the sum."""
        ranges = [range_of(*inputs[2:4]), range_of(*inputs[4:])]
        ends = self.known_range((), ranges)
        assert ends is not None
        size = largest(ends)
        scale = np.float32((_INT32_STEPS if out_dtype == INT32 else STEPS[out_dtype]) / size) if size else np.float32(0)
        sizes = map(largest, ranges)
        return [
            scale / scale_of(array.dtype, array_size) for array, array_size in zip(inputs[:2], sizes, strict=True)
        ], ends


@operator("_contrib_quantized_elemwise_mul")
class QuantizedMultiply(_Binary):
    """The product of two int8 arrays of the same shape."""

    input_docs = describe(lhs="any shape, int8", rhs="the shape of lhs, int8", **_Binary.input_docs)
    enable_float_output: bool = option(False, "Return floating-point numbers, without a range.")

    def outputs(self) -> tuple[str, ...]:
        return self.output_names[:1] if self.enable_float_output else self.output_names

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        out_dtype = FLOAT32 if self.enable_float_output else INT32 if self.calibrated is None else INT8
        return self.with_types(dtypes, [(INT8,)] * 2, out_dtype)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (lhs, rhs), out = run.xp, inputs[:2], outputs[0]
        sizes = magnitude(*inputs[2:4]), magnitude(*inputs[4:])
        real_scale = np.float32(sizes[0] / STEPS[INT8] * (sizes[1] / STEPS[INT8]))
        product = xp.multiply(lhs, rhs, dtype=np.int32)
        if self.enable_float_output:
            xp.multiply(product, real_scale, out=out, casting="unsafe")
            return
        ends = self.calibrated
        if ends is None:
            xp.copyto(out, product)
            size = product_magnitude(*sizes)
            put_range(outputs, -size, size)
            return
        values = xp.multiply(
            product, scale_of(INT8, np.maximum(abs(ends[0]), abs(ends[1]))) * real_scale, dtype=np.float32
        )
        xp.copyto(out, xp.clip(xp.trunc(values), -128, 127), casting="unsafe")
        put_range(outputs, *ends)


@operator("_contrib_quantized_batch_norm")
class QuantizedBatchNorm(
    _Unary, BatchNorm, in_place=(), keeps_layout=False, mode_matters=False, calibrates="output"
):  # fmt: skip
    """Normalize quantized channels by the moving statistics, into int8; the range must be calibrated.

    As in MXNet, ``fix_gamma`` has no effect, and the data is also divided by √(1 + eps).
    """

    arguments = ("data", "gamma", "beta", "moving_mean", "moving_var", "min_data", "max_data")
    auxiliary = ()
    input_docs = describe(
        data="any shape, int8 or uint8", gamma="(channels,), float32", beta="(channels,), float32",
        moving_mean="(channels,), float32; a state that is not updated",
        moving_var="(channels,), float32; a state that is not updated", **_RANGE_DOCS,
    )  # fmt: skip
    output_doc = "The shape of data, int8; the ends of its range, (1,), float32"

    def auxiliary_positions(self) -> tuple[int, ...]:
        return (3, 4)

    def visible_outputs(self) -> int:
        return 3

    def updated_inputs(self, train: bool) -> tuple[int, ...]:
        return ()

    def ranges_from(self) -> int:
        return 5

    def known_range(self, dtypes: Sequence[DType], ranges: Sequence[Range | None]) -> Range | None:
        low, high = self.min_calib_range, self.max_calib_range
        return None if low is None or high is None else (np.float32(low), np.float32(high))

    def infer_back(self, shapes: list[ShapeOrNone], outputs: list[ShapeOrNone]) -> list[ShapeOrNone]:
        return shapes

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data = shapes[0]
        channels = None if data is None else self.scale_shape(data)
        rest = [
            expect_shape(self, name, shape, channels, data)
            for name, shape in zip(self.arguments[1:5], shapes[1:5], strict=True)
        ]
        return self.with_ranges([data, *rest, *shapes[5:]], data)

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return self.with_types(dtypes, [(INT8, UINT8), *[(FLOAT32,)] * 4], INT8)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, data, out = run.xp, inputs[0], outputs[0]
        gamma, beta, mean, var = inputs[1:5]
        ends = self.known_range((), ())
        if ends is None:
            raise ParameterError(
                f"{self.name}: min_calib_range and max_calib_range are missing; quantize with calib_mode 'naive' or "
                "'entropy', or exclude the operator BatchNorm"
            )
        size = largest(ends)
        factor = gamma / xp.sqrt(var + np.float32(self.eps))
        shift = (beta - mean * factor) * STEPS[INT8] / size
        factor = factor * magnitude(*inputs[5:]) / size / np.sqrt(np.float32(1 + self.eps))
        frame = self.frame(data.shape)
        normalized = data.astype(np.float32).reshape(frame.shape)
        if data.dtype == UINT8:
            normalized *= STEPS[INT8] / STEPS[UINT8]
            xp.rint(normalized, out=normalized)
            xp.clip(normalized, 0, 127, out=normalized)
        normalized *= factor.reshape(frame.scale)
        normalized += shift.reshape(frame.scale)
        round_into(xp, normalized.reshape(data.shape), out)
        self.put_range(outputs, ends)


@operator("_contrib_quantized_embedding")
class QuantizedEmbedding(Quantized, Embedding):
    """Rows of an int8 weight (input_dim, output_dim) at the given indices."""

    arguments = ("data", "weight", "min_weight", "max_weight")
    input_docs = describe(
        data="any shape, int or float; row indices", weight="(input_dim, output_dim), int8",
        min_weight="(1,), float32; the lower end of the weight's range", max_weight="(1,), float32; the upper end",
    )  # fmt: skip
    output_doc = "(*data.shape, output_dim), int8; the ends of its range, (1,), float32"

    def ranges_from(self) -> int:
        return 2

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        inputs, outputs = Embedding.infer_shape(self, shapes[:2])
        return self.with_ranges([*inputs, *shapes[2:]], outputs[0])

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return self.with_types(dtypes, [(), (INT8,)], INT8)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        Embedding.forward(self, run, inputs[:2], outputs[:1])
        put_range(outputs, *inputs[2:])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        raise NotImplementedError
