"""Losses of vectors that are to be near each other, or far from each other."""

from __future__ import annotations

from typing import Any

from flowmx.gluon.loss.base import Loss
from flowmx.gluon.loss.classification import KLDivLoss

__all__ = ["CosineEmbeddingLoss", "SDMLLoss", "TripletLoss"]


class TripletLoss(Loss):
    """``max(0, |pred - positive|² - |pred - negative|² + margin)`` of each instance.

    Schroff et al., FaceNet: A Unified Embedding for Face Recognition and Clustering, CVPR 2015.

    Args:
        margin: the distance by which the negative one is to be farther.
        weight: a factor.
        batch_axis: that of the instances.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(self, margin: float = 1, weight: float | None = None, batch_axis: int = 0, **kwargs: Any) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self._margin = margin

    def hybrid_forward(self, F: Any, pred: Any, positive: Any, negative: Any) -> Any:
        near, far = (F.square(F.reshape_like(other, pred) - pred) for other in (positive, negative))
        difference = F.sum(near - far, axis=self._batch_axis, exclude=True)
        return self._weighted(F, F.relu(difference + self._margin), None)


class CosineEmbeddingLoss(Loss):
    """``1 - cos`` of two vectors where the label is 1, ``max(0, cos - margin)`` where it is -1; shape (batch, 1).

    Args:
        weight: a factor.
        batch_axis: that of the instances.
        margin: up to which cosine vectors are far enough from each other.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(self, weight: float | None = None, batch_axis: int = 0, margin: float = 0, **kwargs: Any) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self._margin = margin

    def hybrid_forward(self, F: Any, input1: Any, input2: Any, label: Any, sample_weight: Any = None) -> Any:
        label = F.reshape(label, shape=(-1, 1))
        cosine = self._cosine(F, F.reshape_like(input1, input2), input2)
        near = (1 - cosine) * (label == 1)
        far = F.relu((label == -1) * (cosine - self._margin))
        return self._weighted(F, near + far, sample_weight)

    def _cosine(self, F: Any, x: Any, y: Any) -> Any:
        x_norm, y_norm, dot = (
            F.reshape(each, shape=(-1, 1)) for each in (F.norm(x, axis=-1), F.norm(y, axis=-1), F.sum(x * y, axis=-1))
        )
        product = F.maximum(x_norm * y_norm, 1e-12)
        return dot / (product + (product == 0))  # 1e-12 is 0 in float16


class SDMLLoss(Loss):
    """Smoothed deep metric learning: row i of one batch is to be nearer to row i of the other than to its other rows.

    Bonadiman et al., Large Scale Question Paraphrase Retrieval with Smoothed Deep Metric Learning, 2019.

    Args:
        smoothing_parameter: the probability that is spread over the other rows.
        weight: kept for MXNet's scripts, which ignores it too.
        batch_axis: kept likewise: the batch is the first axis.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(
        self, smoothing_parameter: float = 0.3, weight: float | None = 1.0, batch_axis: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self.kl_loss = KLDivLoss(from_logits=True)
        self.smoothing_parameter = smoothing_parameter

    def hybrid_forward(self, F: Any, x1: Any, x2: Any) -> Any:
        differences = F.broadcast_sub(F.expand_dims(x1, axis=1), F.expand_dims(x2, axis=0))
        distances = F.sum(F.square(differences), axis=2)
        return self.kl_loss(F.log_softmax(-distances, axis=1), self._labels(F, x1))

    def _labels(self, F: Any, rows: Any) -> Any:
        """Most of the probability for the same row, the rest for the others."""
        number = F.contrib.arange_like(rows, axis=0)
        same = F.broadcast_equal(F.expand_dims(number, axis=0), F.expand_dims(number, axis=1))
        others = F.sum(F.ones_like(number)) - 1
        return same * (1 - self.smoothing_parameter) + F.broadcast_div(
            (1 - same) * self.smoothing_parameter, F.reshape(others, shape=(1, 1))
        )
