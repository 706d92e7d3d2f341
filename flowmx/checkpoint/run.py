"""Checkpoints of a Gluon loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from flowmx import program
from flowmx.checkpoint import attributes, generators, optimizers, parameters
from flowmx.checkpoint.content import Checkpoint, CheckpointError, Place
from flowmx.checkpoint.folder import Checkpoints

T = TypeVar("T")


class Run:
    """A training loop that goes on where it was killed, with the same samples and the same parameters to the bit.

    Make it when everything else is made, in the same way each time. Methods block; in a coroutine, await those that end
    in ``_async``.

    Args:
        folder: where the checkpoints are: a folder of their own, or a :class:`Checkpoints`.
        net: the network, or its parameters.
        trainer: the trainer, if there is one.
        data: the source of the batches: a ``gluon.data.DataLoader``, an iterator of ``mx.io``, or anything else with
            ``state()`` and ``set_state(state)``.
        metric: a metric, if it is to go on counting.
        every: write a checkpoint after so many batches; None at the ends of epochs alone.
        keep: the number to keep.

    Attributes:
        epoch: the epoch that is under way.
        batch: the number of its batches that are done.

    Example:
        >>> run = mx.checkpoint.Run("run", net=net, trainer=trainer, data=loader, every=100)
        >>> run.resume()
        >>> for epoch in range(run.epoch, 10):
        ...     for data, label in loader:
        ...         with mx.autograd.record():
        ...             loss = loss_of(net(data), label)
        ...         loss.backward()
        ...         trainer.step(len(data))
        ...         run.batch_done()
        ...     run.epoch_done()
    """

    def __init__(
        self, folder: str | os.PathLike[str] | Checkpoints, net: Any, trainer: Any = None, data: Any = None,
        metric: Any = None, every: int | None = None, keep: int = 3,
    ) -> None:  # fmt: skip
        if data is not None and not (hasattr(data, "state") and hasattr(data, "set_state")):
            raise TypeError(
                f"Run: data is {type(data).__name__}, which can not say where it stands: it needs state() "
                "and set_state()"
            )
        self._params = parameters.by_name(net)
        self._trainer = trainer
        self._data = data
        self._metric = metric
        self._store: Any = getattr(trainer, "_kvstore", None)
        self._workers: int = 1 if self._store is None else self._store.num_workers
        made = folder if isinstance(folder, Checkpoints) else Checkpoints(folder, every, keep)
        self._checkpoints = made.of_worker(0 if self._store is None else self._store.rank, self._workers)
        self.epoch, self.batch = 0, 0
        program.heed_sigterm()
        held = contextlib.ExitStack()
        held.enter_context(program.hold())
        weakref.finalize(self, held.close)

    # -- going on --------------------------------------------------------------------------------------

    def resume(self) -> Place:
        """Go on from the newest checkpoint, in a job the newest that all workers have; returns its place.

        Raises:
            CheckpointError: it is of another network, optimizer or number of workers.
        """
        found = self._found()
        if found is None:
            return Place(self.epoch, self.batch)
        if "parameters" not in found.content:
            raise CheckpointError(
                f"the checkpoints in {self._checkpoints.folder} were written by Module.fit: use another folder"
            )
        if found.workers != self._workers:
            raise CheckpointError(
                f"the checkpoint is of a job of {found.workers} workers, and this one has {self._workers}: launch as "
                "many, or use another folder"
            )
        parameters.restore(self._params, found.arrays, found.content["parameters"])
        if self._trainer is not None:
            optimizers.set_config(self._trainer.optimizer, found.content["optimizer"])
            attributes.set_state(
                getattr(self._trainer, "_amp_loss_scaler", None) or _Nothing(), found.content["scaler"]
            )
            _wait(self._trainer._resume_states(found.blobs.get("states")))
        generators.set_state(found.content["generators"])
        if self._data is not None:
            self._data.set_state(found.content["data"])
        if self._metric is not None:
            attributes.set_state(self._metric, found.content["metric"])
        self.epoch, self.batch = found.place
        return found.place

    def _found(self) -> Checkpoint | None:
        if self._workers == 1:
            return self._checkpoints.newest()
        places = self._checkpoints.whole()
        agreed = _wait(self._store._agree(places))
        if agreed is None and len(places) > 1:
            raise CheckpointError(
                f"{self._checkpoints.folder} has checkpoints up to {places[0]}, but another worker has none of them: "
                "were its files lost? To begin anew, use another folder on all workers"
            )
        return None if agreed is None else self._checkpoints.read(Place(*agreed))

    async def resume_async(self) -> Place:
        """As :meth:`resume`, awaited."""
        return await asyncio.to_thread(self.resume)

    # -- writing ---------------------------------------------------------------------------------------

    def batch_done(self) -> None:
        """Count a batch, and write a checkpoint where it is time to; that waits for what is enqueued."""
        self.batch += 1
        self._save_if(self._checkpoints.is_due(self.batch))

    def epoch_done(self) -> None:
        """Begin the next epoch, with a checkpoint; an iterator of ``mx.io`` has been reset by then."""
        self.epoch, self.batch = self.epoch + 1, 0
        self._save_if(True)

    def _save_if(self, due: bool) -> None:
        """Write a checkpoint where one is due; after SIGTERM in any case, and end the program."""
        ends = program.asked_to_end()
        if due or ends:
            self.save()
        if ends:
            program.leave()

    async def batch_done_async(self) -> None:
        """As :meth:`batch_done`, awaited."""
        self.batch += 1
        await self._save_if_async(self._checkpoints.is_due(self.batch))

    async def epoch_done_async(self) -> None:
        """As :meth:`epoch_done`, awaited."""
        self.epoch, self.batch = self.epoch + 1, 0
        await self._save_if_async(True)

    async def _save_if_async(self, due: bool) -> None:
        ends = program.asked_to_end()
        if due or ends:
            await asyncio.to_thread(self.save)
        if ends:
            program.leave()

    def save(self) -> None:
        """Write a checkpoint now; blocks until it is on disk."""
        streams = generators.state([(context, handle.wait()) for context, handle in generators.push()])
        leads = self._store is None or self._store._leads
        arrays = {name: array.asnumpy() for name, array in parameters.arrays(self._params, leads)}
        trainer = self._trainer
        states = None if trainer is None else _wait(trainer._saved_states())
        content = {
            "parameters": parameters.described(self._params),
            "optimizer": None if trainer is None else optimizers.config(trainer.optimizer),
            "scaler": attributes.state(getattr(trainer, "_amp_loss_scaler", None) or _Nothing()),
            "generators": streams,
            "data": None if self._data is None else self._data.state(),
            "metric": None if self._metric is None else attributes.state(self._metric),
        }
        blobs = {} if states is None else {"states": states}
        self._checkpoints.write(Checkpoint(Place(self.epoch, self.batch), arrays, blobs, content, self._workers))


class _Nothing:
    """Holds nothing: a trainer without mixed precision."""


def _wait(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that needs no loop of this thread's, which may be in one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
