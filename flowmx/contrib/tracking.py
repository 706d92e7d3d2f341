"""Training metrics for TensorBoard, MLflow and Weights & Biases (``mx.contrib.tracking``).

Pass a tracker to ``Module.fit`` as three callbacks, or to a Gluon ``Estimator`` as an event handler::

    with mx.contrib.tracking.TensorBoard("logs") as tracker:
        mod.fit(
            train, eval_data=test, num_epoch=10, batch_end_callback=tracker.batch,
            epoch_end_callback=tracker.epoch, eval_end_callback=tracker.evaluation,
        )
        estimator.fit(train_data, val_data, epochs=10, event_handlers=[tracker])

Metrics are named ``train/accuracy`` and ``validation/accuracy``. Their step is the number of batches so far. Writing
TensorBoard's files needs no other package; ``pip install tensorboard`` installs the viewer.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import importlib
import math
import os
import time
from collections.abc import Awaitable, Iterable
from types import ModuleType, TracebackType
from typing import Any, Self

from flowmx.gluon.contrib.estimator.events import BatchEnd, EpochEnd
from flowmx.profiler.tensorboard import EventFile, Scalar

__all__ = ["MLflow", "TensorBoard", "Tracker", "WandB"]


class Tracker(BatchEnd, EpochEnd):
    """Base of the trackers. A subclass implements :meth:`write`.

    Args:
        every: the number of batches between writes of the training metrics; None writes only at the ends of epochs.

    Attributes:
        step: the number of batches so far.
        blocks: whether :meth:`write` may wait for a disk or a network; coroutines then call it in another thread.

    Raises:
        ValueError: ``every`` is below 1.
    """

    blocks = True
    priority = math.inf  # after the handlers that update and evaluate metrics

    def __init__(self, every: int | None = 1) -> None:
        if every is not None and every < 1:
            raise ValueError(f"{type(self).__name__}: every is {every}, expected at least 1 batch, or None")
        self.every = every
        self.step = 0
        self._last: list[tuple[str, float]] = []

    def write(self, values: dict[str, float], step: int) -> None:
        """Write the values of a step."""
        raise NotImplementedError

    def close(self) -> None:
        """Finish writing."""

    def log(self, values: dict[str, float]) -> Awaitable[None] | None:
        """Write custom values at the current step. In a coroutine, await the result."""
        if not values:
            return None
        try:
            loop = asyncio.get_running_loop() if self.blocks else None
        except RuntimeError:
            loop = None
        if loop is None:
            self.write(values, self.step)
            return None
        write = functools.partial(contextvars.copy_context().run, self.write, values, self.step)
        return loop.run_in_executor(None, write)

    # -- callbacks of Module.fit -----------------------------------------------------------------------

    def batch(self, param: Any) -> Awaitable[None] | None:
        """Count a batch, and write its metrics if due (a ``batch_end_callback``)."""
        self.step += 1
        self._last = [] if param.eval_metric is None else param.eval_metric.get_global_name_value()
        return self._train() if self._is_due() else None

    def epoch(self, epoch: int, *_: object) -> Awaitable[None] | None:
        """Write the number of completed epochs and the metrics of the last batch (an ``epoch_end_callback``)."""
        return self._train(epoch=float(epoch + 1))

    def evaluation(self, param: Any) -> Awaitable[None] | None:
        """Write the metrics of an evaluation (an ``eval_end_callback``)."""
        return (
            None
            if param.eval_metric is None
            else self.log(_add_prefix("validation", param.eval_metric.get_name_value()))
        )

    evaluated = evaluation
    """An alias of :meth:`evaluation`."""

    # -- events of an Estimator ------------------------------------------------------------------------

    def batch_end(self, estimator: Any, *args: object, **kwargs: object) -> Awaitable[None] | None:
        """Count a batch, and write the training metrics if due."""
        self.step += 1
        self._last = _read(estimator.train_metrics)
        return self._train() if self._is_due() else None

    def epoch_end(self, estimator: Any, *args: object, **kwargs: object) -> Awaitable[None] | None:
        """Write the metrics of training and evaluation."""
        validation = _add_prefix("validation", _read(estimator.val_metrics))
        return self.log({**_add_prefix("train", _read(estimator.train_metrics)), **validation})

    # -- closing ---------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _is_due(self) -> bool:
        return self.every is not None and self.step % self.every == 0

    def _train(self, **others: float) -> Awaitable[None] | None:
        return self.log({**_add_prefix("train", self._last), **others})


class TensorBoard(Tracker):
    """A tracker that writes an event file for ``tensorboard --logdir FOLDER``.

    Args:
        folder: the folder of the run, below the folder that TensorBoard displays.
        every: the number of batches between writes of the training metrics; None writes only at the ends of epochs.

    Attributes:
        path: the path of the event file.
    """

    blocks = False  # it writes a few hundred bytes into the system's cache

    def __init__(self, folder: str | os.PathLike[str], every: int | None = 1) -> None:
        super().__init__(every)
        self._file = EventFile(folder)
        self.path = self._file.path

    def write(self, values: dict[str, float], step: int) -> None:
        """Append the values of a step to the file."""
        now = time.time()
        self._file.write([Scalar(name, step, float(value), now) for name, value in values.items()])

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class MLflow(Tracker):
    """A tracker that writes to the active MLflow run (``mlflow.start_run()``), or starts one.

    MLflow's settings determine where runs are stored (``mlflow.set_tracking_uri``, ``mlflow.set_experiment``).

    Args:
        run_id: write into this run.
        every: the number of batches between writes of the training metrics; None writes only at the ends of epochs.

    Attributes:
        run_id: the ID of the run.

    Raises:
        ImportError: MLflow is not installed.
    """

    def __init__(self, run_id: str | None = None, every: int | None = 50) -> None:
        super().__init__(every)
        self._mlflow = _import("mlflow", "mlflow-skinny")
        active = self._mlflow.active_run()
        self._owns_run = run_id is None and active is None
        if run_id is None:
            run_id = (active or self._mlflow.start_run()).info.run_id
        self.run_id: str = run_id
        self._client = self._mlflow.MlflowClient()

    def write(self, values: dict[str, float], step: int) -> None:
        """Log the values of a step, in one request."""
        metric, now = self._mlflow.entities.Metric, int(time.time() * 1000)
        self._client.log_batch(self.run_id, [metric(name, float(value), now, step) for name, value in values.items()])

    def close(self) -> None:
        """End the run if this tracker started it."""
        if self._owns_run:
            self._owns_run = False
            self._mlflow.end_run()


class WandB(Tracker):
    """A tracker that writes to the active Weights & Biases run (``wandb.init()``), or starts one.

    Args:
        every: the number of batches between writes of the training metrics; None writes only at the ends of epochs.
        options: arguments of ``wandb.init`` for a new run (``project="digits"``, ``mode="offline"``).

    Attributes:
        run: the run.

    Raises:
        ImportError: the package wandb is not installed.
        ValueError: options were passed, but a run is active.
    """

    blocks = False  # the run has a separate process

    def __init__(self, every: int | None = 1, **options: object) -> None:
        super().__init__(every)
        wandb = _import("wandb", "wandb")
        if wandb.run is not None and options:
            raise ValueError(f"WandB: a run is active, so {sorted(options)} cannot be set: call wandb.finish() first")
        self._owns_run = wandb.run is None
        self.run = wandb.init(**options) if wandb.run is None else wandb.run
        self._base = self.run.step  # the steps of a run must increase

    def write(self, values: dict[str, float], step: int) -> None:
        """Log the values of a step."""
        self.run.log(values, step=self._base + step)

    def close(self) -> None:
        """Finish the run if this tracker started it."""
        if self._owns_run:
            self._owns_run = False
            self.run.finish()


def _import(package: str, distribution: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(f"this needs the package {package} ({error}): pip install {distribution}") from error


def _read(metrics: Iterable[Any]) -> list[tuple[str, float]]:
    """Return names and values of the metrics that have samples."""
    return [pair for metric in metrics if getattr(metric, "num_inst", 1) for pair in metric.get_name_value()]


def _add_prefix(part: str, values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Rename ``accuracy``, or an estimator's ``training accuracy``, to ``train/accuracy``."""
    prefixes = ("training ", "validation ")
    return {f"{part}/{_remove_prefix(name, prefixes)}": float(value) for name, value in values}


def _remove_prefix(name: str, prefixes: tuple[str, ...]) -> str:
    return next((name.removeprefix(prefix) for prefix in prefixes if name.startswith(prefix)), name)
