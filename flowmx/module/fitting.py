"""``fit``: the loop over epochs and batches, with logging, evaluation and checkpoints."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flowmx import program
from flowmx.checkpoint import Checkpoint, Place
from flowmx.metric import EvalMetric
from flowmx.model import BatchEndParam
from flowmx.module.loops import Callbacks, batch_after, batches_of, call, give_way, given_rows, labels_of
from flowmx.module.saving import Saving, saving
from flowmx.observability.flight import curves
from flowmx.observability.safety import steps

if TYPE_CHECKING:
    from flowmx.module.base import BaseModule


@dataclass
class Fit:
    """The training of a module that is bound and has its optimizer.

    Attributes:
        module: the module.
        train_data: the batches to train on.
        num_epoch: the number of the epoch to stop before.
        metric: of the training.
        eval_data: the batches to evaluate on after each epoch.
        validation_metric: of the evaluation.
        monitor: watches the executors.
        saving: writes checkpoints.
        on_batch, on_epoch, on_eval, on_eval_batch: callbacks.
        row_ids: gives the rows of row_sparse parameters that a batch needs.
    """

    module: BaseModule
    train_data: Any
    num_epoch: int
    metric: EvalMetric
    eval_data: Any = None
    validation_metric: Any = None
    monitor: Any = None
    saving: Saving | None = None
    on_batch: Callbacks = None
    on_epoch: Callbacks = None
    on_eval: Callbacks = None
    on_eval_batch: Callbacks = None
    row_ids: Any = None
    _found: Checkpoint | None = None
    _totals: list[tuple[str, float]] = field(default_factory=list)

    # -- before the first batch ------------------------------------------------------------------------

    async def open(self, checkpoint: Any, store: Any, resume: bool) -> None:
        """Open the folder of checkpoints, if there is one, and find the checkpoint to resume from.

        Args:
            checkpoint: a folder, a :class:`mx.checkpoint.Checkpoints`, or None.
            store: ``fit``'s ``kvstore``.
            resume: resume from the newest checkpoint; else the folder must have none.
        """
        self.saving = await saving(self.module, self.train_data, self.metric, checkpoint, store)
        self._found = None if self.saving is None else await self.saving.find(resume)

    def restore_arrays(self) -> None:
        """Set parameters and auxiliary states to those of the checkpoint, if there is one."""
        if self.saving is not None and self._found is not None:
            self.saving.set_arrays(self._found)

    async def restore_optimizers(self) -> None:
        """Set the optimizers' states to those of the checkpoint, if there is one."""
        if self.saving is not None and self._found is not None:
            await self.saving.set_optimizers(self._found)

    async def start(self, begin_epoch: int) -> None:
        """Train from the checkpoint's place, or else from an epoch, or from the place that other workers are at."""
        first = (begin_epoch, 0) if self._found is None else self._found.place
        place = Place(*await self.module._begin_fit(*first))
        skipped = None
        if self.saving is not None and self._found is not None:
            skipped = self.saving.set_data(self._found, place)
        await self.run(place, place.batch if skipped is None else skipped, counted=skipped is not None)

    # -- the loop --------------------------------------------------------------------------------------

    async def run(self, place: Place, skipped: int, counted: bool) -> None:
        """Train from a place (epoch and batch) to the end.

        Args:
            place: where to begin.
            skipped: how many batches the data gives first that are done already.
            counted: whether the metric has counted what is done of the epoch.
        """
        epoch, nbatch = place
        if self.saving is not None:
            program.heed_sigterm()
        with program.hold():
            while epoch < self.num_epoch:
                self._totals = self.metric.get_global_name_value() if counted and nbatch else []
                if not self._totals:
                    self.metric.reset()
                epoch = await self._epoch(epoch, nbatch, skipped)
                nbatch = skipped = 0
                if program.asked_to_end():
                    program.leave()

    async def _epoch(self, epoch: int, nbatch: int, skipped: int) -> int:
        """Train until the end of an epoch; returns the next."""
        started = time.perf_counter()
        await self.module._begin_epoch(epoch, self.train_data)
        batches = batches_of(self.train_data)
        following = await batch_after(skipped, batches)
        if following is None and not nbatch:
            raise ValueError("fit: train_data gave no batch: is it empty, or does it need a reset()?")
        while following is not None:
            following = await self._batch(epoch, nbatch, following, batches)
            nbatch += 1
        return await self._end(epoch, started)

    async def _batch(self, epoch: int, nbatch: int, batch: Any, batches: AsyncIterator[Any]) -> Any:
        """Train on a batch; returns the one after it."""
        module = self.module
        if self.monitor is not None:
            self.monitor.tic()
        module.forward_backward(batch)
        module.update()
        await module.update_metric_async(self.metric, labels_of(batch))
        # A checkpoint says where the data stands, so the next batch is not taken before it is written.
        ends = program.asked_to_end()
        is_saved = self.saving is not None and (ends or self.saving.is_due(nbatch + 1))
        following = None if is_saved else await self._taken(batches)
        if self.monitor is not None:
            await call(getattr(self.monitor, "toc_print_async", self.monitor.toc_print))
        # Taken before the callbacks, which may reset the metric.
        self._totals = self.metric.get_global_name_value()
        _log("train", self._totals)
        await call(self.on_batch, BatchEndParam(epoch, nbatch, self.metric, self._locals(epoch, nbatch, batch)))
        if self.saving is not None and is_saved:
            await self.saving.save(Place(epoch, nbatch + 1))
        if ends:
            program.leave()
        if is_saved:
            following = await self._taken(batches)
        await give_way()
        return following

    async def _taken(self, batches: AsyncIterator[Any]) -> Any:
        following = await anext(batches, None)
        if following is not None:
            self.module.prepare(following, **await given_rows(self.row_ids, following))
        return following

    def _locals(self, epoch: int, nbatch: int, data_batch: Any) -> dict[str, Any]:
        """Variables of the training loop, under MXNet's names, for callbacks (``BatchEndParam.locals``)."""
        return {
            "self": self.module, "epoch": epoch, "nbatch": nbatch, "data_batch": data_batch,
            "eval_metric": self.metric, "train_data": self.train_data, "eval_data": self.eval_data,
            "validation_metric": self.validation_metric, "num_epoch": self.num_epoch, "monitor": self.monitor,
        }  # fmt: skip

    async def _end(self, epoch: int, started: float) -> int:
        """Finish an epoch after its last batch: log, synchronize, evaluate, save; returns the next epoch."""
        module = self.module
        following = min(await module._end_epoch(epoch + 1), self.num_epoch)
        epoch = following - 1  # later than this worker knows, where it joined late
        for name, value in self._totals:
            module.logger.info("Epoch[%d] Train-%s=%f", epoch, name, value)
        arg_params, aux_params = await module._synchronized()
        module.logger.info("Epoch[%d] Time cost=%.3f", epoch, time.perf_counter() - started)
        await call(self.on_epoch, epoch, module.symbol, arg_params, aux_params)
        await self._evaluate(epoch)
        self.train_data.reset()
        if self.saving is not None:
            await self.saving.save(Place(following, 0))
        return following

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


def _log(of: str, values: list[tuple[str, float]]) -> None:
    """Add metrics to the curves of the dashboard."""
    for name, value in values:
        curves.log(f"{of} {name}", value, steps.counted()[0])
