"""Conversions between real numbers, int32 sums and quantized numbers."""

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
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, described, family, option

_BYTES = {"int8": INT8, "uint8": UINT8}
_NUMBERED = ("output0", "output1", "output2")
_INT32_STEPS = np.float32(2147483647)


@family
class Calibrated(Quantized):
    """Base of conversions whose range may be known before."""

    output_names: ClassVar[tuple[str, ...]] = _NUMBERED
    out_type: Literal["auto", "int8", "uint8"] = option(
        "int8", "The dtype of the output; auto: uint8 where min_calib_range is given and not negative, else int8."
    )
    min_calib_range: float | None = option(None, "The lower end of the range (by default that of the data).")
    max_calib_range: float | None = option(None, "The upper end of the range.")

    def infer_back(self, shapes: list[ShapeOrNone], outputs: list[ShapeOrNone]) -> list[ShapeOrNone]:
        return backwards(shapes, outputs)

    @property
    def calibrated(self) -> tuple[np.float32, np.float32] | None:
        """The range, where it is known before."""
        low, high = self.min_calib_range, self.max_calib_range
        return None if low is None or high is None else (np.float32(low), np.float32(high))

    @property
    def made(self) -> DType:
        """The dtype of the output."""
        if self.out_type == "auto":
            return UINT8 if self.calibrated is not None and self.calibrated[0] >= 0 else INT8
        return _BYTES[self.out_type]


@operator("_contrib_quantize")
class Quantize(Quantized):
    """Quantize real numbers by a given range.

    The output is the data, times 127 (int8) or 255 (uint8) over the larger absolute end of the range, rounded; what is
    outside of the type becomes its nearest end.
    """

    arguments = ("data", "min_range", "max_range")
    output_names: ClassVar[tuple[str, ...]] = _NUMBERED
    input_docs = described(
        data="any shape, float32", min_range="(1,), float32; the lower end", max_range="(1,), float32; the upper end"
    )
    output_doc = "The shape of data, dtype `out_type`; the ends of its range, (1,), float32"
    out_type: Literal["int8", "uint8"] = option("uint8", "The dtype of the output.")

    def infer_back(self, shapes: list[ShapeOrNone], outputs: list[ShapeOrNone]) -> list[ShapeOrNone]:
        return backwards(shapes, outputs)

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return self.with_types(dtypes, [(FLOAT32,)], _BYTES[self.out_type])

    def known_range(self, dtypes: Sequence[DType], ranges: Sequence[Range | None]) -> Range | None:
        given = ranges[0]
        return _symmetric(given) if given is not None and self.out_type == "int8" else given

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, *ends = inputs
        round_into(run.xp, data * np.float32(np.iinfo(outputs[0].dtype).max / magnitude(*ends)), outputs[0])
        given = range_of(*ends)
        self.put_range(outputs, _symmetric(given) if outputs[0].dtype == INT8 else given)


@operator("_contrib_quantize_v2")
class QuantizeV2(Calibrated, calibrates="input", makes_channels_last=True):
    """Quantize real numbers by the range of the data, or by one that is known before.

    The output is the data, times 127.5 (int8) or 255.5 (uint8) over the larger absolute end of the range, rounded; what
    is outside of the type becomes its nearest end. Data that is int8 or uint8 stays as it is.
    """

    input_docs = described(data="any shape, float32, int8 or uint8")
    output_doc = "The shape of data, dtype `out_type`; the ends of its range, (1,), float32"

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        given = dtypes[0]
        made = given if given in (INT8, UINT8) else self.made
        return self.with_types(dtypes, [(FLOAT32, INT8, UINT8)], made)

    def known_range(self, dtypes: Sequence[DType], ranges: Sequence[Range | None]) -> Range | None:
        given, made = dtypes
        ends = self.calibrated
        if given == FLOAT32:
            return _symmetric(ends) if ends is not None and made == INT8 else ends
        steps = STEPS[given]
        return ends or (-steps if given == INT8 else np.float32(0), steps)

    def steps_of(self, data: Array, made: DType) -> tuple[np.float32, Range]:
        """The steps for each unit of real data, and the range of the result."""
        found = (number(data.min()), number(data.max())) if self.calibrated is None and data.size else None
        ends = self.calibrated or found or (np.float32(0), np.float32(0))
        size = largest(ends)
        return STEPS[made] / size if size else np.float32(0), _symmetric(ends) if made == INT8 else ends

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
    """Real numbers of quantized ones: the data, times the larger absolute end of the range, over 127.5 or 255.5."""

    arguments = ("data", "min_range", "max_range")
    input_docs = described(
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
        return Quantized.with_types(self, dtypes, [(INT8, UINT8)], FLOAT32)  # type: ignore[arg-type]

    def unit(self, dtype: DType, size: np.float32) -> np.float32:
        """The real number of a step, for a range of a magnitude."""
        return np.float32(size / STEPS[dtype])

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, low, high = inputs
        run.xp.multiply(data, self.unit(data.dtype, magnitude(low, high)), out=outputs[0], dtype=np.float32)


@operator("_contrib_requantize")
class Requantize(Calibrated, calibrates="input", keeps_layout=True):
    """Quantize int32 sums to int8 or uint8, by the range of the data or by one that is known before."""

    arguments = ("data", "min_range", "max_range")
    input_docs = described(
        data="any shape, int32", min_range="(1,), float32; the real number of the least int32",
        max_range="(1,), float32; the real number of the largest int32",
    )  # fmt: skip
    output_doc = "The shape of data, dtype `out_type`; the ends of its range, (1,), float32"

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return self.with_types(dtypes, [(INT32,)], self.made)

    def known_range(self, dtypes: Sequence[DType], ranges: Sequence[Range | None]) -> Range | None:
        return None if self.calibrated is None else _ends_of(largest(self.calibrated), self.made)

    def steps_of(self, data: Array, made: DType, whole: np.float32) -> tuple[np.float32, Range]:
        """The steps for each unit of the sums, for a range of these of a magnitude, and the range of the result."""
        if self.calibrated is not None:
            size = largest(self.calibrated)
        else:
            most = max(-int(data.min()), int(data.max())) if data.size else 0
            size = np.float32(np.float32(most) * whole / _INT32_STEPS)
        return self.factor(whole, size, made), _ends_of(size, made)

    def factor(self, whole: np.float32, size: np.float32, made: DType) -> np.float32:
        """The steps for each unit of sums, for a range of these and one of the result, of these magnitudes."""
        unit = np.float32(whole / _INT32_STEPS)
        return np.float32(unit * np.float32(np.iinfo(made).max / size)) if size else np.float32(0)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, *ends = inputs
        scale, made = self.steps_of(data, outputs[0].dtype, magnitude(*ends))
        round_into(run.xp, run.xp.multiply(data, scale, dtype=np.float32), outputs[0])
        self.put_range(outputs, made)


def _symmetric(ends: Range) -> Range:
    size = largest(ends)
    return -size, size


def _ends_of(size: np.float32, dtype: DType) -> Range:
    return np.float32(0) if dtype == UINT8 else -size, size


__all__ = ["Calibrated", "Dequantize", "Quantize", "QuantizeV2", "Requantize"]
