"""Conversions between floating point, int32 sums and quantized values (int8 or uint8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from flowmx.ops.quantization.ranges import (
    INT8,
    INT32,
    STEPS,
    UINT8,
    Inferred,
    InferredTypes,
    Quantized,
    Range,
    backwards,
    largest,
    magnitude,
    number,
    operator,
    range_of,
    round_into,
)
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, describe, family, option

_BYTES = {"int8": INT8, "uint8": UINT8}
_NUMBERED = ("output0", "output1", "output2")
_INT32_STEPS = np.float32(2147483647)


@family
class Calibrated(Quantized):
    """Base of conversions with an optional calibrated range."""

    output_names: ClassVar[tuple[str, ...]] = _NUMBERED
    out_type: Literal["auto", "int8", "uint8"] = option(
        "int8", "The dtype of the output; auto: uint8 if min_calib_range is set and not negative, otherwise int8."
    )
    min_calib_range: float | None = option(None, "The lower end of the range (by default that of the data).")
    max_calib_range: float | None = option(None, "The upper end of the range.")

    def infer_back(self, shapes: list[ShapeOrNone], outputs: list[ShapeOrNone]) -> list[ShapeOrNone]:
        return backwards(shapes, outputs)

    @property
    def calibrated(self) -> tuple[np.float32, np.float32] | None:
        """The calibrated range, or None."""
        low, high = self.min_calib_range, self.max_calib_range
        return None if low is None or high is None else (np.float32(low), np.float32(high))

    @property
    def out_dtype(self) -> DType:
        """The dtype of the output."""
        if self.out_type == "auto":
            return UINT8 if self.calibrated is not None and self.calibrated[0] >= 0 else INT8
        return _BYTES[self.out_type]


@operator("_contrib_quantize")
class Quantize(Quantized):
    """Quantize floating-point data by a given range.

    The output is the data, times 127 (int8) or 255 (uint8) over the larger absolute end of the range, rounded and
    clipped to the type.
    """

    arguments = ("data", "min_range", "max_range")
    output_names: ClassVar[tuple[str, ...]] = _NUMBERED
    input_docs = describe(
        data="any shape, float32", min_range="(1,), float32; the lower end", max_range="(1,), float32; the upper end"
    )
    output_doc = "The shape of data, dtype `out_type`; the ends of its range, (1,), float32"
    out_type: Literal["int8", "uint8"] = option("uint8", "The dtype of the output.")

    def infer_back(self, shapes: list[ShapeOrNone], outputs: list[ShapeOrNone]) -> list[ShapeOrNone]:
        return backwards(shapes, outputs)

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return self.with_types(dtypes, [(FLOAT32,)], _BYTES[self.out_type])

    def known_range(self, dtypes: Sequence[DType], ranges: Sequence[Range | None]) -> Range | None:
        ends = ranges[0]
        return _symmetric(ends) if ends is not None and self.out_type == "int8" else ends

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, *ends = inputs
        round_into(run.xp, data * np.float32(np.iinfo(outputs[0].dtype).max / magnitude(*ends)), outputs[0])
        data_range = range_of(*ends)
        self.put_range(outputs, _symmetric(data_range) if outputs[0].dtype == INT8 else data_range)


@operator("_contrib_quantize_v2")
class QuantizeV2(Calibrated, calibrates="input", makes_channels_last=True):
    """Quantize floating-point data by its range or by a calibrated one.

    The output is the data, times 127.5 (int8) or 255.5 (uint8) over the larger absolute end of the range, rounded and
    clipped to the type. Data that is int8 or uint8 is unchanged.
    """

    input_docs = describe(data="any shape, float32, int8 or uint8")
    output_doc = "The shape of data, dtype `out_type`; the ends of its range, (1,), float32"

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        data = dtypes[0]
        output = data if data in (INT8, UINT8) else self.out_dtype
        return self.with_types(dtypes, [(FLOAT32, INT8, UINT8)], output)

    def known_range(self, dtypes: Sequence[DType], ranges: Sequence[Range | None]) -> Range | None:
        data, output = dtypes
        ends = self.calibrated
        if data == FLOAT32:
            return _symmetric(ends) if ends is not None and output == INT8 else ends
        steps = STEPS[data]
        return ends or (-steps if data == INT8 else np.float32(0), steps)

    def steps_of(self, data: Array, dtype: DType) -> tuple[np.float32, Range]:
        """Return the quantization steps per unit of the data, and the range of the result."""
        data_range = (number(data.min()), number(data.max())) if self.calibrated is None and data.size else None
        ends = self.calibrated or data_range or (np.float32(0), np.float32(0))
        size = largest(ends)
        return STEPS[dtype] / size if size else np.float32(0), _symmetric(ends) if dtype == INT8 else ends

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, out = inputs[0], outputs[0]
        ends = self.known_range((data.dtype, out.dtype), ())
        if data.dtype != FLOAT32:
            run.xp.copyto(out, data)
        else:
            steps, ends = self.steps_of(data, out.dtype)
            round_into(run.xp, data * steps, out)
        self.put_range(outputs, ends)


@operator("_contrib_dequantize")
class Dequantize(Operator, no_gradient=True, keeps_layout=True):
    """Dequantize: the data, times the larger absolute end of the range, over 127.5 (int8) or 255.5 (uint8)."""

    arguments = ("data", "min_range", "max_range")
    input_docs = describe(
        data="any shape, int8 or uint8", min_range="(1,), float32; the lower end",
        max_range="(1,), float32; the upper end",
    )  # fmt: skip
    output_doc = "The shape of data, float32"
    out_type: Literal["float32"] = option("float32", "The dtype of the output.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return [shapes[0], (1,), (1,)], [shapes[0]]

    def infer_back(self, shapes: list[ShapeOrNone], outputs: list[ShapeOrNone]) -> list[ShapeOrNone]:
        return backwards(shapes, outputs)

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return Quantized.with_types(self, dtypes, [(INT8, UINT8)], FLOAT32)

    def unit(self, dtype: DType, size: np.float32) -> np.float32:
        """Return the value of one quantization step, for a range of this magnitude."""
        return np.float32(size / STEPS[dtype])

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, low, high = inputs
        run.xp.multiply(data, self.unit(data.dtype, magnitude(low, high)), out=outputs[0], dtype=np.float32)


@operator("_contrib_requantize")
class Requantize(Calibrated, calibrates="input", keeps_layout=True):
    """Quantize int32 sums to int8 or uint8, by the range of the data or by a calibrated one."""

    arguments = ("data", "min_range", "max_range")
    input_docs = describe(
        data="any shape, int32", min_range="(1,), float32; the value of the smallest int32",
        max_range="(1,), float32; the value of the largest int32",
    )  # fmt: skip
    output_doc = "The shape of data, dtype `out_type`; the ends of its range, (1,), float32"

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return self.with_types(dtypes, [(INT32,)], self.out_dtype)

    def known_range(self, dtypes: Sequence[DType], ranges: Sequence[Range | None]) -> Range | None:
        return None if self.calibrated is None else _ends_of(largest(self.calibrated), self.out_dtype)

    def steps_of(self, data: Array, dtype: DType, sum_size: np.float32) -> tuple[np.float32, Range]:
        """Return the factor of the sums, for their magnitude ``sum_size``, and the range of the result."""
        if self.calibrated is not None:
            size = largest(self.calibrated)
        else:
            most = max(-int(data.min()), int(data.max())) if data.size else 0
            size = np.float32(np.float32(most) * sum_size / _INT32_STEPS)
        return self.factor(sum_size, size, dtype), _ends_of(size, dtype)

    def factor(self, sum_size: np.float32, size: np.float32, dtype: DType) -> np.float32:
        """Return the factor of the sums, for the magnitudes of their range and of the result's range."""
        unit = np.float32(sum_size / _INT32_STEPS)
        return np.float32(unit * np.float32(np.iinfo(dtype).max / size)) if size else np.float32(0)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, *ends = inputs
        scale, result_range = self.steps_of(data, outputs[0].dtype, magnitude(*ends))
        round_into(run.xp, run.xp.multiply(data, scale, dtype=np.float32), outputs[0])
        self.put_range(outputs, result_range)


def _symmetric(ends: Range) -> Range:
    size = largest(ends)
    return -size, size


def _ends_of(size: np.float32, dtype: DType) -> Range:
    return np.float32(0) if dtype == UINT8 else -size, size


__all__ = ["Calibrated", "Dequantize", "Quantize", "QuantizeV2", "Requantize"]
