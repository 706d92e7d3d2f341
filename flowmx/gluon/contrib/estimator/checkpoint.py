"""Checkpoints that training can resume from."""

from __future__ import annotations

import math
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowmx import engine
from flowmx.gluon.contrib.estimator.events import BatchEnd, EpochEnd, TrainBegin
from flowmx.gluon.contrib.estimator.utils import better
from flowmx.metric import EvalMetric

if TYPE_CHECKING:
    from flowmx.gluon.contrib.estimator.estimator import Estimator

__all__ = ["CheckpointHandler"]


class CheckpointHandler(TrainBegin, BatchEnd, EpochEnd):
    """Saves the parameters and the trainer's states periodically, and the graph of a hybridized model once.

    The files are ``<prefix>-symbol.json``, ``<prefix>-epoch<n>batch<n>.params`` and ``.states``, and for the best
    ``<prefix>-best.params`` and ``.states``.

    Args:
        model_dir: the folder, created if missing.
        model_prefix: the prefix of the file names.
        monitor: a metric of the estimator, for ``save_best``.
        verbose: above 0, log each checkpoint.
        save_best: keep the best checkpoint as well as the latest ones.
        mode: the direction of improvement: ``"max"``, ``"min"`` or ``"auto"``; see :class:`EarlyStoppingHandler`.
        epoch_period: the number of epochs between checkpoints, or None.
        batch_period: the number of batches between checkpoints, or None.
        max_checkpoints: the number of checkpoints to keep, not counting the best.
        resume_from_checkpoint: resume from the latest checkpoint in the folder. The epochs or batches of ``fit`` then
            include the ones before the checkpoint.

    Raises:
        ValueError: ``save_best`` is set without a metric, or the mode is unknown.
    """

    def __init__(
        self, model_dir: str | Path, model_prefix: str = "model", monitor: EvalMetric | None = None, verbose: int = 0,
        save_best: bool = False, mode: str = "auto", epoch_period: int | None = 1, batch_period: int | None = None,
        max_checkpoints: int = 5, resume_from_checkpoint: bool = False,
    ) -> None:  # fmt: skip
        self.monitor, self.verbose, self.save_best = monitor, verbose, save_best
        if save_best:
            if not isinstance(monitor, EvalMetric):
                raise ValueError(f"CheckpointHandler: monitor is {monitor!r}, expected a metric for save_best")
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

    def train_begin(self, estimator: Estimator, *args: object, **kwargs: object) -> None:
        """Reset the counters, or resume from the latest checkpoint.

        Raises:
            ValueError: training counts epochs but checkpoints count batches or vice versa; or training is complete.
            OSError: a file is missing.
        """
        self.current_epoch = self.current_batch = 0
        if self.save_best:
            self.best = self._worst
        if self.resume_from_checkpoint:
            self._check_periods(estimator)
            self._resume_from_checkpoint(estimator)

    def batch_end(self, estimator: Estimator, *args: object, **kwargs: object) -> Any:
        """Save a checkpoint after every ``batch_period`` batches, and the graph after the first batch."""
        if self.current_batch == 0:
            self._save_symbol(estimator)
        is_due = self.batch_period and (self.current_batch + 1) % self.batch_period == 0
        result = self._save_checkpoint(estimator) if is_due else None
        self.current_batch += 1
        return result

    def epoch_end(self, estimator: Estimator, *args: object, **kwargs: object) -> Any:
        """Save a checkpoint after every ``epoch_period`` epochs."""
        is_due = self.epoch_period and (self.current_epoch + 1) % self.epoch_period == 0
        result = self._save_checkpoint(estimator) if is_due else None
        self.current_epoch += 1
        return result

    # -- saving ----------------------------------------------------------------------------------------

    def _label(self, estimator: Estimator) -> str:
        epoch, batch = self.current_epoch, self.current_batch
        if self.resume_from_checkpoint:
            epoch += self.trained_epoch + 1
            batch += self.trained_batch + (0 if estimator.max_epoch else 1)
        return f"{self.model_prefix}-epoch{epoch}batch{batch}"

    def _save_checkpoint(self, estimator: Estimator) -> Any:
        """Save now; for ``fit_async``, return a coroutine that saves when all operations have completed."""
        label = self._label(estimator)
        if estimator.asynchronous:
            return self._save_when_ready(estimator, label)
        return self._save_now(estimator, label)

    async def _save_when_ready(self, estimator: Estimator, label: str) -> None:
        await engine.waitall_async()
        self._save_now(estimator, label)

    def _save_now(self, estimator: Estimator, label: str) -> None:
        self._save_params_and_trainer(estimator, label)
        self._remove_old(label)
        if self.verbose > 0:
            estimator.logger.info("Checkpoint: %s", self.model_dir / label)
        if self.save_best and self.monitor is not None:
            self._save_best(estimator, *self.monitor.get())

    def _save_best(self, estimator: Estimator, name: str, value: float) -> None:
        if math.isnan(value):
            warnings.warn(
                f"CheckpointHandler: the metric {name!r} is never updated: is it one of the estimator's?", stacklevel=4
            )
        elif self.monitor_op(float(value), float(self.best)):
            self._save_params_and_trainer(estimator, f"{self.model_prefix}-best")
            if self.verbose > 0:
                estimator.logger.info("%s improved from %.5f to %.5f: saved as the best", name, self.best, value)
            self.best = value

    def _save_params_and_trainer(self, estimator: Estimator, file_prefix: str) -> None:
        estimator.net.save_parameters(self.model_dir / f"{file_prefix}.params")
        estimator.trainer.save_states(self.model_dir / f"{file_prefix}.states")

    def _remove_old(self, label: str) -> None:
        self.saved_checkpoints.append(label)
        while len(self.saved_checkpoints) > self.max_checkpoints:
            oldest = self.saved_checkpoints.pop(0)
            for ending in (".params", ".states"):
                (self.model_dir / f"{oldest}{ending}").unlink(missing_ok=True)

    def _save_symbol(self, estimator: Estimator) -> None:
        file = self.model_dir / f"{self.model_prefix}-symbol.json"
        graph = getattr(estimator.net, "_cached_graph", ())
        if graph:
            graph[1].save(str(file))
        else:
            estimator.logger.info("Did not save the graph to %s, since the model is not hybridized", file)

    # -- resuming --------------------------------------------------------------------------------------

    def _check_periods(self, estimator: Estimator) -> None:
        period, other = self.epoch_period, self.batch_period
        if estimator.max_batch:
            period, other = other, period
        if not period or other:
            unit = "batches" if estimator.max_batch else "epochs"
            raise ValueError(
                f"CheckpointHandler: training counts {unit}, so it can only resume from checkpoints that count "
                f"{unit} only: set the other period to None"
            )

    def _resume_from_checkpoint(self, estimator: Estimator) -> None:
        counts = self._list_checkpoints()
        if not counts:
            estimator.logger.info("There is no checkpoint in %s: training from scratch", self.model_dir)
            return
        self.trained_epoch, self.trained_batch = counts[-1]
        self.saved_checkpoints = [f"{self.model_prefix}-epoch{epoch}batch{batch}" for epoch, batch in counts]
        last = self.saved_checkpoints[-1]
        for unit, trained in (("max_epoch", self.trained_epoch), ("max_batch", self.trained_batch)):
            limit = getattr(estimator, unit)
            if limit and trained >= limit - 1:
                raise ValueError(
                    f"CheckpointHandler: {last} in {self.model_dir} already has {trained + 1} of {limit} {unit[4:]}s: "
                    "train for more, or pass resume_from_checkpoint=False"
                )
            if limit:
                setattr(estimator, unit, limit - trained - 1)
        estimator.net.load_parameters(self.model_dir / f"{last}.params", ctx=estimator.context)
        estimator.trainer.load_states(self.model_dir / f"{last}.states")
        estimator.logger.warning("Resuming from the checkpoint %s", self.model_dir / last)

    def _list_checkpoints(self) -> list[tuple[int, int]]:
        """Return the sorted (epoch, batch) pairs of the checkpoints in the folder."""
        pattern = re.compile(re.escape(self.model_prefix) + r"-epoch(\d+)batch(\d+)\.params")
        matches = (pattern.fullmatch(path.name) for path in self.model_dir.iterdir())
        return sorted((int(match[1]), int(match[2])) for match in matches if match)
