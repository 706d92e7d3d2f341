"""The lists of bfloat16, under MXNet's names."""

from __future__ import annotations

from flowmx import amp

_DTYPE = "bfloat16"

BF16_FUNCS = amp.list_lp16_ops(_DTYPE)
BF16_FP32_FUNCS = amp.list_lp16_fp32_ops(_DTYPE)
BF16_USE_FP32_PARAMS = amp.list_lp16_use_fp32_params(_DTYPE)
FP32_FUNCS = amp.list_fp32_ops(_DTYPE)
CONDITIONAL_FP32_FUNCS = amp.list_conditional_fp32_ops(_DTYPE)
WIDEST_TYPE_CASTS = amp.list_widest_type_cast(_DTYPE)
LOSS_OUTPUT_FUNCTIONS = amp.list_loss_output_functions(_DTYPE)
