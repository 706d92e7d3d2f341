"""The iterators of one epoch of a `DataLoader`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from flowmx import engine, forks
from flowmx.data.pending_batches import Failure, PendingBatch, PendingIterator, ThreadFetch
from flowmx.gluon.data import batch_maker, seeds
from flowmx.gluon.data.position import Position
from flowmx.gluon.data.workers import DataLoaderTimeout, Job, WorkerPool

if TYPE_CHECKING:
    from flowmx.gluon.data.loader import DataLoader


class Epoch(PendingIterator[Any]):
    """Base class of epochs. Tasks can share an epoch, and a cancelled wait loses no batch.

    Args:
        position: the position in the epoch.
        length: the number of batches.

    Attributes:
        loader: the loader, while a loop uses the epoch, so that its workers live as long as the loop.
        position: the position in the epoch.
    """

    loader: DataLoader[Any] | None = None

    def __init__(self, position: Position, length: int) -> None:
        super().__init__()
        self.position = position
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Epoch:
        return self

    def __aiter__(self) -> Epoch:
        return self

    def __next__(self) -> Any:
        return self._take()

    async def __anext__(self) -> Any:
        return await self._take_async()

    def next(self) -> Any:
        """Return the next batch (MXNet's name)."""
        return self.__next__()

    def close(self) -> None:
        """Abandon the rest of the epoch."""
        self.loader = None

    def __del__(self) -> None:
        self.close()

    def _batch_seed(self, number: int) -> int:
        start = self.position.start
        return seeds.batch_seed(start.seed, start.epoch, number)

    def _pop(self, result: Any) -> Any:
        """Return a batch to the loop, or raise its error; an error ends the epoch."""
        if isinstance(result, Failure):
            self.close()
            if isinstance(result.error, StopIteration | StopAsyncIteration):  # these would end the loop silently
                raise RuntimeError(f"the data set raised {type(result.error).__name__}") from result.error
            raise result.error
        self.position.advance()
        return result if self.loader is None else self.loader._prepare(result)

    def _finish(self) -> None:
        """Mark the epoch as finished."""
        loader = self.loader
        self.close()
        if loader is not None and not self.position.finished:
            self.position.finished = True
            loader._on_epoch_end()


class SyncEpoch(Epoch):
    """Batches that are made when they are requested.

    Args:
        position: the position in the epoch.
        length: the number of batches.
        dataset: the samples.
        batchify_fn: makes a batch from a list of samples.
    """

    def __init__(self, position: Position, length: int, dataset: Any, batchify_fn: Callable[[list[Any]], Any]) -> None:
        super().__init__(position, length)
        self._fetch: ThreadFetch | None = None
        self._make = partial(batch_maker.make, dataset, batchify_fn)

    def __next__(self) -> Any:
        if self._fetch is not None:  # a task is waiting for the batch
            return self._take()
        task = self._task()
        if task is None:
            self._finish()
            raise StopIteration
        return self._pop(self._make_batch(*task))

    def _head(self) -> PendingBatch | None:
        fetch = self._fetch
        if fetch is not None:
            if fetch.is_lost():
                self._fetch = ThreadFetch(fetch.function)
        elif (task := self._task()) is not None:
            self._fetch = ThreadFetch(partial(self._make_batch, *task))
        else:
            self._finish()
        return self._fetch

    def _is_pending(self, head: PendingBatch) -> bool:
        return self._fetch is head

    def _pop(self, result: Any) -> Any:
        self._fetch = None
        return super()._pop(result)

    def _task(self) -> tuple[int, list[Any]] | None:
        return self.position.take() if self.loader is not None else None

    def _make_batch(self, number: int, samples: Sequence[object]) -> Any:
        try:
            with seeds.seeded_block(self._batch_seed(number)):
                return self._make(samples, number)
        except Exception as error:  # the user's batchify function may raise anything
            return Failure(error)

    def close(self) -> None:
        super().close()
        self._fetch = None


class PrefetchedEpoch(Epoch):
    """Batches that workers make in advance; each is an operation of the engine.

    Args:
        position: the position in the epoch.
        length: the number of batches.
        pool: makes the batches.
        prefetch: the number of batches made in advance.
        timeout: the time limit of a batch, in seconds.
    """

    def __init__(self, position: Position, length: int, pool: WorkerPool, prefetch: int, timeout: float) -> None:
        super().__init__(position, length)
        self._pool = pool
        self._prefetch = prefetch
        self._timeout = timeout
        self._fork_generation = forks.generation()
        self._ahead: deque[tuple[Job, engine.Handle[Any]]] = deque()
        self._fetch()

    def _head(self) -> PendingBatch | None:
        if self._fork_generation != forks.generation():
            self._restart()
        if self._ahead:
            return self._ahead[0][1]
        self._finish()
        return None

    def _pop(self, result: Any) -> Any:
        self._ahead.popleft()
        batch = super()._pop(result)
        self._fetch()
        return batch

    def _fetch(self) -> None:
        """Submit jobs until `prefetch` batches are pending."""
        while len(self._ahead) < self._prefetch and (task := self.position.take()) is not None:
            self._ahead.append(self._submit(*task))

    def _submit(self, number: int, samples: list[Any]) -> tuple[Job, engine.Handle[Any]]:
        job = Job(samples, number, self._batch_seed(number))
        return job, engine.push(partial(_await_batch, self._pool, job, self._timeout), name="DataLoader")

    def _restart(self) -> None:
        """Submit again the jobs that were pending when this process was forked."""
        self._fork_generation = forks.generation()
        self._ahead = deque(
            (job, handle) if handle.done() and handle.failure is None else self._submit(job.number, job.samples)
            for job, handle in self._ahead
        )

    def close(self) -> None:
        super().close()
        jobs = [job for job, _ in getattr(self, "_ahead", ())]  # __init__ may have failed
        self._ahead = deque()
        if jobs:
            self._pool.forget(jobs)


async def _await_batch(pool: WorkerPool, job: Job, seconds: float) -> Any:
    """Submit a job; return its batch, or a :class:`Failure`."""
    pool.submit(job)
    batch = asyncio.wrap_future(job.future)
    if pool.enforces_timeout:
        return await batch
    await asyncio.wait([batch, asyncio.wrap_future(job.started)], return_when=asyncio.FIRST_COMPLETED)
    try:
        return await asyncio.wait_for(batch, seconds)
    except TimeoutError:
        return Failure(
            DataLoaderTimeout(f"batch {job.number} was not ready after {seconds:g} seconds, the DataLoader's `timeout`")
        )
