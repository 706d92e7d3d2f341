"""The lists of bfloat16, under MXNet's names."""

from __future__ import annotations

from flowmx import amp
from flowmx.compat.precision import _lists

(
    BF16_FUNCS, BF16_FP32_FUNCS, FP32_FUNCS, CONDITIONAL_FP32_FUNCS, WIDEST_TYPE_CASTS, LOSS_OUTPUT_FUNCTIONS,
) = _lists("bfloat16")  # fmt: skip
BF16_USE_FP32_PARAMS = amp.list_lp16_use_fp32_params("bfloat16")
