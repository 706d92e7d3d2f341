"""The handlers that come with the estimator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowmx.gluon.contrib.estimator.checkpoint import CheckpointHandler
from flowmx.gluon.contrib.estimator.early_stopping import EarlyStoppingHandler
from flowmx.gluon.contrib.estimator.events import (
    BatchBegin,
    BatchEnd,
    EpochBegin,
    EpochEnd,
    EventHandler,
    TrainBegin,
    TrainEnd,
)
from flowmx.gluon.contrib.estimator.logs import LoggingHandler
from flowmx.gluon.contrib.estimator.utils import check_metrics
from flowmx.metric import Loss
from flowmx.observability.flight import curves
from flowmx.observability.safety import steps

__all__ = [
    "BatchBegin", "BatchEnd", "CheckpointHandler", "EarlyStoppingHandler", "EpochBegin", "EpochEnd", "EventHandler",
    "GradientUpdateHandler", "LoggingHandler", "MetricHandler", "StoppingHandler", "TrainBegin", "TrainEnd",
    "ValidationHandler",
]  # fmt: skip


class StoppingHandler(TrainBegin, BatchEnd, EpochEnd):
    """Ends the training after a number of epochs or batches, those that ``fit`` was called with.

    Args:
        max_epoch: the number of epochs.
        max_batch: the number of batches.
    """

    def __init__(self, max_epoch: int | None = None, max_batch: int | None = None) -> None:
        self.max_epoch, self.max_batch = max_epoch, max_batch
        self.current_batch = self.current_epoch = 0
        self.stop_training = False

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Begin to count."""
        self.max_epoch, self.max_batch = estimator.max_epoch, estimator.max_batch
        self.current_batch = self.current_epoch = 0

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> bool:
        """Count the batch; return True after the last one."""
        self.current_batch += 1
        self.stop_training |= self.current_batch == self.max_batch
        return self.stop_training

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> bool:
        """Count the epoch; return True after the last one."""
        self.current_epoch += 1
        self.stop_training |= self.current_epoch == self.max_epoch
        return self.stop_training


class MetricHandler(EpochBegin, BatchEnd):
    """Resets metrics at the beginning of an epoch, and counts each batch in.

    Args:
        metrics: a metric or several.
        priority: when it is called.
    """

    def __init__(self, metrics: Any, priority: float = -1000) -> None:
        self.metrics = check_metrics(metrics)
        self.priority = priority

    def epoch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Start the metrics over."""
        for metric in self.metrics:
            metric.reset()

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Count a batch in: its losses for metrics of losses, labels and predictions for others."""
        for metric in self.metrics:
            if isinstance(metric, Loss):
                metric.update(0, kwargs["loss"])
            else:
                metric.update(kwargs["label"], kwargs["pred"])
            if metric.name.startswith("training"):
                log_to_curves(metric)


def log_to_curves(metric: Any) -> None:
    """Add what a metric says now to the curves of the dashboard."""
    for name, value in metric.get_name_value():
        curves.log(name, value, steps.counted()[0])


class ValidationHandler(TrainBegin, BatchEnd, EpochEnd):
    """Evaluates now and then.

    Args:
        val_data: the batches to evaluate on.
        eval_fn: called with ``val_data``, ``batch_axis`` and ``event_handlers``: ``estimator.evaluate``, or
            ``estimator.evaluate_async`` for ``fit_async``.
        epoch_period: after how many epochs, or None.
        batch_period: after how many batches, or None.
        priority: when it is called.
        event_handlers: those of the evaluation.
    """

    def __init__(
        self, val_data: Any, eval_fn: Callable[..., Any], epoch_period: int | None = 1,
        batch_period: int | None = None, priority: float = -1000, event_handlers: Any = None,
    ) -> None:  # fmt: skip
        self.val_data, self.eval_fn = val_data, eval_fn
        self.epoch_period, self.batch_period = epoch_period, batch_period
        self.current_batch = self.current_epoch = 0
        self.priority, self.event_handlers = priority, event_handlers

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Begin to count."""
        self.current_batch = self.current_epoch = 0

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate, if it is time."""
        self.current_batch += 1
        return self._evaluate(estimator, self.current_batch, self.batch_period)

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate, if it is time."""
        self.current_epoch += 1
        return self._evaluate(estimator, self.current_epoch, self.epoch_period)

    def _evaluate(self, estimator: Any, count: int, period: int | None) -> Any:
        if not period or count % period:
            return None
        return self.eval_fn(val_data=self.val_data, batch_axis=estimator.batch_axis, event_handlers=self.event_handlers)


class GradientUpdateHandler(BatchEnd):
    """Has the trainer update the parameters after each batch, before other handlers.

    Args:
        priority: when it is called.
    """

    def __init__(self, priority: float = -2000) -> None:
        self.priority = priority

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> Any:
        """Update, by gradients divided by the number of instances."""
        loss = kwargs["loss"]
        losses = loss if isinstance(loss, list) else [loss]
        size = sum(each.shape[0] for each in losses)
        if estimator.asynchronous and hasattr(estimator.trainer, "step_async"):
            return estimator.trainer.step_async(size)
        return estimator.trainer.step(size)
