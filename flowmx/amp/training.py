"""Training in mixed precision: switched on, trainers made ready, losses scaled, gradients scaled back."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flowmx import autograd
from flowmx.amp.guard import AmpWarning, Guard
from flowmx.amp.policy import Conditions, Policy
from flowmx.amp.scaler import LossScaler, log
from flowmx.gluon.trainer import Trainer
from flowmx.ndarray import NDArray, core
from flowmx.ops.registry.dtypes import FLOAT32, as_dtype, is_floating, name_of
from flowmx.optimizer import Optimizer

_CASTED = ("_weight", "_bias", "_parameters")
"""Names of parameters that compute in 16 bits where their layers do, and not those of normalizations."""


def init(
    target_dtype: Any = "float16", target_precision_ops: Sequence[str] | None = None,
    conditional_fp32_ops: Conditions | None = None, fp32_ops: Sequence[str] | None = None,
) -> None:  # fmt: skip
    """Switch mixed precision on: from here on operators compute in 16 bits or in float32, as the lists say.

    It holds for arrays, hybridized blocks, and symbols that are bound from here on. Parameters stay float32: layers
    that compute in 16 bits cast them.

    Args:
        target_dtype: ``"float16"`` or ``"bfloat16"``.
        target_precision_ops: the operators that compute in it, in place of :func:`list_lp16_ops`.
        conditional_fp32_ops: triples of operator, parameter and values for which it stays float32.
        fp32_ops: the operators that stay float32, in place of :func:`list_fp32_ops`.

    Raises:
        ValueError: another type, an operator on two lists, or it is on with another type.
        AttributeError: there is no such operator.
    """
    before = core.casting
    policy = Policy(target_dtype, target_precision_ops, fp32_ops, conditional_fp32_ops)
    if isinstance(before, Policy):
        if before.dtype != policy.dtype:
            raise ValueError(
                f"amp.init: mixed precision is on with {name_of(before.dtype)}: call amp.deinit() before another type"
            )
        return
    core.use_casting(policy)
    log.info("Using AMP")


def deinit() -> None:
    """Switch mixed precision off. Blocks compile anew at their next call; symbols that are bound stay as they are."""
    core.use_casting(None)


def _policy(caller: str) -> Policy:
    if not isinstance(core.casting, Policy):
        raise RuntimeError(f"{caller}: mixed precision is off: call amp.init() first")
    return core.casting


def init_trainer(optimizer_or_trainer: Any, loss_scaler: LossScaler | None = None) -> None:
    """Have a trainer skip steps that overflow, with a loss scale that follows.

    In float16 the scale begins with 65536. In bfloat16, whose range is that of float32, it is 1 and stays so.

    Args:
        optimizer_or_trainer: a ``gluon.Trainer``.
        loss_scaler: another loss scale.

    Warns:
        AmpWarning: weights are 16 bits and no float32 copy of them is updated, or some were left uncast.

    Raises:
        RuntimeError: mixed precision is off.
        TypeError: it is no trainer.
        ValueError: its kvstore updates the weights, where no step can be left out.
    """
    policy = _policy("amp.init_trainer")
    trainer = _trainer("amp.init_trainer", optimizer_or_trainer)
    if trainer._update_on_kvstore:
        raise ValueError(
            "amp.init_trainer: the trainer's kvstore updates the weights, so that no step that overflows can be left "
            "out: make the Trainer with update_on_kvstore=False"
        )
    if trainer._update_on_kvstore is None:
        trainer._update_on_kvstore = False
    if loss_scaler is None:
        loss_scaler = LossScaler() if policy.needs_scaling else LossScaler(1.0, max_scale=1.0, min_scale=1.0)
    if trainer._amp_guard is not None:
        trainer._amp_guard.disarm()
    check_weights(trainer)
    trainer._amp_loss_scaler = loss_scaler
    trainer._amp_original_scale = trainer._scale
    trainer._amp_guard = Guard(trainer._params, loss_scaler)


def _trainer(caller: str, given: Any) -> Trainer:
    if isinstance(given, Trainer):
        return given
    kind = "an Optimizer, which can not leave out a step" if isinstance(given, Optimizer) else repr(given)
    raise TypeError(f"{caller}: {kind} was given, expected a gluon.Trainer")


def check_weights(trainer: Trainer) -> None:
    """Warn of weights that lose small updates, and of weights that were left uncast where others were cast."""
    halves = [param for param in trainer._params if _is_half(param.dtype)]
    if halves and not trainer.optimizer.multi_precision:
        warnings.warn(
            f"amp: the parameters {_names(halves)} are {name_of(as_dtype(halves[0].dtype))}, and the optimizer updates "
            "them without a float32 copy, so that small updates are lost: make it with multi_precision=True, or leave "
            "the parameters float32, which amp.init() casts for the layers",
            AmpWarning, stacklevel=3,
        )  # fmt: skip
    if not halves:
        return
    left = [p for p in trainer._params if as_dtype(p.dtype) == FLOAT32 and str(p.name).endswith(_CASTED)]
    if left:
        warnings.warn(
            f"amp: the parameters {_names(left)} were left uncast, float32, where others are "
            f"{name_of(as_dtype(halves[0].dtype))}: cast the whole block (net.cast(...)), or nothing of it",
            AmpWarning, stacklevel=3,
        )  # fmt: skip


def _is_half(dtype: Any) -> bool:
    found = as_dtype(dtype)
    return found.itemsize == 2 and is_floating(found)


def _names(params: Sequence[Any]) -> str:
    return ", ".join(repr(param.name) for param in params[:5]) + (", ..." if len(params) > 5 else "")


@contextmanager
def scale_loss(loss: Any, optimizer_or_trainer: Any) -> Iterator[Any]:
    """Give the loss, or a list of losses, multiplied with the loss scale: call ``backward`` on what it gives.

    The trainer's next update divides by it again.

    Args:
        loss: an array, or a list of them.
        optimizer_or_trainer: the trainer; where it was not given to :func:`init_trainer`, it is now.

    Raises:
        RuntimeError: mixed precision is off.
        TypeError: it is no trainer.

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
    trainer._scale = trainer._amp_original_scale / scale
    losses = list(loss) if isinstance(loss, (list, tuple)) else [loss]
    scaled = [_scaled(each, scale) for each in losses]
    trainer._amp_guard.is_scaled(scaled)
    yield scaled if isinstance(loss, (list, tuple)) else scaled[0]


def _scaled(loss: NDArray, scale: float) -> NDArray:
    # In float32, since the scale alone is out of float16's range.
    if loss._entry is not None and not autograd.is_recording():
        with autograd.record(train_mode=autograd.is_training()):
            return loss.astype("float32", copy=False) * scale
    return loss.astype("float32", copy=False) * scale


def unscale(optimizer_or_trainer: Any) -> None:
    """Divide the gradients by the loss scale now, to look at them or clip them before the update.

    Raises:
        TypeError: it is no trainer.
        RuntimeError: it is not ready for mixed precision.
    """
    trainer = _trainer("amp.unscale", optimizer_or_trainer)
    if trainer._amp_guard is None:
        raise RuntimeError("amp.unscale: no loss was scaled for this trainer: call amp.init_trainer(trainer) first")
    with autograd.pause():
        for param in trainer._params:
            for grad in param.list_grad() if param.grad_req != "null" else ():
                grad *= trainer._scale
    trainer._scale = 1.0
