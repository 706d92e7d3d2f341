"""A progress bar of an estimator."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from flowmx.gluon.contrib.estimator.events import BatchEnd, EpochBegin, EpochEnd, TrainBegin
from flowmx.gluon.contrib.estimator.utils import check_metrics
from flowmx.progress import Bar

if TYPE_CHECKING:
    from flowmx.gluon.contrib.estimator.estimator import Estimator

__all__ = ["ProgressBarHandler"]


class ProgressBarHandler(TrainBegin, EpochBegin, BatchEnd, EpochEnd):
    """Shows a progress bar for each epoch, with the metrics; see :class:`mx.progress.Bar`.

    Args:
        metrics: a metric or several (default: the estimator's training metrics).
        stream: the output stream (default: stderr).
        priority: determines the order of calls, lowest first.

    Example:
        >>> estimator.fit(train_data, epochs=3, event_handlers=[ProgressBarHandler()])
        epoch 1/3  [########            ] 40/100  52 batches/s  0:01 left  training accuracy 0.871  training loss 0.41
    """

    def __init__(self, metrics: object = None, stream: TextIO | None = None, priority: float = 1000) -> None:
        self.metrics = check_metrics(metrics)
        self.priority = priority
        self.current_epoch = 0
        self._stream = stream
        self._bar: Bar | None = None

    def train_begin(self, estimator: Estimator, *args: object, **kwargs: object) -> None:
        """Reset the number of the epoch."""
        self.current_epoch = 0

    def epoch_begin(self, estimator: Estimator, *args: object, **kwargs: object) -> None:
        """Start the bar of an epoch."""
        of = f"/{estimator.max_epoch}" if estimator.max_epoch else ""
        total = estimator.max_batch or estimator.epoch_length
        self._bar = Bar(total, f"epoch {self.current_epoch + 1}{of}", self._stream, "batches")

    def batch_end(self, estimator: Estimator, *args: object, **kwargs: object) -> None:
        """Advance the bar and show the metrics."""
        if self._bar is not None:
            for number, metric in enumerate(self.metrics or estimator.train_metrics):
                self._bar.show(**{f"metric {number}": metric})
            self._bar.step()

    def epoch_end(self, estimator: Estimator, *args: object, **kwargs: object) -> None:
        """Draw the final state of the bar."""
        self.current_epoch += 1
        if self._bar is not None:
            self._bar.close()
            self._bar = None
