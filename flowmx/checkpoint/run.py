"""Checkpoints of a Gluon loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from typing import Any

from flowmx import event_loops, program
from flowmx.checkpoint import attributes, generators, optimizers, parameters
from flowmx.checkpoint.content import Checkpoint, CheckpointError, Place
from flowmx.checkpoint.folder import Checkpoints
from flowmx.checkpoint.meeting import Meeting, result_of, skip
from flowmx.keywords import ChecksKeywords
from flowmx.renaming import renamed

_AVERAGE = "average "
"""Begins the names of averages in a checkpoint."""


class Run(ChecksKeywords):
    """The checkpoints of a training loop, which resumes where it was killed, with bit-identical results.

    Create it last, after the same objects in the same order each time. If a loop has several runs, as for a GAN, create
    all of them before resuming the first. Methods block; in a coroutine, await the methods with the suffix ``_async``.

    Args:
        folder: a separate folder for the checkpoints, or a :class:`Checkpoints`.
        net: the network, or its parameters.
        trainer: the trainer, or None.
        data: the source of the batches: a ``gluon.data.DataLoader``, an iterator of ``mx.io``, or any object with
            ``state()`` and ``set_state(state)``.
        metric: a metric to save.
        average: an ``ExponentialMovingAverage`` of the network's weights to save, or None.
        every: the number of batches between checkpoints; None writes them only at the ends of epochs.
        keep: the number of checkpoints to keep.

    Attributes:
        epoch: the current epoch.
        batch: the number of its completed batches.

    Example:
        >>> run = mx.checkpoint.Run("run", net=net, trainer=trainer, data=loader, every=100)
        >>> run.resume()
        >>> for epoch in range(run.epoch, 10):
        ...     for data, label in loader:
        ...         with mx.autograd.record():
        ...             loss = loss_of(net(data), label)
        ...         loss.backward()
        ...         trainer.step(len(data))
        ...         run.batch_end()
        ...     run.epoch_end()
    """

    def __init__(
        self, folder: str | os.PathLike[str] | Checkpoints, net: Any, trainer: Any = None, data: Any = None,
        metric: Any = None, every: int | None = None, keep: int = 3, average: Any = None,
    ) -> None:  # fmt: skip
        if data is not None and not (hasattr(data, "state") and hasattr(data, "set_state")):
            raise TypeError(
                f"Run: data is {type(data).__name__}, which cannot save its position: it needs state() and set_state()"
            )
        self._params = parameters.by_name(net)
        self._trainer = trainer
        self._data = data
        self._metric = metric
        self._average = average
        self._store: Any = getattr(trainer, "_kvstore", None)
        self._workers: int = 1 if self._store is None else self._store.num_workers
        checkpoints = folder if isinstance(folder, Checkpoints) else Checkpoints(folder, every, keep)
        self._checkpoints = checkpoints.of_worker(0 if self._store is None else self._store.rank, self._workers)
        self.epoch, self.batch = 0, 0
        self._meeting = Meeting(self._store, trainer)
        program.install_sigterm_handler()
        stack = contextlib.ExitStack()
        stack.enter_context(program.defer_shutdown())
        weakref.finalize(self, stack.close)

    # -- resuming --------------------------------------------------------------------------------------

    def resume(self) -> Place:
        """Resume from the newest checkpoint; in a job, from the newest that all workers have. Return the position.

        A restarted worker that joins a running job resumes at the position of the others: it gets the parameters of the
        servers and skips the completed batches of the epoch. From then on all workers wait for each other at the end of
        each epoch.

        Raises:
            CheckpointError: the checkpoint belongs to another network, optimizer or number of workers.
        """
        checkpoint = self._newest()
        if checkpoint is not None:
            self._restore(checkpoint)
        self._join(checkpoint)
        return Place(self.epoch, self.batch)

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Restore everything except the data and the metric, which depend on the position of the other workers."""
        if "parameters" not in checkpoint.content:
            raise CheckpointError(
                f"the checkpoints in {self._checkpoints.folder} were written by Module.fit: use another folder"
            )
        if checkpoint.workers != self._workers:
            raise CheckpointError(
                f"the checkpoint was written by a job of {checkpoint.workers} workers, this one has {self._workers}: "
                "launch the same number, or use another folder"
            )
        parameters.restore(self._params, checkpoint.arrays, checkpoint.content["parameters"])
        if self._trainer is not None:
            self._check_order(checkpoint.content.get("order"))
            optimizers.set_config(self._trainer.optimizer, checkpoint.content["optimizer"])
            attributes.set_state(
                getattr(self._trainer, "_amp_loss_scaler", None) or _NoScaler(), checkpoint.content["scaler"]
            )
            result_of(self._trainer._resume_states(checkpoint.blobs.get("states")))
            self._trainer._accumulation.set_state(checkpoint.content.get("accumulation") or {"count": 0, "size": 0})
        self._restore_average(checkpoint)
        generators.set_state(checkpoint.content["generators"])
        self.epoch, self.batch = checkpoint.place

    def _order(self) -> list[str]:
        """Return the names of the trainer's parameters, in the order of its states."""
        names = {id(param): name for name, param in self._params.items()}
        return [names.get(id(param), "") for _, param in sorted(self._trainer.optimizer.param_dict.items())]

    def _check_order(self, order: list[str] | None) -> None:
        """Refuse a trainer with another order: the states of its optimizer would belong to other parameters."""
        if order is not None and order != self._order():
            raise CheckpointError(
                f"the trainer has its parameters in the order {self._order()[:6]}, and the checkpoint in the order "
                f"{order[:6]}: create it with a list, such as list(net.collect_params().values())"
            )

    def _restore_average(self, checkpoint: Checkpoint) -> None:
        if self._average is None:
            return
        updates = checkpoint.content.get("average")
        if updates is None:
            raise CheckpointError(
                f"the checkpoint in {self._checkpoints.folder} has no averages of weights: use another folder, or "
                "begin the averages after resume() and do not pass them to the run"
            )
        arrays = {
            key.removeprefix(_AVERAGE): array for key, array in checkpoint.arrays.items() if key.startswith(_AVERAGE)
        }
        self._average.set_state(updates, arrays)

    def _join(self, checkpoint: Checkpoint | None) -> None:
        """Begin at the position of the job, or of the checkpoint if no other worker is further."""
        current = self._meeting.begin(Place(self.epoch, self.batch))
        data_position = Place(current.epoch, 0)
        if (
            checkpoint is not None
            and checkpoint.place.epoch == current.epoch
            and checkpoint.place.batch <= current.batch
        ):
            data_position = checkpoint.place
            if self._data is not None:
                self._data.set_state(checkpoint.content["data"])
            if self._metric is not None:
                attributes.set_state(self._metric, checkpoint.content["metric"])
        skip(self._data, current.batch - data_position.batch)
        self.epoch, self.batch = current

    def _next_epoch(self) -> None:
        self.epoch, self.batch = self._meeting.end_epoch(self.epoch + 1), 0

    def _newest(self) -> Checkpoint | None:
        if self._workers == 1:
            return self._checkpoints.newest()
        return result_of(self._checkpoints.newest_common(self._store._agree))

    async def resume_async(self) -> Place:
        """Call :meth:`resume` without blocking the event loop."""
        return await event_loops.to_thread(self.resume)

    # -- writing ---------------------------------------------------------------------------------------

    def batch_end(self) -> None:
        """Count a batch, and write a checkpoint if one is due. Writing waits for enqueued operations."""
        self._count()
        self._save_if(self._checkpoints.is_due(self.batch))

    def epoch_end(self) -> None:
        """Begin the next epoch and write a checkpoint. Reset an iterator of ``mx.io`` before the call.

        In a resumed job it waits for all workers; those that have more batches can complete them meanwhile.
        """
        self._next_epoch()
        self._save_if(True)

    def _count(self) -> None:
        self.batch += 1
        self._meeting.advance()

    def _save_if(self, is_due: bool) -> None:
        """Write a checkpoint if one is due. After SIGTERM always write one, and exit."""
        is_ending = program.is_terminating()
        if is_due or is_ending:
            self.save()
        if is_ending:
            program.shut_down()

    async def batch_end_async(self) -> None:
        """Call :meth:`batch_end` without blocking the event loop."""
        self._count()
        await self._save_if_async(self._checkpoints.is_due(self.batch))

    async def epoch_end_async(self) -> None:
        """Call :meth:`epoch_end` without blocking the event loop."""
        await asyncio.to_thread(self._next_epoch)
        await self._save_if_async(True)

    batch_done = renamed(batch_end, "Run.batch_done", "Run.batch_end")
    batch_done_async = renamed(batch_end_async, "Run.batch_done_async", "Run.batch_end_async")
    epoch_done = renamed(epoch_end, "Run.epoch_done", "Run.epoch_end")
    epoch_done_async = renamed(epoch_end_async, "Run.epoch_done_async", "Run.epoch_end_async")

    async def _save_if_async(self, is_due: bool) -> None:
        is_ending = program.is_terminating()
        if is_due or is_ending:
            await event_loops.to_thread(self.save)
        if is_ending:
            program.shut_down()

    def save(self) -> None:
        """Write a checkpoint now. Blocks until it is on disk."""
        streams = generators.state([(context, handle.wait()) for context, handle in generators.push()])
        leads = self._store is None or self._store._leads
        arrays = {name: array.asnumpy() for name, array in parameters.arrays(self._params, leads)}
        if self._average is not None:
            averages = self._average.averages
            arrays |= {f"{_AVERAGE}{name}": array.asnumpy() for name, array in averages.items()}
        trainer = self._trainer
        states = None if trainer is None else result_of(trainer._saved_states())
        content = {
            "parameters": parameters.describe(self._params),
            "optimizer": None if trainer is None else optimizers.config(trainer.optimizer),
            "scaler": attributes.state(getattr(trainer, "_amp_loss_scaler", None) or _NoScaler()),
            "accumulation": None if trainer is None else trainer._accumulation.state(),
            "order": None if trainer is None else self._order(),
            "generators": streams,
            "average": None if self._average is None else self._average.updates,
            "data": None if self._data is None else self._data.state(),
            "metric": None if self._metric is None else attributes.state(self._metric),
        }
        blobs = {} if states is None else {"states": states}
        self._checkpoints.write(Checkpoint(Place(self.epoch, self.batch), arrays, blobs, content, self._workers))


class _NoScaler:
    """The stateless loss scaler of a trainer without mixed precision."""
