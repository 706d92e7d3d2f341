"""Private helpers of ``mxnet.gluon.loss`` that packages import."""

from __future__ import annotations

from typing import Any

from flowmx import ndarray as nd
from flowmx.base import numeric_types
from flowmx.ops.registry.tensors import Functions, Tensor

__all__ = ["_apply_weighting", "_reshape_like"]


def _apply_weighting(F: Functions, loss: Any, weight: float | None = None, sample_weight: Any = None) -> Any:
    """Multiply a loss by a number and by sample weights.

    Args:
        F: ``mx.nd`` or ``mx.sym``.
        loss: an array or a symbol.
        weight: a number, or None.
        sample_weight: an array or a symbol that is broadcast to the loss, or None.

    Raises:
        AssertionError: the weight is not a number (MXNet's exception).
    """
    if sample_weight is not None:
        loss = F.broadcast_mul(loss, sample_weight)
    if weight is None:
        return loss
    if not isinstance(weight, numeric_types):
        raise AssertionError(f"weight is {weight!r}, expected a number")
    return loss * weight


def _reshape_like(F: Functions, x: Tensor, y: Any) -> Any:
    """Reshape an array or a symbol to the shape of another one."""
    return x.reshape(y.shape) if F is nd else F.reshape_like(x, y)
