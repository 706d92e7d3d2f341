"""Losses of predicted classes and distributions."""

from __future__ import annotations

import math
from typing import Unpack

import numpy as np

from flowmx.gluon.loss.base_loss import Loss
from flowmx.gluon.scope import BlockOptions
from flowmx.ndarray import NDArray, core
from flowmx.ndarray.functions import op
from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.ops.registry.operators import Shape
from flowmx.ops.registry.tensors import Functions, Tensor
from flowmx.ops.sparse.shapes import SparseShape

__all__ = [
    "HingeLoss", "KLDivLoss", "LogisticLoss", "SigmoidBCELoss", "SigmoidBinaryCrossEntropyLoss", "SoftmaxCELoss",
    "SoftmaxCrossEntropyLoss", "SquaredHingeLoss",
]  # fmt: skip

_MAX_FUSED_SIZE = 1 << 16
"""Largest number of logits for which the cross-entropy is one operator; larger ones are split among all cores."""


class SigmoidBinaryCrossEntropyLoss(Loss):
    """The cross-entropy of independent yes/no decisions, averaged over each sample.

    Args:
        from_sigmoid: the predictions are probabilities; otherwise a sigmoid is applied to them.
        weight: a factor.
        batch_axis: the axis of the samples.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(
        self,
        from_sigmoid: bool = False,
        weight: float | None = None,
        batch_axis: int = 0,
        **kwargs: Unpack[BlockOptions],
    ) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self._from_sigmoid = from_sigmoid

    def hybrid_forward(
        self,
        F: Functions,
        pred: Tensor,
        label: Tensor,
        sample_weight: Tensor | None = None,
        pos_weight: Tensor | None = None,
    ) -> Tensor:
        label = F.reshape_like(label, pred)
        entropy = self._probabilities_entropy if self._from_sigmoid else self._logits_entropy
        return self._mean(F, entropy(F, pred, label, pos_weight), sample_weight)

    def _logits_entropy(self, F: Functions, pred: Tensor, label: Tensor, pos_weight: Tensor | None) -> Tensor:
        tail = F.Activation(-F.abs(pred), act_type="softrelu")  # log(1 + exp(-|x|)) cannot overflow
        if pos_weight is None:
            return F.relu(pred) - pred * label + tail
        factor = 1 + F.broadcast_mul(label, pos_weight - 1)
        return pred - pred * label + factor * (tail + F.relu(-pred))

    def _probabilities_entropy(self, F: Functions, pred: Tensor, label: Tensor, pos_weight: Tensor | None) -> Tensor:
        positive = F.log(pred + 1e-12) * label
        if pos_weight is not None:
            positive = F.broadcast_mul(positive, pos_weight)
        return -(positive + F.log(1.0 - pred + 1e-12) * (1.0 - label))


class SoftmaxCrossEntropyLoss(Loss):
    """The cross-entropy of one class among several, averaged over each sample.

    Args:
        axis: the axis of the classes.
        sparse_label: labels are class numbers; otherwise probabilities of all classes.
        from_logits: the predictions are logarithms of probabilities; otherwise a log-softmax is applied to them.
        weight: a factor.
        batch_axis: the axis of the samples.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(
        self, axis: int = -1, sparse_label: bool = True, from_logits: bool = False, weight: float | None = None,
        batch_axis: int = 0, **kwargs: Unpack[BlockOptions],
    ) -> None:  # fmt: skip
        super().__init__(weight, batch_axis, **kwargs)
        self._axis, self._sparse_label, self._from_logits = axis, sparse_label, from_logits

    def hybrid_forward(self, F: Functions, pred: Tensor, label: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        if sample_weight is None and isinstance(pred, NDArray) and self._can_fuse(pred, label):
            loss: Tensor = op("_class_cross_entropy", pred, label)
            return loss
        if not self._from_logits:
            pred = F.log_softmax(pred, axis=self._axis)
        if self._sparse_label:
            loss = -F.pick(pred, label, axis=self._axis, keepdims=True)
        else:
            loss = -F.sum(pred * F.reshape_like(label, pred), axis=self._axis, keepdims=True)
        return self._mean(F, loss, sample_weight)

    def _fits(self, first: Shape, second: Shape) -> bool:
        if not self._sparse_label or not first:
            return super()._fits(first, second)
        return math.prod(second) * first[self._axis] == math.prod(first)

    def _expected_shape(self, first: Shape) -> str:
        if not self._sparse_label or not first:
            return super()._expected_shape(first)
        axis = self._axis % len(first)
        rest = first[:axis] + first[axis + 1 :]
        return f"class numbers of shape {rest}, or with sparse_label=False probabilities of shape {first}"

    def _can_fuse(self, pred: NDArray, label: object) -> bool:
        """Return whether one operator can compute this loss: few logits, one class number for each row."""
        shape = pred.dims
        return (
            self._sparse_label
            and not self._from_logits
            and self._weight is None
            and self._batch_axis == 0
            and len(shape) == 2
            and self._axis in (-1, 1)
            and 0 < shape[0] * shape[1] <= _MAX_FUSED_SIZE
            and pred.element_type in (FLOAT32, np.dtype(np.float64))
            and core.casting is None
            and isinstance(label, NDArray)
            and label.dims in ((shape[0],), (shape[0], 1))
            and not isinstance(label.dims, SparseShape)
            and not isinstance(shape, SparseShape)
        )


class KLDivLoss(Loss):
    """The Kullback-Leibler divergence of predicted from target distributions, summed over each sample.

    Args:
        from_logits: the predictions are logarithms of probabilities; otherwise a log-softmax is applied to them.
        axis: the axis of the classes.
        weight: a factor.
        batch_axis: the axis of the samples.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(
        self,
        from_logits: bool = True,
        axis: int = -1,
        weight: float | None = None,
        batch_axis: int = 0,
        **kwargs: Unpack[BlockOptions],
    ) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self._from_logits, self._axis = from_logits, axis

    def hybrid_forward(self, F: Functions, pred: Tensor, label: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        if not self._from_logits:
            pred = F.log_softmax(pred, axis=self._axis)
        loss = self._apply_weights(F, label * (F.log(label + 1e-12) - pred), sample_weight)
        return F.sum(loss, axis=self._batch_axis, exclude=True)


class HingeLoss(Loss):
    """``max(0, margin - pred * label)`` for labels -1 and 1, averaged over each sample.

    Args:
        margin: the value of ``pred * label`` from which on the loss is 0.
        weight: a factor.
        batch_axis: the axis of the samples.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(
        self, margin: float = 1, weight: float | None = None, batch_axis: int = 0, **kwargs: Unpack[BlockOptions]
    ) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self._margin = margin

    def hybrid_forward(self, F: Functions, pred: Tensor, label: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        return self._mean(F, self._cost(F, F.relu(self._margin - pred * F.reshape_like(label, pred))), sample_weight)

    def _cost(self, F: Functions, shortfall: Tensor) -> Tensor:
        return shortfall


class SquaredHingeLoss(HingeLoss):
    """The square of :class:`HingeLoss` (before the mean); the arguments are the same."""

    def _cost(self, F: Functions, shortfall: Tensor) -> Tensor:
        return F.square(shortfall)


class LogisticLoss(Loss):
    """``log(1 + exp(-pred * label))``, averaged over each sample.

    Args:
        weight: a factor.
        batch_axis: the axis of the samples.
        label_format: ``"signed"`` for labels -1 and 1, ``"binary"`` for 0 and 1.
        **kwargs: ``prefix`` and ``params``.

    Raises:
        ValueError: the label format is unknown.
    """

    def __init__(
        self,
        weight: float | None = None,
        batch_axis: int = 0,
        label_format: str = "signed",
        **kwargs: Unpack[BlockOptions],
    ) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        if label_format not in ("signed", "binary"):
            raise ValueError(f"LogisticLoss: label_format is {label_format!r}, expected 'signed' or 'binary'")
        self._label_format = label_format

    def hybrid_forward(self, F: Functions, pred: Tensor, label: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        label = F.reshape_like(label, pred)
        if self._label_format == "signed":
            label = (label + 1.0) / 2.0
        tail = F.Activation(-F.abs(pred), act_type="softrelu")
        return self._mean(F, F.relu(pred) - pred * label + tail, sample_weight)


SigmoidBCELoss = SigmoidBinaryCrossEntropyLoss
SoftmaxCELoss = SoftmaxCrossEntropyLoss
