"""Checkpoints of a training, of which it can go on."""

from __future__ import annotations

import math
import re
import warnings
from pathlib import Path
from typing import Any

from flowmx import engine
from flowmx.gluon.contrib.estimator.events import BatchEnd, EpochEnd, TrainBegin
from flowmx.gluon.contrib.estimator.utils import better
from flowmx.metric import EvalMetric

__all__ = ["CheckpointHandler"]


class CheckpointHandler(TrainBegin, BatchEnd, EpochEnd):
    """Saves the parameters and the trainer's states, and the graph of a hybridized model once.

    The files are ``<prefix>-symbol.json``, ``<prefix>-epoch<n>batch<n>.params`` and ``.states``, and for the best
    ``<prefix>-best.params`` and ``.states``.

    Args:
        model_dir: the folder, made where it does not exist.
        model_prefix: comes before the names of the files.
        monitor: a metric of the estimator, for ``save_best``.
        verbose: over 0: log what is saved.
        save_best: keep the best as well as the last ones.
        mode: the direction of improvement: ``"max"``, ``"min"`` or ``"auto"``; see :class:`EarlyStoppingHandler`.
        epoch_period: after how many epochs to save, or None.
        batch_period: after how many batches, or None.
        max_checkpoints: the number to keep, the best not counted.
        resume_from_checkpoint: go on from the last one in the folder. The epochs or batches of ``fit`` are those of the
            whole training then.

    Raises:
        ValueError: the best is to be saved without a metric, or the mode is unknown.
    """

    def __init__(
        self, model_dir: str | Path, model_prefix: str = "model", monitor: EvalMetric | None = None, verbose: int = 0,
        save_best: bool = False, mode: str = "auto", epoch_period: int | None = 1, batch_period: int | None = None,
        max_checkpoints: int = 5, resume_from_checkpoint: bool = False,
    ) -> None:  # fmt: skip
        self.monitor, self.verbose, self.save_best = monitor, verbose, save_best
        if save_best:
            if not isinstance(monitor, EvalMetric):
                raise ValueError(f"CheckpointHandler: monitor is {monitor!r}, expected a metric, to know the best by")
            self.monitor_op, self._worst = better(mode, monitor)
            self.best = self._worst
        Path(model_dir).mkdir(parents=True, exist_ok=True)
        self.model_dir, self.model_prefix = Path(model_dir), model_prefix
        self.epoch_period, self.batch_period, self.max_checkpoints = epoch_period, batch_period, max_checkpoints
        self.resume_from_checkpoint = resume_from_checkpoint
        self.current_batch = self.current_epoch = 0
        self.trained_epoch = self.trained_batch = -1
        self.saved_checkpoints: list[str] = []

    # -- events ----------------------------------------------------------------------------------------

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Begin to count, or go on from the last checkpoint.

        Raises:
            ValueError: it goes on by epochs and was saved by batches, or the other way round; or it is done already.
            OSError: a file is missing.
        """
        self.current_epoch = self.current_batch = 0
        if self.save_best:
            self.best = self._worst
        if self.resume_from_checkpoint:
            self._check_periods(estimator)
            self._resume(estimator)

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> Any:
        """Save, if it is time."""
        if self.current_batch == 0:
            self._save_symbol(estimator)
        due = self.batch_period and (self.current_batch + 1) % self.batch_period == 0
        label, number = self._label(estimator), self.current_batch + 1
        self.current_batch += 1
        return self._save(estimator, label, number) if due else None

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> Any:
        """Save, if it is time."""
        due = self.epoch_period and (self.current_epoch + 1) % self.epoch_period == 0
        label, number = self._label(estimator), self.current_batch
        self.current_epoch += 1
        return self._save(estimator, label, number) if due else None

    # -- saving ----------------------------------------------------------------------------------------

    def _label(self, estimator: Any) -> str:
        epoch, batch = self.current_epoch, self.current_batch
        if self.resume_from_checkpoint:
            epoch += self.trained_epoch + 1
            batch += self.trained_batch + (0 if estimator.max_epoch else 1)
        return f"{self.model_prefix}-epoch{epoch}batch{batch}"

    def _save(self, estimator: Any, label: str, batches: int) -> Any:
        """Save now, or in a coroutine once all is computed."""
        if estimator.asynchronous:
            return self._save_when_ready(estimator, label, batches)
        return self._save_now(estimator, label, batches)

    async def _save_when_ready(self, estimator: Any, label: str, batches: int) -> None:
        await engine.waitall_async()
        self._save_now(estimator, label, batches)

    def _save_now(self, estimator: Any, label: str, batches: int) -> None:
        self._write(estimator, label)
        self._forget_old(label)
        if self.verbose > 0:
            estimator.logger.info("Checkpoint after %d batches: %s", batches, self.model_dir / label)
        if self.save_best and self.monitor is not None:
            self._save_best(estimator, *self.monitor.get())

    def _save_best(self, estimator: Any, name: str, value: float) -> None:
        if math.isnan(value):
            warnings.warn(
                f"CheckpointHandler: nothing updates the metric {name!r}: is it the estimator's?", stacklevel=4
            )
        elif self.monitor_op(float(value), float(self.best)):
            self._write(estimator, f"{self.model_prefix}-best")
            if self.verbose > 0:
                estimator.logger.info("%s improved from %.5f to %.5f: saved as the best", name, self.best, value)
            self.best = value

    def _write(self, estimator: Any, label: str) -> None:
        estimator.net.save_parameters(self.model_dir / f"{label}.params")
        estimator.trainer.save_states(self.model_dir / f"{label}.states")

    def _forget_old(self, label: str) -> None:
        self.saved_checkpoints.append(label)
        while len(self.saved_checkpoints) > self.max_checkpoints:
            oldest = self.saved_checkpoints.pop(0)
            for ending in (".params", ".states"):
                (self.model_dir / f"{oldest}{ending}").unlink(missing_ok=True)

    def _save_symbol(self, estimator: Any) -> None:
        file = self.model_dir / f"{self.model_prefix}-symbol.json"
        graph = getattr(estimator.net, "_cached_graph", ())
        if graph:
            graph[1].save(str(file))
        else:
            estimator.logger.info("The graph was not saved at %s, since the model is not hybridized", file)

    # -- going on --------------------------------------------------------------------------------------

    def _check_periods(self, estimator: Any) -> None:
        wanted, other = self.epoch_period, self.batch_period
        if estimator.max_batch:
            wanted, other = other, wanted
        if not wanted or other:
            unit = "batches" if estimator.max_batch else "epochs"
            raise ValueError(
                f"CheckpointHandler: the training goes by {unit}, so it can only go on from checkpoints made by "
                f"{unit} alone: set the other period to None"
            )

    def _resume(self, estimator: Any) -> None:
        found = self._found()
        if not found:
            estimator.logger.info("There is no checkpoint in %s: training from scratch", self.model_dir)
            return
        self.trained_epoch, self.trained_batch = found[-1]
        self.saved_checkpoints = [f"{self.model_prefix}-epoch{epoch}batch{batch}" for epoch, batch in found]
        last = self.saved_checkpoints[-1]
        for unit, trained in (("max_epoch", self.trained_epoch), ("max_batch", self.trained_batch)):
            wanted = getattr(estimator, unit)
            if wanted and trained >= wanted - 1:
                raise ValueError(
                    f"CheckpointHandler: {last} in {self.model_dir} has {trained + 1} of {wanted} {unit[4:]}s already: "
                    "train for more, or pass resume_from_checkpoint=False"
                )
            if wanted:
                setattr(estimator, unit, wanted - trained - 1)
        estimator.net.load_parameters(self.model_dir / f"{last}.params", ctx=estimator.context)
        estimator.trainer.load_states(self.model_dir / f"{last}.states")
        estimator.logger.warning("Going on from the checkpoint %s", self.model_dir / last)

    def _found(self) -> list[tuple[int, int]]:
        """Epochs and batches of the checkpoints in the folder, in their order."""
        pattern = re.compile(re.escape(self.model_prefix) + r"-epoch(\d+)batch(\d+)\.params")
        matches = (pattern.fullmatch(path.name) for path in self.model_dir.iterdir())
        return sorted((int(match[1]), int(match[2])) for match in matches if match)
