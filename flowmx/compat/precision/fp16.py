"""The lists of float16, under MXNet's names."""

from __future__ import annotations

from flowmx import amp

_DTYPE = "float16"

FP16_FUNCS = amp.list_lp16_ops(_DTYPE)
FP16_FP32_FUNCS = amp.list_lp16_fp32_ops(_DTYPE)
FP32_FUNCS = amp.list_fp32_ops(_DTYPE)
CONDITIONAL_FP32_FUNCS = amp.list_conditional_fp32_ops(_DTYPE)
WIDEST_TYPE_CASTS = amp.list_widest_type_cast(_DTYPE)
LOSS_OUTPUT_FUNCTIONS = amp.list_loss_output_functions(_DTYPE)
