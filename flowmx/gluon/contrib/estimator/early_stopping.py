"""Early stopping."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

from flowmx.gluon.contrib.estimator.events import EpochEnd, TrainBegin, TrainEnd
from flowmx.gluon.contrib.estimator.utils import better
from flowmx.metric import CompositeEvalMetric, EvalMetric

if TYPE_CHECKING:
    from flowmx.gluon.contrib.estimator.estimator import Estimator

__all__ = ["EarlyStoppingHandler"]


class EarlyStoppingHandler(TrainBegin, EpochEnd, TrainEnd):
    """Ends training if a metric has not improved for some epochs.

    Args:
        monitor: a metric of the estimator.
        min_delta: the smallest change that counts as an improvement.
        patience: the number of epochs without improvement after which training stops.
        mode: ``"max"``: higher is better; ``"min"``: lower is better; ``"auto"``: decided by the metric's name. (In
            MXNet 1.9, ``"auto"`` always means higher, contrary to its documentation.)
        baseline: the value that the metric must exceed first.

    Raises:
        ValueError: the monitor is not a single metric, or the mode is unknown.
    """

    def __init__(
        self, monitor: object, min_delta: float = 0, patience: int = 0, mode: str = "auto",
        baseline: float | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(monitor, EvalMetric) or isinstance(monitor, CompositeEvalMetric):
            raise ValueError(f"EarlyStoppingHandler: monitor is {monitor!r}, expected one metric of the estimator")
        self.monitor, self.baseline, self.patience = monitor, baseline, patience
        self.monitor_op, self._worst = better(mode, monitor)
        self.min_delta = math.copysign(min_delta, -self._worst)
        self._restart()

    def _restart(self) -> None:
        self.wait = self.stopped_epoch = self.current_epoch = 0
        self.stop_training = False
        self.best = self._worst if self.baseline is None else self.baseline

    def train_begin(self, estimator: Estimator, *args: object, **kwargs: object) -> None:
        """Reset the counters."""
        self._restart()

    def epoch_end(self, estimator: Estimator, *args: object, **kwargs: object) -> bool:
        """Compare the metric with its best value; return True once training should stop."""
        name, value = self.monitor.get()
        if math.isnan(value):
            warnings.warn(
                f"EarlyStoppingHandler: the metric {name!r} is never updated: is it one of the estimator's?",
                stacklevel=2,
            )
        elif self.monitor_op(float(value - self.min_delta), float(self.best)):
            self.best, self.wait = value, 0
        else:
            self.wait += 1
            self.stop_training = self.wait >= self.patience
            self.stopped_epoch = self.current_epoch if self.stop_training else 0
        self.current_epoch += 1
        return self.stop_training

    def train_end(self, estimator: Estimator, *args: object, **kwargs: object) -> None:
        """Log why training ended."""
        if self.stopped_epoch > 0:
            name = self.monitor.get()[0]
            estimator.logger.info("[Epoch %d] early stopping, since %s did not improve", self.stopped_epoch, name)
