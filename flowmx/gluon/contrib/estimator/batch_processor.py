"""The training step and the evaluation step of an estimator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowmx import autograd
from flowmx.devices import Context
from flowmx.gluon.utils import split_and_load

if TYPE_CHECKING:
    from flowmx.gluon.contrib.estimator.estimator import Estimator

__all__ = ["BatchProcessor"]

Parts = list[Any]


class BatchProcessor:
    """Computes batches of data and labels, split over the devices. Override its methods for other batches."""

    def _get_data_and_label(self, batch: object, ctx: Sequence[Context], batch_axis: int = 0) -> tuple[Parts, Parts]:
        data, label = (split_and_load(part, ctx, batch_axis) for part in _data_and_label(batch))
        return data, label

    def evaluate_batch(
        self, estimator: Estimator, val_batch: object, batch_axis: int = 0
    ) -> tuple[Parts, Parts, Parts, Parts]:
        """Predict a batch; return the data, labels, predictions and losses on each device."""
        data, label = self._get_data_and_label(val_batch, estimator.context, batch_axis)
        pred = [estimator.val_net(x) for x in data]
        loss = [estimator.val_loss(y_hat, y) for y_hat, y in zip(pred, label, strict=True)]
        return data, label, pred, loss

    def fit_batch(
        self, estimator: Estimator, train_batch: object, batch_axis: int = 0
    ) -> tuple[Parts, Parts, Parts, Parts]:
        """Compute a batch and its gradients; return the data, labels, predictions and losses on each device."""
        data, label = self._get_data_and_label(train_batch, estimator.context, batch_axis)
        with autograd.record():
            pred = [estimator.net(x) for x in data]
            loss = [estimator.loss(y_hat, y) for y_hat, y in zip(pred, label, strict=True)]
        autograd.backward(loss)
        return data, label, pred, loss


def _data_and_label(batch: Any) -> tuple[Any, Any]:
    """Return the data and the labels of a batch.

    Raises:
        ValueError: the batch is not a list or tuple, or has no labels.
    """
    is_pair = isinstance(batch, (list, tuple))
    if is_pair and len(batch) > 1 and batch[1] is not None:
        return batch[0], batch[1]
    if is_pair:
        kind = f"a {type(batch).__name__} of {len(batch)}, without labels"
    else:  # an array is not (data, label), although it can be indexed
        kind = f"an array of shape {batch.shape}" if hasattr(batch, "shape") else repr(batch)
    raise ValueError(
        f"Estimator: got a batch that is {kind}, expected a list or tuple of data and label, such as those of a "
        "DataLoader over ArrayDataset(data, label). For other batches, override the methods of a BatchProcessor: "
        "Estimator(..., batch_processor=...)"
    )
