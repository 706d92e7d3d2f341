"""The lists of float16, under MXNet's names."""

from __future__ import annotations

from flowmx.compat.precision import _lists

(
    FP16_FUNCS, FP16_FP32_FUNCS, FP32_FUNCS, CONDITIONAL_FP32_FUNCS, WIDEST_TYPE_CASTS, LOSS_OUTPUT_FUNCTIONS,
) = _lists("float16")  # fmt: skip
