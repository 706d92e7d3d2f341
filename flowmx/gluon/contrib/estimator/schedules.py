"""Handlers for schedules that follow a metric, and for averages of weights."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

from flowmx.gluon.averaging import ExponentialMovingAverage
from flowmx.gluon.contrib.estimator.events import BatchEnd, EpochEnd, TrainBegin
from flowmx.lr_scheduler import ReduceLROnPlateau
from flowmx.metric import CompositeEvalMetric, EvalMetric

if TYPE_CHECKING:
    from flowmx.gluon.contrib.estimator.estimator import Estimator

__all__ = ["AverageHandler", "PlateauHandler"]


class PlateauHandler(EpochEnd):
    """Passes a metric to a :class:`mx.lr_scheduler.ReduceLROnPlateau` after each epoch.

    Args:
        schedule: the schedule, which the trainer's optimizer has, too.
        monitor: a metric of the estimator.
        priority: determines the order of calls, lowest first; by default after the evaluation.

    Raises:
        ValueError: an argument has the wrong type.

    Example:
        >>> schedule = mx.lr_scheduler.ReduceLROnPlateau(patience=2, base_lr=0.1)
        >>> trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"lr_scheduler": schedule})
        >>> estimator = Estimator(net, loss, trainer=trainer)
        >>> handler = PlateauHandler(schedule, estimator.val_metrics[-1])
        >>> estimator.fit(train_data, val_data, epochs=30, event_handlers=[handler])
    """

    def __init__(self, schedule: ReduceLROnPlateau, monitor: object, priority: float = -500) -> None:
        if not isinstance(schedule, ReduceLROnPlateau):
            raise ValueError(f"PlateauHandler: schedule is {type(schedule).__name__}, expected a ReduceLROnPlateau")
        if not isinstance(monitor, EvalMetric) or isinstance(monitor, CompositeEvalMetric):
            raise ValueError(f"PlateauHandler: monitor is {monitor!r}, expected one metric of the estimator")
        self.schedule, self.monitor, self.priority = schedule, monitor, priority

    def epoch_end(self, estimator: Estimator, *args: object, **kwargs: object) -> bool:
        """Pass the metric to the schedule."""
        name, value = self.monitor.get()
        if math.isnan(value):
            warnings.warn(
                f"PlateauHandler: the metric {name!r} is never updated: is it one of the estimator's?", stacklevel=2
            )
        else:
            self.schedule.step(value)
        return False


class AverageHandler(TrainBegin, BatchEnd):
    """Updates an :class:`mx.gluon.ExponentialMovingAverage` after each update of the weights.

    Args:
        average: the average of the estimator's network.
        priority: determines the order of calls, lowest first; by default directly after the update.

    Raises:
        ValueError: the argument is something else.

    Example:
        >>> average = mx.gluon.ExponentialMovingAverage(net)
        >>> estimator.fit(train_data, epochs=3, event_handlers=[AverageHandler(average)])
        >>> with average.average_parameters():
        ...     estimator.evaluate(val_data)
    """

    def __init__(self, average: ExponentialMovingAverage, priority: float = -1500) -> None:
        if not isinstance(average, ExponentialMovingAverage):
            raise ValueError(
                f"AverageHandler: average is {type(average).__name__}, expected a gluon.ExponentialMovingAverage"
            )
        self.average, self.priority = average, priority
        self._updates = 0

    def train_begin(self, estimator: Estimator, *args: object, **kwargs: object) -> None:
        """Read the number of updates so far."""
        self._updates = estimator.trainer.optimizer.num_update

    def batch_end(self, estimator: Estimator, *args: object, **kwargs: object) -> bool:
        """Update the average, unless the trainer has only accumulated gradients."""
        updates = estimator.trainer.optimizer.num_update
        if updates != self._updates:
            self._updates = updates
            self.average.update()
        return False
