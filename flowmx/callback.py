"""Callbacks for ``Module.fit`` (``mx.callback``): logging and checkpoints.

A callback may be a coroutine function, or return something awaitable: ``fit`` awaits it.
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

from flowmx.progress import Line, is_live

__all__ = [
    "LogValidationMetricsCallback", "ProgressBar", "Speedometer", "do_checkpoint", "log_train_metric",
    "module_checkpoint",
]  # fmt: skip


def do_checkpoint(prefix: str, period: int = 1) -> Callable[..., Any]:
    """An ``epoch_end_callback`` that saves symbol and parameters, as ``mx.model.save_checkpoint`` does.

    Args:
        prefix: of the files' names.
        period: save after every so many epochs.
    """
    from flowmx import model

    def callback(iter_no: int, sym: Any, arg: Any, aux: Any) -> Any:
        if (iter_no + 1) % max(1, int(period)) == 0:
            return _aside(model.save_checkpoint, prefix, iter_no + 1, sym, arg, aux)
        return None

    return callback


def module_checkpoint(
    mod: Any, prefix: str, period: int = 1, save_optimizer_states: bool = False
) -> Callable[..., Any]:
    """An ``epoch_end_callback`` that saves a module, and its optimizer's states where asked to.

    Args:
        mod: the module.
        prefix: of the files' names.
        period: save after every so many epochs.
        save_optimizer_states: save these too, so that training can go on exactly.
    """

    def callback(iter_no: int, sym: Any = None, arg: Any = None, aux: Any = None) -> Any:
        if (iter_no + 1) % max(1, int(period)) == 0:
            return _aside(mod.save_checkpoint, prefix, iter_no + 1, save_optimizer_states)
        return None

    return callback


def _aside(function: Callable[..., Any], *args: Any) -> Any:
    """Call it here; where an event loop runs, in another thread at once: await what this returns."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return function(*args)
    return loop.run_in_executor(None, functools.partial(contextvars.copy_context().run, function, *args))


def log_train_metric(period: int, auto_reset: bool = False) -> Callable[[Any], None]:
    """A ``batch_end_callback`` that logs the training metric.

    Args:
        period: log after every so many batches.
        auto_reset: start the metric's local mean over after each.
    """

    def callback(param: Any) -> None:
        if param.nbatch % period or param.eval_metric is None:
            return
        for name, value in param.eval_metric.get_name_value():
            logging.info("Iter[%d] Batch[%d] Train-%s=%f", param.epoch, param.nbatch, name, value)
        if auto_reset:
            param.eval_metric.reset_local()

    return callback


class Speedometer:
    """A ``batch_end_callback`` that logs the training speed and the metric.

    Args:
        batch_size: samples in a batch.
        frequent: log after every so many batches.
        auto_reset: start the metric's local mean over after each line, so that lines show recent means.
    """

    def __init__(self, batch_size: int, frequent: int = 50, auto_reset: bool = True) -> None:
        self.batch_size = batch_size
        self.frequent = frequent
        self.auto_reset = auto_reset
        self.last_count = 0
        self._since: float | None = None

    def __call__(self, param: Any) -> None:
        """Count a batch, and log where it is time to."""
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
    """A ``batch_end_callback`` that shows how far the epoch is.

    On a terminal and in a notebook the bar is drawn in place (on the standard error stream), no longer than the line;
    a saved notebook has one line for each epoch. Elsewhere the bar is logged.

    Args:
        total: batches in an epoch.
        length: characters in the bar.
    """

    def __init__(self, total: int, length: int = 80) -> None:
        self.total = total
        self.bar_len = length
        self._line: Line | None = None

    def __call__(self, param: Any) -> None:
        """Show the bar."""
        done = min(1.0, (param.nbatch + 1) / self.total) if self.total else 1.0  # batches count from 0
        live = is_live(sys.stderr)
        length = min(self.bar_len, shutil.get_terminal_size().columns - len("[] 100% ")) if live else self.bar_len
        filled = round(length * done)
        line = f"[{'=' * filled}{'-' * (length - filled)}] {math.ceil(100 * done)}%"
        if live:
            self._line = self._line or Line(sys.stderr)
            self._line.draw(line)
            if done == 1:
                self._line.end()
                self._line = None
        else:
            logging.info(line)


class LogValidationMetricsCallback:
    """An ``eval_end_callback`` that logs the validation metric."""

    def __call__(self, param: Any) -> None:
        """Log it."""
        if param.eval_metric is not None:
            for name, value in param.eval_metric.get_name_value():
                logging.info("Epoch[%d] Validation-%s=%f", param.epoch, name, value)
