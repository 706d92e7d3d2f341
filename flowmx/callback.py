"""Callbacks for ``Module.fit`` (``mx.callback``): logging and checkpoints.

A callback may be a coroutine function, or return an awaitable: ``fit`` awaits it.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import math
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

from flowmx import model
from flowmx.keywords import ChecksKeywords
from flowmx.progress import Line, is_live

__all__ = [
    "LogValidationMetricsCallback", "ProgressBar", "Speedometer", "do_checkpoint", "log_train_metric",
    "module_checkpoint",
]  # fmt: skip


def do_checkpoint(prefix: str, period: int = 1) -> Callable[..., object]:
    """Return an ``epoch_end_callback`` that saves symbol and parameters by ``mx.model.save_checkpoint``.

    Args:
        prefix: the prefix of the files' names.
        period: the number of epochs between two checkpoints.
    """

    def callback(iter_no: int, sym: object, arg: object, aux: object) -> Any:
        if (iter_no + 1) % max(1, int(period)) == 0:
            return _run_in_thread(model.save_checkpoint, prefix, iter_no + 1, sym, arg, aux)
        return None

    return callback


def module_checkpoint(
    mod: Any, prefix: str, period: int = 1, save_optimizer_states: bool = False
) -> Callable[..., object]:
    """Return an ``epoch_end_callback`` that saves a module, and optionally its optimizer's states.

    Args:
        mod: the module.
        prefix: the prefix of the files' names.
        period: the number of epochs between two checkpoints.
        save_optimizer_states: save these too, so that training can resume exactly.
    """

    def callback(iter_no: int, sym: object = None, arg: object = None, aux: object = None) -> Any:
        if (iter_no + 1) % max(1, int(period)) == 0:
            return _run_in_thread(mod.save_checkpoint, prefix, iter_no + 1, save_optimizer_states)
        return None

    return callback


def _run_in_thread(function: Callable[..., object], *args: object) -> Any:
    """Call a function, in another thread if an event loop runs here; then the result is an awaitable."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return function(*args)
    return loop.run_in_executor(None, functools.partial(contextvars.copy_context().run, function, *args))


def log_train_metric(period: int, auto_reset: bool = False) -> Callable[[Any], None]:
    """Return a ``batch_end_callback`` that logs the training metric.

    Args:
        period: the number of batches between two lines.
        auto_reset: reset the metric's local mean after each line.
    """

    def callback(param: Any) -> None:
        if param.nbatch % period or param.eval_metric is None:
            return
        for name, value in param.eval_metric.get_name_value():
            logging.info("Iter[%d] Batch[%d] Train-%s=%f", param.epoch, param.nbatch, name, value)
        if auto_reset:
            param.eval_metric.reset_local()

    return callback


class Speedometer(ChecksKeywords):
    """A ``batch_end_callback`` that logs the training speed and the metric.

    Args:
        batch_size: the number of samples in a batch.
        frequent: the number of batches between two lines.
        auto_reset: reset the metric's local mean after each line, so that lines show recent means.
    """

    def __init__(self, batch_size: int, frequent: int = 50, auto_reset: bool = True) -> None:
        self.batch_size = batch_size
        self.frequent = frequent
        self.auto_reset = auto_reset
        self.last_count = 0
        self._since: float | None = None

    def __call__(self, param: Any) -> None:
        """Count a batch, and log a line every ``frequent`` batches."""
        count = param.nbatch
        if count < self.last_count:
            self._since = None  # another epoch
        self.last_count = count
        now = time.perf_counter()
        if self._since is None:
            self._since = now
        elif count % self.frequent == 0:
            elapsed = now - self._since
            speed = self.frequent * self.batch_size / elapsed if elapsed else math.inf
            self._log(param, count, speed)
            self._since = time.perf_counter()

    def _log(self, param: Any, count: int, speed: float) -> None:
        if param.eval_metric is None:
            logging.info("Iter[%d] Batch [%d]\tSpeed: %.2f samples/sec", param.epoch, count, speed)
            return
        values = param.eval_metric.get_name_value()
        first = 0
        if self.auto_reset:
            param.eval_metric.reset_local()
            first = count - self.frequent
        logging.info(
            "Epoch[%d] Batch [%d-%d]\tSpeed: %.2f samples/sec" + "\t%s=%f" * len(values),
            param.epoch, first, count, speed, *(part for pair in values for part in pair),
        )  # fmt: skip


class ProgressBar:
    """A ``batch_end_callback`` that shows the progress of the epoch.

    On a terminal and in a notebook the bar is redrawn in place (on standard error), and fits the line;
    a saved notebook has one line for each epoch. Otherwise the bar is logged.

    Args:
        total: the number of batches in an epoch.
        length: the number of characters in the bar.
    """

    def __init__(self, total: int, length: int = 80) -> None:
        self.total = total
        self.bar_len = length
        self._line: Line | None = None

    def __call__(self, param: Any) -> None:
        """Show the bar."""
        fraction = min(1.0, (param.nbatch + 1) / self.total) if self.total else 1.0  # batches count from 0
        live = is_live(sys.stderr)
        length = min(self.bar_len, shutil.get_terminal_size().columns - len("[] 100% ")) if live else self.bar_len
        done_width = round(length * fraction)
        line = f"[{'=' * done_width}{'-' * (length - done_width)}] {math.ceil(100 * fraction)}%"
        if live:
            self._line = self._line or Line(sys.stderr)
            self._line.draw(line)
            if fraction == 1:
                self._line.end()
                self._line = None
        else:
            logging.info(line)


class LogValidationMetricsCallback:
    """An ``eval_end_callback`` that logs the validation metric."""

    def __call__(self, param: Any) -> None:
        """Log the metric."""
        if param.eval_metric is not None:
            for name, value in param.eval_metric.get_name_value():
                logging.info("Epoch[%d] Validation-%s=%f", param.epoch, name, value)
