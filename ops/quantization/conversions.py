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
    backwards,
    magnitude,
    number,
    operator,
    put_range,
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

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, low, high = inputs
        size = magnitude(low, high)
        round_into(run.xp, data * np.float32(np.iinfo(outputs[0].dtype).max / size), outputs[0])
        if self.out_type == "int8":
            put_range(outputs, -size, size)
        else:
            put_range(outputs, low, high)


@operator("_contrib_quantize_v2")
class QuantizeV2(Calibrated, calibrates="input"):
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

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, out, ends = inputs[0], outputs[0], self.calibrated
        if data.dtype != FLOAT32:
            run.xp.copyto(out, data)
            steps = STEPS[data.dtype]
            put_range(outputs, *(ends or (-steps if data.dtype == INT8 else 0, steps)))
            return
        low, high = ends or ((number(data.min()), number(data.max())) if data.size else (np.float32(0), np.float32(0)))
        size = np.maximum(abs(low), abs(high))
        round_into(run.xp, data * (STEPS[out.dtype] / size if size else np.float32(0)), out)
        put_range(outputs, *((-size, size) if out.dtype == INT8 else (low, high)))


@operator("_contrib_dequantize")
class Dequantize(Operator, no_gradient=True):
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

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, low, high = inputs
        scale = np.float32(magnitude(low, high) / STEPS[data.dtype])
        run.xp.multiply(data, scale, out=outputs[0], dtype=np.float32)


@operator("_contrib_requantize")
class Requantize(Calibrated, calibrates="input"):
    """Quantize int32 sums to int8 or uint8, by the range of the data or by one that is known before."""

    arguments = ("data", "min_range", "max_range")
    input_docs = described(
        data="any shape, int32", min_range="(1,), float32; the real number of the least int32",
        max_range="(1,), float32; the real number of the largest int32",
    )  # fmt: skip
    output_doc = "The shape of data, dtype `out_type`; the ends of its range, (1,), float32"

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return self.with_types(dtypes, [(INT32,)], self.made)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, low, high = inputs
        out, ends, whole = outputs[0], self.calibrated, magnitude(low, high)
        if ends is not None:
            size = np.maximum(abs(ends[0]), abs(ends[1]))
        else:
            most = max(-int(data.min()), int(data.max())) if data.size else 0
            size = np.float32(np.float32(most) * whole / _INT32_STEPS)
        unit = np.float32(whole / _INT32_STEPS)
        scale = np.float32(unit * np.float32(np.iinfo(out.dtype).max / size)) if size else np.float32(0)
        round_into(run.xp, run.xp.multiply(data, scale, dtype=np.float32), out)
        put_range(outputs, 0 if out.dtype == UINT8 else -size, size)


__all__ = ["Calibrated", "Dequantize", "Quantize", "QuantizeV2", "Requantize"]
