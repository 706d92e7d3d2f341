"""Training in mixed precision: turning it on, preparing trainers, scaling losses and unscaling gradients."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from flowmx import autograd
from flowmx.amp.overflow_checks import AmpWarning, Guard
from flowmx.amp.policy import Conditions, Policy
from flowmx.amp.scaler import LossScaler, log
from flowmx.gluon.trainer import Trainer
from flowmx.ndarray import NDArray, core
from flowmx.ops.registry.dtypes import FLOAT32, DTypeLike, as_dtype, is_floating, name_of
from flowmx.optimizer import Optimizer

_CAST_SUFFIXES = ("_weight", "_bias", "_parameters")
"""Suffixes of parameters that are cast with their layers; not those of normalization layers."""


def init(
    target_dtype: object = "float16", target_precision_ops: Sequence[str] | None = None,
    conditional_fp32_ops: Conditions | None = None, fp32_ops: Sequence[str] | None = None,
) -> None:  # fmt: skip
    """Turn mixed precision on: operators compute in 16 bits or in float32, as the lists define.

    It applies to arrays, hybridized blocks, and symbols that are bound later. Parameters stay float32; layers that
    compute in 16 bits cast them.

    Args:
        target_dtype: ``"float16"`` or ``"bfloat16"``.
        target_precision_ops: the operators that compute in it, in place of :func:`list_lp16_ops`.
        conditional_fp32_ops: (operator, parameter, values) triples for which the operator stays float32.
        fp32_ops: the operators that stay float32, in place of :func:`list_fp32_ops`.

    Raises:
        ValueError: the dtype is unsupported, an operator is on two lists, or a different dtype is active.
        AttributeError: an operator is unknown.
    """
    before = core.casting
    policy = Policy(target_dtype, target_precision_ops, fp32_ops, conditional_fp32_ops)
    if isinstance(before, Policy):
        if before.dtype != policy.dtype:
            raise ValueError(
                f"amp.init: mixed precision is on with {name_of(before.dtype)}: call amp.deinit() to change the dtype"
            )
        return
    core.use_casting(policy)
    log.info("Using AMP")


def deinit() -> None:
    """Turn mixed precision off. Blocks recompile at their next call; bound symbols do not change."""
    core.use_casting(None)


def _policy(caller: str) -> Policy:
    if not isinstance(core.casting, Policy):
        raise RuntimeError(f"{caller}: mixed precision is off: call amp.init() first")
    return core.casting


def init_trainer(optimizer_or_trainer: object, loss_scaler: LossScaler | None = None) -> None:
    """Make a trainer skip steps that overflow, and adapt its loss scale.

    In float16 the initial scale is 65536. In bfloat16, which has the range of float32, it is always 1.

    Args:
        optimizer_or_trainer: a ``gluon.Trainer``.
        loss_scaler: a custom loss scaler.

    Warns:
        AmpWarning: 16-bit weights are updated without a float32 copy, or only some weights were cast.

    Raises:
        RuntimeError: mixed precision is off.
        TypeError: the argument is not a trainer.
        ValueError: the trainer's kvstore updates the weights, so that no step can be skipped.
    """
    policy = _policy("amp.init_trainer")
    trainer = _trainer("amp.init_trainer", optimizer_or_trainer)
    if trainer._update_on_kvstore:
        raise ValueError(
            "amp.init_trainer: the trainer's kvstore updates the weights, so steps that overflow cannot be skipped: "
            "create the Trainer with update_on_kvstore=False"
        )
    if loss_scaler is None:
        loss_scaler = LossScaler() if policy.needs_scaling else LossScaler(1.0, max_scale=1.0, min_scale=1.0)
    check_weights(trainer)
    trainer.attach_loss_scaler(loss_scaler, Guard(trainer._params, loss_scaler))


def _trainer(caller: str, value: object) -> Trainer:
    if isinstance(value, Trainer):
        return value
    kind = "an Optimizer, which cannot skip a step" if isinstance(value, Optimizer) else repr(value)
    raise TypeError(f"{caller}: got {kind}, expected a gluon.Trainer")


def check_weights(trainer: Trainer) -> None:
    """Warn about weights that lose small updates, and about weights that were not cast while others were."""
    params_16bit = [param for param in trainer._params if _is_half(param.dtype)]
    if params_16bit and not trainer.optimizer.multi_precision:
        warnings.warn(
            f"amp: the parameters {_names(params_16bit)} are {name_of(as_dtype(params_16bit[0].dtype))}, and the "
            "optimizer updates them without a float32 copy, so that small updates are lost: create it with "
            "multi_precision=True, or keep the parameters in float32; amp.init() casts them for the layers",
            AmpWarning, stacklevel=3,
        )  # fmt: skip
    if not params_16bit:
        return
    uncast = [p for p in trainer._params if as_dtype(p.dtype) == FLOAT32 and str(p.name).endswith(_CAST_SUFFIXES)]
    if uncast:
        warnings.warn(
            f"amp: the parameters {_names(uncast)} were not cast and are float32, while others are "
            f"{name_of(as_dtype(params_16bit[0].dtype))}: cast the whole block (net.cast(...)) or no part of it",
            AmpWarning, stacklevel=3,
        )  # fmt: skip


def _is_half(dtype: DTypeLike) -> bool:
    kind = as_dtype(dtype)
    return kind.itemsize == 2 and is_floating(kind)


def _names(params: Sequence[Any]) -> str:
    return ", ".join(repr(param.name) for param in params[:5]) + (", ..." if len(params) > 5 else "")


Losses = TypeVar("Losses", bound="NDArray | Sequence[NDArray]")


@contextmanager
def scale_loss(loss: Losses, optimizer_or_trainer: Any) -> Iterator[Losses]:
    """Multiply a loss, or a list of losses, by the loss scale. Call ``backward`` on the result.

    The next update of the trainer divides the gradients by the scale.

    Args:
        loss: an array, or a list of arrays.
        optimizer_or_trainer: the trainer; :func:`init_trainer` is called for it if necessary.

    Raises:
        RuntimeError: mixed precision is off.
        TypeError: the argument is not a trainer.

    Example:
        >>> with autograd.record():
        ...     loss = loss_fn(net(data), label)
        ...     with amp.scale_loss(loss, trainer) as scaled_loss:
        ...         autograd.backward(scaled_loss)
        >>> trainer.step(batch_size)
    """
    trainer = _trainer("amp.scale_loss", optimizer_or_trainer)
    if trainer._amp_guard is None:
        init_trainer(trainer)
    scale = trainer._amp_loss_scaler.loss_scale
    trainer.divide_gradients_by(scale)
    losses: list[Any] = list(loss) if isinstance(loss, (list, tuple)) else [loss]
    scaled_losses = [_scale(item, scale) for item in losses]
    trainer._amp_guard.mark_scaled(scaled_losses)
    yield cast("Losses", scaled_losses if isinstance(loss, (list, tuple)) else scaled_losses[0])


def _scale(loss: NDArray, scale: float) -> NDArray:
    # The scale can exceed the range of float16.
    if loss.tape_entry is not None and not autograd.is_recording():
        with autograd.record(train_mode=autograd.is_training()):
            return loss.astype("float32", copy=False) * scale
    return loss.astype("float32", copy=False) * scale


def unscale(optimizer_or_trainer: object) -> None:
    """Divide the gradients by the loss scale now, for example to clip them before the update.

    Raises:
        TypeError: the argument is not a trainer.
        RuntimeError: the trainer was not prepared for mixed precision.
    """
    trainer = _trainer("amp.unscale", optimizer_or_trainer)
    if trainer._amp_guard is None:
        raise RuntimeError("amp.unscale: no loss was scaled for this trainer: call amp.init_trainer(trainer) first")
    with autograd.pause():
        for param in trainer._params:
            for grad in param.list_grad() if param.grad_req != "null" else ():
                grad *= trainer._scale
    trainer._scale = 1.0
