"""Pools of workers: a queue of jobs, and the threads or processes that make the batches."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from typing import Any

from flowmx import forks, process_hooks
from flowmx.data.pending_batches import Failure
from flowmx.gluon.data import batch_maker, seeds
from flowmx.gluon.data.workers.connection import WorkerThread
from flowmx.gluon.data.workers.failures import DataLoaderWorkerError
from flowmx.gluon.data.workers.startup_package import Package

_task_ids = itertools.count(1)


class Job:
    """A batch to make.

    Args:
        samples: the indices of the batch's samples.
        number: the batch's number.
        seed: the seed of the batch's random numbers.

    Attributes:
        started: a future that completes when a thread takes the job.
        future: the batch, or a :class:`Failure`.
        is_needed: False once the job has been abandoned.
    """

    __slots__ = ("future", "is_needed", "number", "samples", "seed", "started", "task_id")

    def __init__(self, samples: list[Any], number: int, seed: int) -> None:
        self.samples = samples
        self.number = number
        self.seed = seed
        self.task_id = next(_task_ids)
        self.started: Future[None] = Future()
        self.future: Future[Any] = Future()
        self.is_needed = True

    def finish(self, batch: object) -> None:
        """Complete the job with its batch."""
        try:
            self.future.set_result(batch)
        except InvalidStateError:
            pass  # abandoned in the meantime

    def fail(self, error: BaseException) -> None:
        """Complete the job with an error."""
        self.finish(Failure(error))


class WorkerPool:
    """Base class of pools: a queue of jobs for worker threads. The child of a fork starts new workers."""

    enforces_timeout = False
    """Whether the pool enforces the time limit of batches."""

    def __init__(self) -> None:
        self.closed = False
        self._clear()
        forks.in_child(self, lambda pool: pool._leave())

    def _clear(self) -> None:
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._waiting = 0
        self._has_workers = False

    def _leave(self) -> None:
        """Discard workers and jobs in the child of a fork: they belong to its parent."""
        self._clear()

    def _start(self) -> None:
        """Start the workers, without waiting for them."""
        self._has_workers = True

    def submit(self, job: Job) -> None:
        """Queue a job; a closed pool fails it immediately."""
        with self._changed:
            if not self.closed:
                if not self._has_workers:
                    self._start()
                self._jobs.append(job)
                self._changed.notify()
                return
        job.fail(_closed_error())

    def next_job(self, wait: bool = True) -> Job | None:
        """Take a job from the queue; None if it is empty (without `wait`) or the pool is closed.

        A thread that does not wait is busy, so idle threads take precedence.
        """
        with self._changed:
            while wait and not self.closed and not self._has_job():
                self._waiting += 1
                self._changed.wait()
                self._waiting -= 1
            if self.closed or (self._waiting and not wait) or not self._has_job():
                return None
            return self._jobs.popleft()

    def _has_job(self) -> bool:
        """Return whether a job is queued, after dropping abandoned ones. Call with the lock held."""
        while self._jobs and not self._jobs[0].is_needed:
            self._jobs.popleft()
        return bool(self._jobs)

    def requeue(self, jobs: Iterable[Job]) -> None:
        """Put jobs that a thread took but did not start back at the head of the queue."""
        with self._changed:
            if not self.closed:
                self._jobs.extendleft(reversed(list(jobs)))
                self._changed.notify_all()
                return
        for job in jobs:
            job.fail(_closed_error())

    def forget(self, jobs: Iterable[Job]) -> None:
        """Abandon jobs."""
        for job in jobs:
            job.is_needed = False
            job.fail(batch_maker.BatchAbandoned())

    def close(self) -> None:
        """End the workers and fail the queued jobs; a second call has no effect."""
        with self._changed:
            if self.closed:
                return
            self.closed = True
            remaining, self._jobs = self._jobs, deque()
            self._changed.notify_all()
        for job in remaining:
            job.fail(_closed_error())
        self._end()

    def _end(self) -> None:
        """End the workers; `close` calls it once."""


class ThreadPool(WorkerPool):
    """A pool of daemon threads.

    Args:
        count: the number of threads.
        make: makes a batch from a job.
    """

    def __init__(self, count: int, make: Callable[[Job], Any]) -> None:
        super().__init__()
        self._count, self._make = count, make
        self._start()

    def _start(self) -> None:
        super()._start()
        for index in range(self._count):
            threading.Thread(target=self._serve, name=f"flowmx-load-{index}", daemon=True).start()

    def _serve(self) -> None:
        while (job := self.next_job()) is not None:
            job.started.set_result(None)
            try:
                with seeds.seeded_thread(job.seed):
                    job.finish(self._make(job))
            except BaseException as error:  # any error of the user's data set is the result
                job.fail(error)
            del job


class ProcessPool(WorkerPool):
    """A pool of worker processes, with one thread in this process for each.

    The constructor starts the processes and does not wait for them.

    Args:
        count: the number of processes.
        package: the data set and the batch function.
        timeout: the time limit of a batch, in seconds.
    """

    enforces_timeout = True

    def __init__(self, count: int, package: Package, timeout: float) -> None:
        super().__init__()
        self._count, self._package, self._timeout = count, package, timeout
        self._threads: list[WorkerThread] = []
        _open.add(self)
        try:
            self._start()
        except BaseException:  # cleanup, also when interrupted
            self.close()
            raise

    def _start(self) -> None:
        super()._start()
        for index in range(self._count):
            self._threads.append(WorkerThread(self, self._package, index, self._timeout))
        for thread in self._threads:
            thread.start()

    def _leave(self) -> None:
        for thread in self._threads:
            if thread.worker is not None:  # otherwise the workers would not notice the parent's end
                thread.worker.leave()
        self._threads = []
        super()._leave()

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [thread.worker.process.pid for thread in self._threads if thread.worker is not None]

    def forget(self, jobs: Iterable[Job]) -> None:
        jobs = [job for job in jobs if not job.future.done()]
        super().forget(jobs)
        for job in jobs:
            for thread in self._threads:
                thread.forget(job)

    def _end(self) -> None:
        for thread in self._threads:
            thread.close()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(1.0)
        self._package.close()


def _closed_error() -> DataLoaderWorkerError:
    return DataLoaderWorkerError("the DataLoader's workers ended before the batch was made")


_open: weakref.WeakSet[ProcessPool] = weakref.WeakSet()


def _close_all() -> None:
    for pool in list(_open):
        pool.close()


# Registered after the engine's exit handler, so it runs first: the engine waits for pending batches.
process_hooks.at_exit(_close_all)
