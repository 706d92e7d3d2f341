"""``mxnet.contrib.amp.lists``: the operators by precision, under MXNet's names."""

from __future__ import annotations

from typing import NamedTuple

from flowmx import amp

__all__: list[str] = []


class _Lists(NamedTuple):
    lp16: list[str]
    lp16_fp32: list[str]
    fp32: list[str]
    conditional_fp32: list[tuple[str, str, list[str]]]
    widest: list[str]
    losses: list[str]


def _lists(target_dtype: object) -> _Lists:
    """Return the operator lists of a 16-bit type, ``"float16"`` or ``"bfloat16"``."""
    return _Lists(
        amp.list_lp16_ops(target_dtype), amp.list_lp16_fp32_ops(target_dtype), amp.list_fp32_ops(target_dtype),
        amp.list_conditional_fp32_ops(target_dtype), amp.list_widest_type_cast(target_dtype),
        amp.list_loss_output_functions(target_dtype),
    )  # fmt: skip
