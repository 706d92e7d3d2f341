"""``mxnet.contrib.tensorboard``: metrics for TensorBoard."""

from __future__ import annotations

import importlib
import logging
from typing import Any

__all__ = ["LogMetricsCallback"]


class LogMetricsCallback:
    """A callback of `Module.fit` that writes metrics for TensorBoard, with the package mxboard.

    Args:
        logging_dir: the folder of the event files.
        prefix: comes before the metrics' names.
    """

    def __init__(self, logging_dir: str, prefix: str | None = None) -> None:
        self.prefix = prefix
        self.summary_writer: Any = None
        try:
            writer = importlib.import_module("mxboard").SummaryWriter
        except ImportError:
            logging.error("LogMetricsCallback: nothing is written without the package mxboard: pip install mxboard")
        else:
            self.summary_writer = writer(logging_dir)

    def __call__(self, param: Any) -> None:
        if param.eval_metric is None or self.summary_writer is None:
            return
        for name, value in param.eval_metric.get_name_value():
            shown = name if self.prefix is None else f"{self.prefix}-{name}"
            self.summary_writer.add_scalar(shown, value, global_step=param.epoch)
