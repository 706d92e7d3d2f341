"""The estimator's standard handlers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
from flowmx.gluon.contrib.estimator.progress import ProgressBarHandler
from flowmx.gluon.contrib.estimator.schedules import AverageHandler, PlateauHandler
from flowmx.gluon.contrib.estimator.utils import check_metrics
from flowmx.metric import Loss
from flowmx.observability.flight import curves
from flowmx.observability.safety import step_counter

if TYPE_CHECKING:
    from flowmx.gluon.contrib.estimator.estimator import Estimator

__all__ = [
    "AverageHandler", "BatchBegin", "BatchEnd", "CheckpointHandler", "EarlyStoppingHandler", "EpochBegin", "EpochEnd",
    "EventHandler", "GradientUpdateHandler", "LoggingHandler", "MetricHandler", "PlateauHandler", "ProgressBarHandler",
    "StoppingHandler", "TrainBegin", "TrainEnd", "ValidationHandler",
]  # fmt: skip


class StoppingHandler(TrainBegin, BatchEnd, EpochEnd):
    """Ends training after the number of epochs or batches that is passed to ``fit``.

    Args:
        max_epoch: the number of epochs.
        max_batch: the number of batches.
    """

    def __init__(self, max_epoch: int | None = None, max_batch: int | None = None) -> None:
        self.max_epoch, self.max_batch = max_epoch, max_batch
        self.current_batch = self.current_epoch = 0
        self.stop_training = False

    def train_begin(self, estimator: Estimator, *args: object, **kwargs: object) -> None:
        """Reset the counters."""
        self.max_epoch, self.max_batch = estimator.max_epoch, estimator.max_batch
        self.current_batch = self.current_epoch = 0

    def batch_end(self, estimator: Estimator, *args: object, **kwargs: object) -> bool:
        """Count the batch; return True after the last one."""
        self.current_batch += 1
        self.stop_training |= self.current_batch == self.max_batch
        return self.stop_training

    def epoch_end(self, estimator: Estimator, *args: object, **kwargs: object) -> bool:
        """Count the epoch; return True after the last one."""
        self.current_epoch += 1
        self.stop_training |= self.current_epoch == self.max_epoch
        return self.stop_training


class MetricHandler(EpochBegin, BatchEnd):
    """Resets metrics at the beginning of an epoch, and updates them after each batch.

    Args:
        metrics: a metric or several.
        priority: determines the order of calls, lowest first.
    """

    def __init__(self, metrics: object, priority: float = -1000) -> None:
        self.metrics = check_metrics(metrics)
        self.priority = priority

    def epoch_begin(self, estimator: Estimator, *args: object, **kwargs: object) -> None:
        """Reset the metrics."""
        for metric in self.metrics:
            metric.reset()

    def batch_end(self, estimator: Estimator, *args: object, **kwargs: object) -> None:
        """Update the metrics with a batch: with its losses for loss metrics, with labels and predictions for others."""
        for metric in self.metrics:
            if isinstance(metric, Loss):
                metric.update(0, kwargs["loss"])
            else:
                metric.update(kwargs["label"], kwargs["pred"])
            if metric.name.startswith("training"):
                log_to_curves(metric)


def log_to_curves(metric: Any) -> None:
    """Add the current value of a metric to the curves of the dashboard."""
    for name, value in metric.get_name_value():
        curves.log(name, value, step_counter.step_counts()[0])


class ValidationHandler(TrainBegin, BatchEnd, EpochEnd):
    """Evaluates the model periodically.

    Args:
        val_data: the batches to evaluate on.
        eval_fn: called with ``val_data``, ``batch_axis`` and ``event_handlers``: ``estimator.evaluate``, or
            ``estimator.evaluate_async`` for ``fit_async``.
        epoch_period: the number of epochs between evaluations, or None.
        batch_period: the number of batches between evaluations, or None.
        priority: determines the order of calls, lowest first.
        event_handlers: the handlers of the evaluation.
    """

    def __init__(
        self, val_data: object, eval_fn: Callable[..., object], epoch_period: int | None = 1,
        batch_period: int | None = None, priority: float = -1000, event_handlers: object = None,
    ) -> None:  # fmt: skip
        self.val_data, self.eval_fn = val_data, eval_fn
        self.epoch_period, self.batch_period = epoch_period, batch_period
        self.current_batch = self.current_epoch = 0
        self.priority, self.event_handlers = priority, event_handlers

    def train_begin(self, estimator: Estimator, *args: object, **kwargs: object) -> None:
        """Reset the counters."""
        self.current_batch = self.current_epoch = 0

    def batch_end(self, estimator: Estimator, *args: object, **kwargs: object) -> Any:
        """Count the batch; evaluate after every ``batch_period`` batches."""
        self.current_batch += 1
        return self._evaluate(estimator, self.current_batch, self.batch_period)

    def epoch_end(self, estimator: Estimator, *args: object, **kwargs: object) -> Any:
        """Count the epoch; evaluate after every ``epoch_period`` epochs."""
        self.current_epoch += 1
        return self._evaluate(estimator, self.current_epoch, self.epoch_period)

    def _evaluate(self, estimator: Estimator, count: int, period: int | None) -> Any:
        if not period or count % period:
            return None
        return self.eval_fn(val_data=self.val_data, batch_axis=estimator.batch_axis, event_handlers=self.event_handlers)


class GradientUpdateHandler(BatchEnd):
    """Makes the trainer update the parameters after each batch, before other handlers run.

    Args:
        priority: determines the order of calls, lowest first.
    """

    def __init__(self, priority: float = -2000) -> None:
        self.priority = priority

    def batch_end(self, estimator: Estimator, *args: object, **kwargs: Any) -> Any:
        """Update the parameters, with gradients divided by the number of samples."""
        loss = kwargs["loss"]
        losses = loss if isinstance(loss, list) else [loss]
        size = sum(part.shape[0] for part in losses)
        if estimator.asynchronous and hasattr(estimator.trainer, "step_async"):
            return estimator.trainer.step_async(size)
        return estimator.trainer.step(size)
