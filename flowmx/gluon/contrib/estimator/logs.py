"""Log lines of an estimator."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from flowmx.gluon.contrib.estimator.events import BatchBegin, BatchEnd, EpochBegin, EpochEnd, TrainBegin, TrainEnd
from flowmx.gluon.contrib.estimator.utils import check_metrics

if TYPE_CHECKING:
    from flowmx.gluon.contrib.estimator.estimator import Estimator

__all__ = ["LoggingHandler"]


class LoggingHandler(TrainBegin, TrainEnd, EpochBegin, EpochEnd, BatchBegin, BatchEnd):
    """Logs metrics and times, after each epoch or after a number of batches.

    Args:
        log_interval: ``"epoch"``, or the number of batches between log lines.
        metrics: a metric or several.
        priority: its place in the order of calls (default: after all others).

    Raises:
        ValueError: the interval is neither a number nor ``"epoch"``.
    """

    def __init__(self, log_interval: int | str = "epoch", metrics: object = None, priority: float = math.inf) -> None:
        if not isinstance(log_interval, int) and log_interval != "epoch":
            raise ValueError(f"LoggingHandler: log_interval is {log_interval!r}, expected an int or 'epoch'")
        self.metrics = check_metrics(metrics)
        self.log_interval, self.priority = log_interval, priority
        self._restart()

    def _restart(self) -> None:
        self.batch_index = self.current_epoch = self.processed_samples = 0
        self.log_interval_time = 0.0

    def _values(self) -> str:
        pairs = [pair for metric in self.metrics for pair in metric.get_name_value()]
        return ", ".join(f"{name}: {value:.4f}" for name, value in pairs)

    def train_begin(self, estimator: Estimator, *args: object, **kwargs: object) -> None:
        """Log the optimizer, the learning rate and the length of training."""
        self.train_start = time.perf_counter()
        trainer, log = estimator.trainer, estimator.logger.info
        name = type(trainer.optimizer).__name__
        log("Training begin: using optimizer %s with current learning rate %.4f ", name, trainer.learning_rate)
        epochs = estimator.max_epoch
        log("Train for %d %s.", epochs or estimator.max_batch, "epochs" if epochs else "batches")
        self._restart()

    def train_end(self, estimator: Estimator, *args: object, **kwargs: object) -> None:
        """Log the duration of training and the metrics."""
        seconds = time.perf_counter() - self.train_start
        text = f"Train finished using total {seconds:.0f}s with {self.current_epoch} epochs. {self._values()}"
        estimator.logger.info("%s", text)

    def batch_begin(self, estimator: Estimator, *args: object, **kwargs: object) -> None:
        """Record the time."""
        self.batch_start = time.perf_counter()

    def batch_end(self, estimator: Estimator, *args: object, **kwargs: Any) -> None:
        """Log the metrics after every ``log_interval`` batches."""
        if isinstance(self.log_interval, int):
            self.log_interval_time += time.perf_counter() - self.batch_start
            self.processed_samples += sum(part.shape[estimator.batch_axis] for part in kwargs["label"])
            if self.batch_index % self.log_interval == 0:
                self._log_batch(estimator)
        self.batch_index += 1

    def _log_batch(self, estimator: Estimator) -> None:
        text = f"[Epoch {self.current_epoch}][Batch {self.batch_index}][Samples {self.processed_samples}] "
        text += f"time/interval: {self.log_interval_time:.3f}s {self._values()}"
        estimator.logger.info("%s", text)
        self.log_interval_time = 0.0

    def epoch_begin(self, estimator: Estimator, *args: object, **kwargs: object) -> None:
        """Log the beginning of an epoch or an evaluation."""
        self.epoch_start = time.perf_counter()
        if any("training" in metric.name for metric in self.metrics):
            rate = estimator.trainer.learning_rate
            estimator.logger.info("[Epoch %d] Begin, current learning rate: %.4f", self.current_epoch, rate)
        else:
            estimator.logger.info("Validation Begin")

    def epoch_end(self, estimator: Estimator, *args: object, **kwargs: object) -> None:
        """Log the metrics of the epoch."""
        seconds = time.perf_counter() - self.epoch_start
        text = f"[Epoch {self.current_epoch}] Finished in {seconds:.3f}s, {self._values()}"
        estimator.logger.info("%s", text.removesuffix(", "))
        self.current_epoch += 1
        self.batch_index = 0
