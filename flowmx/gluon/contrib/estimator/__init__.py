"""Training of Gluon models without a hand-written loop: ``mx.gluon.contrib.estimator``."""

from flowmx.gluon.contrib.estimator import batch_processor, estimator, event_handler, utils
from flowmx.gluon.contrib.estimator.batch_processor import BatchProcessor
from flowmx.gluon.contrib.estimator.estimator import Estimator
from flowmx.gluon.contrib.estimator.event_handler import (
    AverageHandler,
    BatchBegin,
    BatchEnd,
    CheckpointHandler,
    EarlyStoppingHandler,
    EpochBegin,
    EpochEnd,
    GradientUpdateHandler,
    LoggingHandler,
    MetricHandler,
    PlateauHandler,
    ProgressBarHandler,
    StoppingHandler,
    TrainBegin,
    TrainEnd,
    ValidationHandler,
)

__all__ = [
    "AverageHandler", "BatchBegin", "BatchEnd", "BatchProcessor", "CheckpointHandler", "EarlyStoppingHandler",
    "EpochBegin", "EpochEnd", "Estimator", "GradientUpdateHandler", "LoggingHandler", "MetricHandler",
    "PlateauHandler", "ProgressBarHandler", "StoppingHandler", "TrainBegin", "TrainEnd", "ValidationHandler",
    "batch_processor", "estimator", "event_handler", "utils",
]  # fmt: skip
