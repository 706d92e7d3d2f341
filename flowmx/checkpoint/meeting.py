"""Synchronization of a training loop with the other workers of a job.

A loop asks for the position of the job when it begins, and waits for the other workers at the end of each epoch. A
restarted worker therefore joins them, and does not train alone after they have finished.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import weakref
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from flowmx.checkpoint.content import Place

__all__ = ["Meeting", "result_of", "skip"]

log = logging.getLogger("flowmx.checkpoint")
T = TypeVar("T")

_order = itertools.count(1)
_current: weakref.WeakKeyDictionary[Any, Meeting] = weakref.WeakKeyDictionary()
"""The current loop, by the state that the stores of a job share."""


class Meeting:
    """The synchronization of one loop. All methods block.

    A loop may have several meetings, such as the two of a GAN: they are created before the first one begins. Only the
    first one synchronizes.

    Args:
        store: the distributed store; any other store, or None, means a job of one worker.
        trainer: the trainer, or None.
    """

    def __init__(self, store: Any, trainer: Any) -> None:
        self._store = store if getattr(store, "_is_remote", False) else None
        self._trainer = trainer
        self._create_number = next(_order)
        self._begin_number = 0
        self._place: Place | None = None

    def begin(self, place: Place) -> Place:
        """Join the job. Return its position, by default `place`.

        A worker that joins late gets the parameters of the servers.
        """
        if self._store is None:
            return place
        leader = _current.get(self._family)
        if leader is not None and leader._place is not None and self._create_number < leader._begin_number:
            return leader._place  # another network of the same loop
        self._begin_number = next(_order)
        if self._trainer is not None:
            self._trainer._share_trained()
        _current[self._family] = self
        current = self._place = Place(*result_of(self._store._begin_fit(*place)))
        if current != place:
            log.info("the other workers are at epoch %d, batch %d: resuming there", *current)
        return current

    @property
    def _family(self) -> Any:
        """The state that all stores of this process share."""
        return getattr(self._store, "_family", self._store)

    def advance(self) -> None:
        """Record that the loop has made progress."""
        self._place = None

    def end_epoch(self, next_epoch: int) -> int:
        """Wait for the other workers at the end of an epoch. Return the next epoch, by default `next_epoch`.

        Workers that have more batches can complete them meanwhile.
        """
        self.advance()
        if self._store is None or _current.get(self._family) is not self:
            return next_epoch
        job_epoch: int = result_of(self._store._end_epoch(next_epoch))
        if self._trainer is not None:
            self._trainer._pull_trained()
        if job_epoch != next_epoch:
            log.warning(
                "the other workers are at epoch %d, this one at %d: it continues with theirs", job_epoch, next_epoch
            )
        return job_epoch


def result_of(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in another thread's loop and return its result; this thread may be running a loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


def skip(data: Any, batches: int) -> None:
    """Skip the next batches of a data source.

    A loader does not create them; an iterator of ``mx.io`` discards them. If the source supports neither, a warning is
    logged, and the batches are not skipped.

    Args:
        data: the source, or None.
        batches: the number of batches.
    """
    if batches <= 0:
        return
    state = data.state() if hasattr(data, "state") and hasattr(data, "set_state") else None
    if isinstance(state, dict) and isinstance(state.get("given"), int):
        remaining = state.get("rest")
        data.set_state(
            {**state, "given": state["given"] + batches, "rest": None if remaining is None else remaining[batches:]}
        )
    elif hasattr(data, "next"):
        for _ in range(batches):
            data.next()
    else:
        log.warning(
            "this worker trains on %d batches that the others have completed: only a DataLoader or an iterator of "
            "mx.io can skip them", batches,
        )  # fmt: skip
