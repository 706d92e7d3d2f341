"""``mxnet.contrib.tensorboard``: logs metrics for TensorBoard."""

from __future__ import annotations

import time
from typing import Any

from flowmx.profiler.tensorboard import EventFile, Scalar

__all__ = ["LogMetricsCallback"]


class LogMetricsCallback:
    """A callback of `Module.fit` that logs metrics for TensorBoard; ``mx.contrib.tracking`` has a richer one.

    Args:
        logging_dir: the folder of the event files.
        prefix: prefix of the metrics' names.
    """

    def __init__(self, logging_dir: str, prefix: str | None = None) -> None:
        self.prefix = prefix
        self.summary_writer = EventFile(logging_dir)

    def __call__(self, param: Any) -> None:
        if param.eval_metric is None:
            return
        prefix, now = "" if self.prefix is None else f"{self.prefix}-", time.time()
        values = param.eval_metric.get_name_value()
        self.summary_writer.write([Scalar(f"{prefix}{name}", param.epoch, float(value), now) for name, value in values])
