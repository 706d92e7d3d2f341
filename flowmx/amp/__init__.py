"""Mixed precision: layers compute in float16 or bfloat16, and what needs it stays float32 (``mx.contrib.amp`` too).

Example:
    >>> from flowmx import amp
    >>> amp.init("float16")
    >>> trainer = mx.gluon.Trainer(net.collect_params(), "sgd", update_on_kvstore=False)
    >>> amp.init_trainer(trainer)
    >>> with mx.autograd.record():
    ...     loss = loss_fn(net(data), label)
    ...     with amp.scale_loss(loss, trainer) as scaled_loss:
    ...         mx.autograd.backward(scaled_loss)
    >>> trainer.step(batch_size)
"""

from __future__ import annotations

from typing import Any

from flowmx.amp import lists
from flowmx.amp.convert import convert_bucketing_module, convert_hybrid_block, convert_model, convert_symbol
from flowmx.amp.guard import AmpWarning, Overflow, OverflowWarning, UnscaledLossError
from flowmx.amp.policy import Policy, checked_dtype
from flowmx.amp.scaler import LossScaler
from flowmx.amp.training import deinit, init, init_trainer, scale_loss, unscale
from flowmx.ops.registry.traits import Precision

__all__ = [
    "AmpWarning", "LossScaler", "Overflow", "OverflowWarning", "Policy", "UnscaledLossError",
    "convert_bucketing_module", "convert_hybrid_block", "convert_model", "convert_symbol", "deinit", "init",
    "init_trainer", "list_conditional_fp32_ops", "list_fp32_ops",
    "list_loss_output_functions", "list_lp16_fp32_ops", "list_lp16_ops", "list_lp16_use_fp32_params",
    "list_widest_type_cast", "scale_loss", "unscale",
]  # fmt: skip


def list_lp16_ops(target_dtype: Any) -> list[str]:
    """The operators that compute in 16 bits."""
    return _list(target_dtype, Precision.LOW)


def list_fp32_ops(target_dtype: Any) -> list[str]:
    """The operators that stay float32."""
    return _list(target_dtype, Precision.FLOAT32)


def list_lp16_fp32_ops(target_dtype: Any) -> list[str]:
    """The operators that compute in whatever they are given."""
    checked_dtype(target_dtype)
    return lists.lp16_fp32()


def list_conditional_fp32_ops(target_dtype: Any) -> list[tuple[str, str, list[str]]]:
    """Operator, parameter, and its values for which the operator stays float32."""
    checked_dtype(target_dtype)
    return lists.conditional_fp32()


def list_widest_type_cast(target_dtype: Any) -> list[str]:
    """The operators that compute in the widest type among their inputs."""
    return _list(target_dtype, Precision.WIDEST)


def list_loss_output_functions(target_dtype: Any) -> list[str]:
    """The output layers that make their gradient themselves, which no scaled loss changes."""
    checked_dtype(target_dtype)
    return list(lists.LOSS_OUTPUTS)


def list_lp16_use_fp32_params(target_dtype: Any) -> dict[str, list[str]] | None:
    """Operators that may compute in 16 bits with float32 parameters, by the names of these; None for float16."""
    names = ["", "gamma", "beta", "moving_mean", "moving_var"]
    if checked_dtype(target_dtype).kind == "f":
        return None
    return {"BatchNorm": names, "BatchNormWithReLU": list(names)}


def _list(target_dtype: Any, precision: Precision) -> list[str]:
    checked_dtype(target_dtype)
    return lists.computing_in(precision)
