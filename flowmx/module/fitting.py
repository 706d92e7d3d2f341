"""The training loop of ``fit`` over epochs and batches, with logging, evaluation and checkpoints."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flowmx import program
from flowmx.checkpoint import Checkpoint, Place
from flowmx.metric import EvalMetric
from flowmx.model import BatchEndParam
from flowmx.module.evaluation import (
    Callbacks,
    batch_after,
    batch_labels,
    call,
    iterate_batches,
    rows_keyword,
    yield_to_tasks,
)
from flowmx.module.fit_checkpoints import FitCheckpoints, open_checkpoints
from flowmx.observability.flight import curves
from flowmx.observability.safety import step_counter

if TYPE_CHECKING:
    from flowmx.module.base_module import BaseModule


@dataclass
class Fit:
    """The training of a module that is bound and has its optimizer.

    Attributes:
        module: the module.
        train_data: the batches to train on.
        num_epoch: the first epoch not to train.
        metric: the metric of the training.
        eval_data: the batches to evaluate on after each epoch.
        validation_metric: the metric of the evaluation.
        monitor: observes the executors.
        checkpoints: writes checkpoints.
        on_batch, on_epoch, on_eval, on_eval_batch: callbacks.
        row_ids: returns the rows of row_sparse parameters that a batch needs.
    """

    module: BaseModule
    train_data: Any
    num_epoch: int
    metric: EvalMetric
    eval_data: Any = None
    validation_metric: Any = None
    monitor: Any = None
    checkpoints: FitCheckpoints | None = None
    on_batch: Callbacks = None
    on_epoch: Callbacks = None
    on_eval: Callbacks = None
    on_eval_batch: Callbacks = None
    row_ids: Any = None
    _checkpoint: Checkpoint | None = None
    _totals: list[tuple[str, float]] = field(default_factory=list)

    # -- before the first batch ------------------------------------------------------------------------

    async def open(self, checkpoint: object, store: object, resume: bool) -> None:
        """Open the folder of checkpoints, if any, and find the checkpoint to resume from.

        Args:
            checkpoint: a folder, a :class:`mx.checkpoint.Checkpoints`, or None.
            store: the ``kvstore`` of ``fit``.
            resume: resume from the newest checkpoint; if False, the folder must have no checkpoints.
        """
        self.checkpoints = await open_checkpoints(self.module, self.train_data, self.metric, checkpoint, store)
        self._checkpoint = None if self.checkpoints is None else await self.checkpoints.find(resume)

    def restore_arrays(self) -> None:
        """Set parameters and auxiliary states to those of the checkpoint, if any."""
        if self.checkpoints is not None and self._checkpoint is not None:
            self.checkpoints.set_arrays(self._checkpoint)

    async def restore_optimizers(self) -> None:
        """Set the optimizers' states to those of the checkpoint, if any."""
        if self.checkpoints is not None and self._checkpoint is not None:
            await self.checkpoints.set_optimizers(self._checkpoint)

    async def start(self, begin_epoch: int) -> None:
        """Train from the position of the checkpoint or the other workers, or else from ``begin_epoch``."""
        position = (begin_epoch, 0) if self._checkpoint is None else self._checkpoint.place
        place = Place(*await self.module._begin_fit(*position))
        skip_count = None
        if self.checkpoints is not None and self._checkpoint is not None:
            skip_count = self.checkpoints.set_data(self._checkpoint, place)
        await self.run(place, place.batch if skip_count is None else skip_count, is_counted=skip_count is not None)

    # -- the loop --------------------------------------------------------------------------------------

    async def run(self, place: Place, skip_count: int, is_counted: bool) -> None:
        """Train from a place (epoch and batch) to the end.

        Args:
            place: the epoch and batch to begin with.
            skip_count: the number of batches in the data to skip, because training has already used them.
            is_counted: whether the metric has counted the batches before `place`.
        """
        epoch, nbatch = place
        if self.checkpoints is not None:
            program.install_sigterm_handler()
        with program.defer_shutdown():
            while epoch < self.num_epoch:
                self._totals = self.metric.get_global_name_value() if is_counted and nbatch else []
                if not self._totals:
                    self.metric.reset()
                epoch = await self._epoch(epoch, nbatch, skip_count)
                nbatch = skip_count = 0
                if program.is_terminating():
                    program.shut_down()

    async def _epoch(self, epoch: int, nbatch: int, skip_count: int) -> int:
        """Train until the end of an epoch; return the next epoch."""
        start_time = time.perf_counter()
        await self.module._begin_epoch(epoch, self.train_data)
        batches = iterate_batches(self.train_data)
        batch = await batch_after(skip_count, batches)
        if batch is None and not nbatch:
            raise ValueError("fit: train_data returned no batch: is it empty, or does it need a reset()?")
        while batch is not None:
            batch = await self._batch(epoch, nbatch, batch, batches)
            nbatch += 1
        return await self._end(epoch, start_time)

    async def _batch(self, epoch: int, nbatch: int, batch: object, batches: AsyncIterator[Any]) -> Any:
        """Train on a batch; return the next batch."""
        module = self.module
        if self.monitor is not None:
            self.monitor.tic()
        module.forward_backward(batch)
        module.update()
        await module.update_metric_async(self.metric, batch_labels(batch))
        # A checkpoint saves the data's position, so write it before taking the next batch.
        is_ending = program.is_terminating()
        is_saved = self.checkpoints is not None and (is_ending or self.checkpoints.is_due(nbatch + 1))
        next_batch = None if is_saved else await self._take(batches)
        if self.monitor is not None:
            await call(getattr(self.monitor, "toc_print_async", self.monitor.toc_print))
        # Read before the callbacks, which may reset the metric.
        self._totals = self.metric.get_global_name_value()
        _log("train", self._totals)
        await call(self.on_batch, BatchEndParam(epoch, nbatch, self.metric, self._locals(epoch, nbatch, batch)))
        if self.checkpoints is not None and is_saved:
            await self.checkpoints.save(Place(epoch, nbatch + 1))
        if is_ending:
            program.shut_down()
        if is_saved:
            next_batch = await self._take(batches)
        await yield_to_tasks()
        return next_batch

    async def _take(self, batches: AsyncIterator[Any]) -> Any:
        batch = await anext(batches, None)
        if batch is not None:
            self.module.prepare(batch, **await rows_keyword(self.row_ids, batch))
        return batch

    def _locals(self, epoch: int, nbatch: int, data_batch: object) -> dict[str, object]:
        """Return the variables of the training loop, under MXNet's names, for ``BatchEndParam.locals``."""
        return {
            "self": self.module, "epoch": epoch, "nbatch": nbatch, "data_batch": data_batch,
            "eval_metric": self.metric, "train_data": self.train_data, "eval_data": self.eval_data,
            "validation_metric": self.validation_metric, "num_epoch": self.num_epoch, "monitor": self.monitor,
        }  # fmt: skip

    async def _end(self, epoch: int, start_time: float) -> int:
        """Finish an epoch after its last batch: log, synchronize, evaluate, save; return the next epoch."""
        module = self.module
        next_epoch = min(await module._end_epoch(epoch + 1), self.num_epoch)
        epoch = next_epoch - 1  # higher than this worker's count if it joined late
        for name, value in self._totals:
            module.logger.info("Epoch[%d] Train-%s=%f", epoch, name, value)
        arg_params, aux_params = await module._synchronize_params()
        module._set_replaced_params(arg_params, aux_params)
        module.logger.info("Epoch[%d] Time cost=%.3f", epoch, time.perf_counter() - start_time)
        await call(self.on_epoch, epoch, module.symbol, arg_params, aux_params)
        await self._evaluate(epoch)
        self.train_data.reset()
        if self.checkpoints is not None:
            await self.checkpoints.save(Place(next_epoch, 0))
        return next_epoch

    async def _evaluate(self, epoch: int) -> None:
        if self.eval_data is None:
            return
        scores = await self.module.score(
            self.eval_data, self.validation_metric, score_end_callback=self.on_eval,
            batch_end_callback=self.on_eval_batch, epoch=epoch,
            sparse_row_id_fn=self.row_ids,
        )  # fmt: skip
        _log("validation", scores)
        for name, value in scores:
            self.module.logger.info("Epoch[%d] Validation-%s=%f", epoch, name, value)


def _log(prefix: str, values: list[tuple[str, float]]) -> None:
    """Add metrics to the curves of the dashboard."""
    for name, value in values:
        curves.log(f"{prefix} {name}", value, step_counter.step_counts()[0])
