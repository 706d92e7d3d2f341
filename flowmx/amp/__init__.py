"""Mixed precision: layers compute in float16 or bfloat16, sensitive operators in float32 (also ``mx.contrib.amp``).

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

from flowmx.amp import lists
from flowmx.amp.convert import convert_bucketing_module, convert_hybrid_block, convert_model, convert_symbol
from flowmx.amp.overflow_checks import AmpWarning, Overflow, OverflowWarning, UnscaledLossError
from flowmx.amp.policy import Policy, parse_low_dtype
from flowmx.amp.scaler import LossScaler
from flowmx.amp.training import deinit, init, init_trainer, scale_loss, unscale
from flowmx.lazy import lazy_attributes
from flowmx.ops.registry.traits import Precision

__all__ = [
    "AmpWarning", "LossScaler", "Overflow", "OverflowWarning", "Policy", "UnscaledLossError",
    "convert_bucketing_module", "convert_hybrid_block", "convert_model", "convert_symbol", "deinit", "init",
    "init_trainer", "list_conditional_fp32_ops", "list_fp32_ops",
    "list_loss_output_functions", "list_lp16_fp32_ops", "list_lp16_ops", "list_lp16_use_fp32_params",
    "list_widest_type_cast", "scale_loss", "unscale",
]  # fmt: skip

__getattr__, __dir__ = lazy_attributes(__name__)


def list_lp16_ops(target_dtype: object) -> list[str]:
    """Return the operators that compute in 16 bits."""
    return _list(target_dtype, Precision.LOW)


def list_fp32_ops(target_dtype: object) -> list[str]:
    """Return the operators that stay in float32."""
    return _list(target_dtype, Precision.FLOAT32)


def list_lp16_fp32_ops(target_dtype: object) -> list[str]:
    """Return the operators that compute in the dtype of their inputs."""
    parse_low_dtype(target_dtype)
    return lists.lp16_fp32()


def list_conditional_fp32_ops(target_dtype: object) -> list[tuple[str, str, list[str]]]:
    """Return (operator, parameter, values): the operator stays in float32 for these values of the parameter."""
    parse_low_dtype(target_dtype)
    return lists.conditional_fp32()


def list_widest_type_cast(target_dtype: object) -> list[str]:
    """Return the operators that compute in the widest dtype of their inputs."""
    return _list(target_dtype, Precision.WIDEST)


def list_loss_output_functions(target_dtype: object) -> list[str]:
    """Return the output layers that compute their own gradient, which loss scaling does not affect."""
    parse_low_dtype(target_dtype)
    return list(lists.LOSS_OUTPUTS)


def list_lp16_use_fp32_params(target_dtype: object) -> dict[str, list[str]] | None:
    """Return the operators that can compute in 16 bits with float32 parameters, and those; None for float16."""
    names = ["", "gamma", "beta", "moving_mean", "moving_var"]
    if parse_low_dtype(target_dtype).kind == "f":
        return None
    return {"BatchNorm": names, "BatchNormWithReLU": list(names)}


def _list(target_dtype: object, precision: Precision) -> list[str]:
    parse_low_dtype(target_dtype)
    return lists.computing_in(precision)
