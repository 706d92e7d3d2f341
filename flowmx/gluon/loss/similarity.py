"""Losses that pull related vectors together and push unrelated ones apart."""

from __future__ import annotations

from typing import Any, Unpack, cast

from flowmx import ndarray as nd
from flowmx import symbol as sym
from flowmx.gluon.loss.base_loss import Loss
from flowmx.gluon.loss.classification import KLDivLoss
from flowmx.gluon.scope import BlockOptions
from flowmx.ops.registry.tensors import Functions, Tensor
from flowmx.overrides import is_replaced

__all__ = ["CosineEmbeddingLoss", "SDMLLoss", "TripletLoss"]


class TripletLoss(Loss):
    """``max(0, |pred - positive|² - |pred - negative|² + margin)`` of each sample.

    Schroff et al., FaceNet: A Unified Embedding for Face Recognition and Clustering, CVPR 2015.

    Args:
        margin: the difference of the two squared distances at which the loss becomes 0.
        weight: a factor.
        batch_axis: the axis of the samples.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(
        self, margin: float = 1, weight: float | None = None, batch_axis: int = 0, **kwargs: Unpack[BlockOptions]
    ) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self._margin = margin

    def hybrid_forward(self, F: Functions, pred: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        near, far = (F.square(F.reshape_like(other, pred) - pred) for other in (positive, negative))
        difference = F.sum(near - far, axis=self._batch_axis, exclude=True)
        return self._apply_weights(F, F.relu(difference + self._margin), None)


class CosineEmbeddingLoss(Loss):
    """``1 - cos`` of two vectors where the label is 1, ``max(0, cos - margin)`` where it is -1; shape (batch, 1).

    Args:
        weight: a factor.
        batch_axis: the axis of the samples.
        margin: cosine below which two vectors are far enough apart.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(
        self, weight: float | None = None, batch_axis: int = 0, margin: float = 0, **kwargs: Unpack[BlockOptions]
    ) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self._margin = margin

    def hybrid_forward(
        self, F: Functions, input1: Tensor, input2: Tensor, label: Tensor, sample_weight: Tensor | None = None
    ) -> Tensor:
        label = F.reshape(label, shape=(-1, 1))
        cosine = self._cosine_similarity(F, F.reshape_like(input1, input2), input2)
        near = (1 - cosine) * (label == 1)
        far = F.relu((label == -1) * (cosine - self._margin))
        return self._apply_weights(F, near + far, sample_weight)

    def _cosine_similarity(self, F: Functions, x: Tensor, y: Tensor, axis: int = -1) -> Tensor:
        x_norm, y_norm, dot = (
            F.reshape(number, shape=(-1, 1))
            for number in (F.norm(x, axis=axis), F.norm(y, axis=axis), F.sum(x * y, axis=axis))
        )
        product = F.maximum(x_norm * y_norm, 1e-12)
        return dot / (product + (product == 0))  # 1e-12 is 0 in float16


class SDMLLoss(Loss):
    """Smoothed deep metric learning: row i of one batch should be nearest to row i of the other batch.

    Bonadiman et al., Large Scale Question Paraphrase Retrieval with Smoothed Deep Metric Learning, 2019.

    Args:
        smoothing_parameter: the probability spread over the other rows.
        weight: ignored, as in MXNet.
        batch_axis: ignored, as in MXNet; the batch is the first axis.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(
        self,
        smoothing_parameter: float = 0.3,
        weight: float | None = 1.0,
        batch_axis: int = 0,
        **kwargs: Unpack[BlockOptions],
    ) -> None:
        super().__init__(weight, batch_axis, **kwargs)
        self.kl_loss = KLDivLoss(from_logits=True)
        self.smoothing_parameter = smoothing_parameter

    def hybrid_forward(self, F: Functions, x1: Tensor, x2: Tensor) -> Tensor:
        return self._loss(F, x1, x2)

    # As in MXNet, subclasses may override these three methods.

    def _loss(self, F: Functions, x1: Tensor, x2: Tensor) -> Tensor:
        if is_replaced(self, "_compute_labels", _compute_labels):  # an override takes the number of rows
            labels: Any = self._compute_labels(F, x1.shape[0])
            labels = labels.as_in_context(cast("Any", x1).context)
        else:
            labels = self._labels(F, F.contrib.arange_like(x1, axis=0))
        return self.kl_loss(F.log_softmax(-self._compute_distances(x1, x2), axis=1), labels)

    def _compute_distances(self, x1: object, x2: object) -> Any:
        """Return the squared distance of each row of one batch from each row of the other, shape (batch, batch)."""
        F = nd if isinstance(x1, nd.NDArray) else sym
        return F.sum(F.square(F.broadcast_sub(F.expand_dims(x1, axis=1), F.expand_dims(x2, axis=0))), axis=2)

    def _compute_labels(self, F: Functions, batch_size: int) -> Tensor:
        """Return the probabilities that the rows belong together, shape (batch, batch)."""
        return self._labels(F, F.arange(batch_size))

    def _labels(self, F: Functions, number: object) -> Tensor:
        """Return 1 - ``smoothing_parameter`` for the same row, and the rest spread evenly over the other rows."""
        same = F.broadcast_equal(F.expand_dims(number, axis=0), F.expand_dims(number, axis=1))
        others = F.sum(F.ones_like(number)) - 1
        return same * (1 - self.smoothing_parameter) + F.broadcast_div(
            (1 - same) * self.smoothing_parameter, F.reshape(others, shape=(1, 1))
        )


_compute_labels = SDMLLoss._compute_labels
