"""Losses of predicted numbers."""

from __future__ import annotations

import math
from typing import Unpack

from flowmx.gluon.loss.base_loss import Loss
from flowmx.gluon.scope import BlockOptions
from flowmx.ops.registry.tensors import Functions, Tensor

__all__ = ["HuberLoss", "L1Loss", "L2Loss", "PoissonNLLLoss"]


class L2Loss(Loss):
    """``weight / 2 * (label - pred)²``, averaged over each sample.

    Args:
        weight: the factor.
        batch_axis: the axis of the samples.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(self, weight: float | None = 1.0, batch_axis: int = 0, **kwargs: Unpack[BlockOptions]) -> None:
        super().__init__(1.0 if weight is None else weight, batch_axis, **kwargs)

    def hybrid_forward(self, F: Functions, pred: Tensor, label: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        return self._mean(F, F.square(F.reshape_like(label, pred) - pred), sample_weight, 0.5)


class L1Loss(Loss):
    """``weight * |label - pred|``, averaged over each sample.

    Args:
        weight: the factor.
        batch_axis: the axis of the samples.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(self, weight: float | None = None, batch_axis: int = 0, **kwargs: Unpack[BlockOptions]) -> None:
        super().__init__(weight, batch_axis, **kwargs)

    def hybrid_forward(self, F: Functions, pred: Tensor, label: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        return self._mean(F, F.abs(F.reshape_like(label, pred) - pred), sample_weight)


class HuberLoss(Loss):
    """With ``d = |label - pred|``: ``d - rho / 2`` above rho, else ``d² / (2 * rho)``, averaged over each sample.

    Huber, Robust Estimation of a Location Parameter, 1964.

    Args:
        rho: the distance at which the loss changes from quadratic to linear.
        weight: a factor.
        batch_axis: the axis of the samples.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(
        self, rho: float = 1, weight: float | None = None, batch_axis: int = 0, **kwargs: Unpack[BlockOptions]
    ) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self._rho = rho

    def hybrid_forward(self, F: Functions, pred: Tensor, label: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        distance = F.abs(F.reshape_like(label, pred) - pred)
        square = 0.5 / self._rho * F.square(distance)
        loss = F.where(distance > self._rho, distance - 0.5 * self._rho, square)
        return self._mean(F, loss, sample_weight)


class PoissonNLLLoss(Loss):
    """The negative logarithm of the Poisson likelihood of counts; the mean of the whole batch, one number.

    Args:
        weight: a factor.
        from_logits: whether the predictions are logarithms of the rates, instead of rates.
        batch_axis: the axis of the samples.
        compute_full: add Stirling's approximation of the term without the prediction, for counts over 1.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(
        self, weight: float | None = None, from_logits: bool = True, batch_axis: int = 0, compute_full: bool = False,
        **kwargs: Unpack[BlockOptions],
    ) -> None:  # fmt: skip
        super().__init__(weight, batch_axis, **kwargs)
        self._from_logits, self._compute_full = from_logits, compute_full

    def hybrid_forward(
        self, F: Functions, pred: Tensor, target: Tensor, sample_weight: Tensor | None = None, epsilon: float = 1e-08
    ) -> Tensor:
        target = F.reshape_like(target, pred)
        if self._from_logits:
            loss = F.exp(pred) - target * pred
        else:
            loss = pred - target * F.log(pred + epsilon)
        if self._compute_full:
            large = F.maximum(target, 1.0)  # the logarithm of a count of 0 would be NaN, and NaN * 0 is NaN
            stirling = large * F.log(large) - large + 0.5 * F.log(2 * math.pi * large)
            loss = loss + stirling * (target > 1)
        return F.mean(self._apply_weights(F, loss, sample_weight))
