"""Training metrics for TensorBoard, MLflow and Weights & Biases (``mx.contrib.tracking``).

A tracker is given to ``Module.fit`` as three callbacks, or to a Gluon ``Estimator`` as an event handler::

    with mx.contrib.tracking.TensorBoard("logs") as tracker:
        mod.fit(
            train, eval_data=test, num_epoch=10, batch_end_callback=tracker.batch,
            epoch_end_callback=tracker.epoch, eval_end_callback=tracker.evaluated,
        )
        estimator.fit(train_data, val_data, epochs=10, event_handlers=[tracker])

Metrics are named ``train/accuracy`` and ``validation/accuracy``. Their step is the number of batches that the tracker
has seen. TensorBoard's files need no other package; ``pip install 'flowmx[tensorboard]'`` brings what shows them.
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
    """Base of the trackers: which values are written, and when. A subclass says where to: :meth:`write`.

    Args:
        every: write the training metrics after every so many batches; None: at the end of epochs alone.

    Attributes:
        step: how many batches it has seen.
        blocks: whether :meth:`write` may wait for a disk or a network: coroutines then call it in another thread.

    Raises:
        ValueError: ``every`` is below 1.
    """

    blocks = True
    priority = math.inf  # after the handlers that update and evaluate metrics

    def __init__(self, every: int | None = 1) -> None:
        if every is not None and every < 1:
            raise ValueError(f"{type(self).__name__}: every is {every}, expected a number of batches from 1, or None")
        self.every = every
        self.step = 0
        self._last: list[tuple[str, float]] = []

    def write(self, values: dict[str, float], step: int) -> None:
        """Write the values of a step."""
        raise NotImplementedError

    def close(self) -> None:
        """Finish writing."""

    def log(self, values: dict[str, float]) -> Awaitable[None] | None:
        """Write values of one's own at the step of now; where an event loop runs, await what this returns."""
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
        """A ``batch_end_callback``."""
        self.step += 1
        self._last = [] if param.eval_metric is None else param.eval_metric.get_global_name_value()
        return self._train() if self._is_due() else None

    def epoch(self, epoch: int, *_: Any) -> Awaitable[None] | None:
        """An ``epoch_end_callback``: the number of epochs done, and the metrics of the last batch."""
        return self._train(epoch=float(epoch + 1))

    def evaluated(self, param: Any) -> Awaitable[None] | None:
        """An ``eval_end_callback``."""
        return None if param.eval_metric is None else self.log(_named("validation", param.eval_metric.get_name_value()))

    # -- events of an Estimator ------------------------------------------------------------------------

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> Any:
        """Count the batch; write the training metrics, if it is time."""
        self.step += 1
        self._last = _read(estimator.train_metrics)
        return self._train() if self._is_due() else None

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> Any:
        """Write the metrics of training and evaluation."""
        found = _named("validation", _read(estimator.val_metrics))
        return self.log({**_named("train", _read(estimator.train_metrics)), **found})

    # -- its end ---------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _is_due(self) -> bool:
        return self.every is not None and self.step % self.every == 0

    def _train(self, **others: float) -> Awaitable[None] | None:
        return self.log({**_named("train", self._last), **others})


class TensorBoard(Tracker):
    """Writes an event file, as it goes, which ``tensorboard --logdir FOLDER`` shows.

    Args:
        folder: where to; one for each run, in the folder that TensorBoard is given.
        every: write the training metrics after every so many batches; None: at the end of epochs alone.

    Attributes:
        path: of the event file.
    """

    blocks = False  # some hundred bytes into the system's cache

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
    """Writes metrics of an MLflow run: of the active one (``mlflow.start_run()``), or of a new one that it begins.

    Where runs are kept is MLflow's own setting (``mlflow.set_tracking_uri``, ``mlflow.set_experiment``).

    Args:
        run_id: write into this run.
        every: write the training metrics after every so many batches; None: at the end of epochs alone.

    Attributes:
        run_id: of the run.

    Raises:
        ImportError: MLflow is not installed.
    """

    def __init__(self, run_id: str | None = None, every: int | None = 50) -> None:
        super().__init__(every)
        self._mlflow = _imported("mlflow", "mlflow")
        active = self._mlflow.active_run()
        self._owned = run_id is None and active is None
        if run_id is None:
            run_id = (active or self._mlflow.start_run()).info.run_id
        self.run_id: str = run_id
        self._client = self._mlflow.MlflowClient()

    def write(self, values: dict[str, float], step: int) -> None:
        """Log the values of a step, in one request."""
        metric, now = self._mlflow.entities.Metric, int(time.time() * 1000)
        self._client.log_batch(self.run_id, [metric(name, float(value), now, step) for name, value in values.items()])

    def close(self) -> None:
        """End the run, if it was begun here."""
        if self._owned:
            self._owned = False
            self._mlflow.end_run()


class WandB(Tracker):
    """Writes metrics of a Weights & Biases run: of the one that runs (``wandb.init()``), or of a new one.

    Args:
        every: write the training metrics after every so many batches; None: at the end of epochs alone.
        options: what ``wandb.init`` is given for a new run (``project="digits"``, ``mode="offline"``).

    Attributes:
        run: the run.

    Raises:
        ImportError: the package wandb is not installed.
        ValueError: options were given, and a run goes on already.
    """

    blocks = False  # the run has a process of its own

    def __init__(self, every: int | None = 1, **options: Any) -> None:
        super().__init__(every)
        wandb = _imported("wandb", "wandb")
        if wandb.run is not None and options:
            raise ValueError(f"WandB: a run goes on already, so {sorted(options)} can not be set: wandb.finish() first")
        self._owned = wandb.run is None
        self.run = wandb.init(**options) if wandb.run is None else wandb.run
        self._base = self.run.step  # steps of a run only grow

    def write(self, values: dict[str, float], step: int) -> None:
        """Log the values of a step."""
        self.run.log(values, step=self._base + step)

    def close(self) -> None:
        """Finish the run, if it was begun here."""
        if self._owned:
            self._owned = False
            self.run.finish()


def _imported(package: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(f"this needs the package {package} ({error}): pip install 'flowmx[{extra}]'") from error


def _read(metrics: Iterable[Any]) -> list[tuple[str, float]]:
    """Names and values of the metrics that have counted something."""
    return [pair for metric in metrics if getattr(metric, "num_inst", 1) for pair in metric.get_name_value()]


def _named(part: str, values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """``accuracy``, or an estimator's ``training accuracy``, as ``train/accuracy``."""
    prefixes = ("training ", "validation ")
    return {f"{part}/{_without(name, prefixes)}": float(value) for name, value in values}


def _without(name: str, prefixes: tuple[str, ...]) -> str:
    return next((name.removeprefix(prefix) for prefix in prefixes if name.startswith(prefix)), name)
