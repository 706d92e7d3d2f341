"""Losses: one number for each instance of a batch."""

from __future__ import annotations

from typing import Any

from flowmx.gluon.hybrid import HybridBlock

__all__ = [
    "L1Loss", "L2Loss", "Loss", "SigmoidBCELoss", "SigmoidBinaryCrossEntropyLoss", "SoftmaxCELoss",
    "SoftmaxCrossEntropyLoss",
]  # fmt: skip


class Loss(HybridBlock):
    """Base of the losses.

    Args:
        weight: multiplies the loss; None for no factor.
        batch_axis: that of the instances.
        **kwargs: ``prefix`` and ``params``.

    Raises:
        TypeError: the weight is no number.
    """

    def __init__(self, weight: float | None, batch_axis: int, **kwargs: Any) -> None:
        if weight is not None and not isinstance(weight, (int, float)):
            raise TypeError(f"{type(self).__name__}: weight is {weight!r}, expected a number")
        super().__init__(**kwargs)
        self._weight, self._batch_axis = weight, batch_axis

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_axis={self._batch_axis}, w={self._weight})"

    def _mean(self, F: Any, loss: Any, sample_weight: Any, factor: float = 1.0) -> Any:
        """The mean of each instance, of the weighted loss."""
        if sample_weight is not None:
            loss = F.broadcast_mul(loss, sample_weight)
        if self._weight is not None:
            loss = loss * (self._weight * factor)
        return F.mean(loss, axis=self._batch_axis, exclude=True)


class L2Loss(Loss):
    """``weight / 2 * (label - pred)²``, the mean of each instance.

    Args:
        weight: the factor.
        batch_axis: that of the instances.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(self, weight: float | None = 1.0, batch_axis: int = 0, **kwargs: Any) -> None:
        super().__init__(1.0 if weight is None else weight, batch_axis, **kwargs)

    def hybrid_forward(self, F: Any, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        return self._mean(F, F.square(F.reshape_like(label, pred) - pred), sample_weight, 0.5)


class L1Loss(Loss):
    """``weight * |label - pred|``, the mean of each instance.

    Args:
        weight: the factor.
        batch_axis: that of the instances.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(self, weight: float | None = None, batch_axis: int = 0, **kwargs: Any) -> None:
        super().__init__(weight, batch_axis, **kwargs)

    def hybrid_forward(self, F: Any, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        return self._mean(F, F.abs(F.reshape_like(label, pred) - pred), sample_weight)


class SigmoidBinaryCrossEntropyLoss(Loss):
    """The cross-entropy of independent yes/no decisions, the mean of each instance.

    Args:
        from_sigmoid: the predictions are probabilities; otherwise a sigmoid makes them such.
        weight: a factor.
        batch_axis: that of the instances.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(
        self, from_sigmoid: bool = False, weight: float | None = None, batch_axis: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self._from_sigmoid = from_sigmoid

    def hybrid_forward(self, F: Any, pred: Any, label: Any, sample_weight: Any = None, pos_weight: Any = None) -> Any:
        label = F.reshape_like(label, pred)
        entropy = self._of_probabilities if self._from_sigmoid else self._of_logits
        return self._mean(F, entropy(F, pred, label, pos_weight), sample_weight)

    def _of_logits(self, F: Any, pred: Any, label: Any, pos_weight: Any) -> Any:
        tail = F.Activation(-F.abs(pred), act_type="softrelu")  # log(1 + exp(-|x|)) can not overflow
        if pos_weight is None:
            return F.relu(pred) - pred * label + tail
        factor = 1 + F.broadcast_mul(label, pos_weight - 1)
        return pred - pred * label + factor * (tail + F.relu(-pred))

    def _of_probabilities(self, F: Any, pred: Any, label: Any, pos_weight: Any) -> Any:
        yes = F.log(pred + 1e-12) * label
        if pos_weight is not None:
            yes = F.broadcast_mul(yes, pos_weight)
        return -(yes + F.log(1.0 - pred + 1e-12) * (1.0 - label))


class SoftmaxCrossEntropyLoss(Loss):
    """The cross-entropy of one class among several, the mean of each instance.

    Args:
        axis: that of the classes.
        sparse_label: labels are numbers of classes; otherwise probabilities of all classes.
        from_logits: the predictions are logarithms of probabilities; otherwise a log-softmax makes them such.
        weight: a factor.
        batch_axis: that of the instances.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(
        self, axis: int = -1, sparse_label: bool = True, from_logits: bool = False, weight: float | None = None,
        batch_axis: int = 0, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(weight, batch_axis, **kwargs)
        self._axis, self._sparse_label, self._from_logits = axis, sparse_label, from_logits

    def hybrid_forward(self, F: Any, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        if not self._from_logits:
            pred = F.log_softmax(pred, axis=self._axis)
        if self._sparse_label:
            loss = -F.pick(pred, label, axis=self._axis, keepdims=True)
        else:
            loss = -F.sum(pred * F.reshape_like(label, pred), axis=self._axis, keepdims=True)
        return self._mean(F, loss, sample_weight)


SigmoidBCELoss = SigmoidBinaryCrossEntropyLoss
SoftmaxCELoss = SoftmaxCrossEntropyLoss
