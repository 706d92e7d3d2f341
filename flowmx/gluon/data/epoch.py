"""The iterators of one epoch of a `DataLoader`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from flowmx import engine
from flowmx.gluon.data import batch_maker, seeds
from flowmx.gluon.data.position import Position
from flowmx.gluon.data.workers import DataLoaderTimeout, Failed, Job, WorkerPool

if TYPE_CHECKING:
    from flowmx.gluon.data.loader import DataLoader


class Epoch:
    """Base of the epochs.

    Args:
        position: the position in it.
        length: the number of batches.

    Attributes:
        loader: whose epoch it is, once a loop has it: so the workers live as long as the loop.
        position: the position in it.
    """

    loader: DataLoader | None = None

    def __init__(self, position: Position, length: int) -> None:
        self.position = position
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Epoch:
        return self

    def __aiter__(self) -> Epoch:
        return self

    def __next__(self) -> Any:
        raise NotImplementedError

    async def __anext__(self) -> Any:
        raise NotImplementedError

    def next(self) -> Any:
        """The next batch (MXNet's name)."""
        return self.__next__()

    def close(self) -> None:
        """Give the rest of it up."""
        self.loader = None

    def __del__(self) -> None:
        self.close()

    def _seed_of(self, number: int) -> int:
        start = self.position.start
        return seeds.derive(start.seed, start.epoch, number)

    def _outcome(self, made: Any) -> Any:
        """Hand a batch to the loop, or raise the error that making it raised; the epoch ends with an error."""
        if isinstance(made, Failed):
            self.close()
            if isinstance(made.error, StopIteration | StopAsyncIteration):  # these would end the loop without a word
                raise RuntimeError(f"the data set raised {type(made.error).__name__}") from made.error
            raise made.error
        self.position.advance()
        return made if self.loader is None else self.loader._given(made)

    def _finish(self) -> None:
        """Mark the epoch as finished."""
        loader = self.loader
        self.close()
        if loader is not None and not self.position.finished:
            self.position.finished = True
            loader._ended()


class SyncEpoch(Epoch):
    """Batches that are made when they are asked for.

    Args:
        position: the position in it.
        length: the number of batches.
        dataset: the samples.
        batchify_fn: puts them together.
    """

    def __init__(self, position: Position, length: int, dataset: Any, batchify_fn: Callable[[list[Any]], Any]) -> None:
        super().__init__(position, length)
        self._make = partial(batch_maker.make, dataset, batchify_fn)

    def __next__(self) -> Any:
        task = self._task()
        if task is None:
            self._finish()
            raise StopIteration
        return self._outcome(self._made(*task))

    async def __anext__(self) -> Any:
        task = self._task()
        if task is None:
            self._finish()
            raise StopAsyncIteration
        return self._outcome(await asyncio.to_thread(self._made, *task))

    def _task(self) -> tuple[int, list[Any]] | None:
        return self.position.take() if self.loader is not None else None

    def _made(self, number: int, samples: list[Any]) -> Any:
        try:
            with seeds.seeded_block(self._seed_of(number)):
                return self._make(samples, number)
        except Exception as error:
            return Failed(error)


class PrefetchedEpoch(Epoch):
    """Batches that workers make ahead; each is an operation of the engine.

    Args:
        position: the position in it.
        length: the number of batches.
        pool: makes the batches.
        prefetch: the number of batches made ahead.
        timeout: seconds that one may take.
    """

    def __init__(self, position: Position, length: int, pool: WorkerPool, prefetch: int, timeout: float) -> None:
        super().__init__(position, length)
        self._pool = pool
        self._prefetch = prefetch
        self._timeout = timeout
        self._ahead: deque[tuple[Job, engine.Handle]] = deque()
        self._fetch()

    def __next__(self) -> Any:
        if not self._ahead:
            self._finish()
            raise StopIteration
        return self._taken(self._ahead[0][1].wait())

    async def __anext__(self) -> Any:
        if not self._ahead:
            self._finish()
            raise StopAsyncIteration
        return self._taken(await self._ahead[0][1])

    def _taken(self, made: Any) -> Any:
        self._ahead.popleft()
        batch = self._outcome(made)
        self._fetch()
        return batch

    def _fetch(self) -> None:
        """Have as many batches under way as are to be ahead."""
        while len(self._ahead) < self._prefetch and (task := self.position.take()) is not None:
            job = Job(task[1], task[0], self._seed_of(task[0]))
            handle = engine.push(partial(_fetched, self._pool, job, self._timeout), name="DataLoader")
            self._ahead.append((job, handle))

    def close(self) -> None:
        super().close()
        ahead = [job for job, _ in getattr(self, "_ahead", ())]  # it may have failed before it had any
        self._ahead = deque()
        if ahead:
            self._pool.forget(ahead)


async def _fetched(pool: WorkerPool, job: Job, seconds: float) -> Any:
    """Submit a job; return its batch, or a :class:`Failed`."""
    pool.submit(job)
    made = asyncio.wrap_future(job.future)
    if pool.ends_late_ones:
        return await made
    await asyncio.wait([made, asyncio.wrap_future(job.begun)], return_when=asyncio.FIRST_COMPLETED)
    try:
        return await asyncio.wait_for(made, seconds)
    except TimeoutError:
        return Failed(
            DataLoaderTimeout(
                f"batch {job.number} was not ready after {seconds:g} seconds; the DataLoader's `timeout` says how long "
                "it may take"
            )
        )
