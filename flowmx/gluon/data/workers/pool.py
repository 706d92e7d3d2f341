"""Pools of workers: a queue of jobs, and threads or processes that turn them into batches."""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from typing import Any, NamedTuple

from flowmx.gluon.data import batch_maker, seeds
from flowmx.gluon.data.workers.connection import WorkerThread
from flowmx.gluon.data.workers.failures import DataLoaderWorkerError
from flowmx.gluon.data.workers.package import Package

_tickets = itertools.count(1)


class Failed(NamedTuple):
    """The error that making a batch raised, as a value, since a future can not hold some exceptions."""

    error: BaseException


class Job:
    """A batch to make.

    Args:
        samples: the indices of its samples.
        number: the batch's number.
        seed: the seed of its random numbers.

    Attributes:
        begun: done once a thread has taken the job.
        future: the batch, or a :class:`Failed`.
        wanted: False once the job was abandoned.
    """

    __slots__ = ("begun", "future", "number", "samples", "seed", "ticket", "wanted")

    def __init__(self, samples: list[Any], number: int, seed: int) -> None:
        self.samples = samples
        self.number = number
        self.seed = seed
        self.ticket = next(_tickets)
        self.begun: Future[None] = Future()
        self.future: Future[Any] = Future()
        self.wanted = True

    def finish(self, batch: Any) -> None:
        """Complete the job with its batch."""
        try:
            self.future.set_result(batch)
        except InvalidStateError:
            pass  # it was abandoned meanwhile

    def fail(self, error: BaseException) -> None:
        """Complete the job with an error."""
        self.finish(Failed(error))


class WorkerPool:
    """Base of the pools: a queue of jobs, which threads take from."""

    ends_late_ones = False
    """True where the pool itself ends batches that exceed the time limit."""

    def __init__(self) -> None:
        self.closed = False
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._waiting = 0

    def submit(self, job: Job) -> None:
        """Queue a job; a closed pool fails it at once."""
        with self._changed:
            if not self.closed:
                self._jobs.append(job)
                self._changed.notify()
                return
        job.fail(_closed())

    def next_job(self, wait: bool = True) -> Job | None:
        """Take a job from the queue; None where it is empty (without `wait`), or once the pool is closed.

        A thread that does not wait has work already: it leaves jobs to idle threads.
        """
        with self._changed:
            while wait and not self.closed and not self._wanted():
                self._waiting += 1
                self._changed.wait()
                self._waiting -= 1
            if self.closed or (self._waiting and not wait) or not self._wanted():
                return None
            return self._jobs.popleft()

    def _wanted(self) -> bool:
        """True where a job is queued that was not abandoned; drops abandoned ones. Call with the lock held."""
        while self._jobs and not self._jobs[0].wanted:
            self._jobs.popleft()
        return bool(self._jobs)

    def take_back(self, jobs: Iterable[Job]) -> None:
        """Put jobs that a thread has not begun back at the head of the queue."""
        with self._changed:
            if not self.closed:
                self._jobs.extendleft(reversed(list(jobs)))
                self._changed.notify_all()
                return
        for job in jobs:
            job.fail(_closed())

    def forget(self, jobs: Iterable[Job]) -> None:
        """Abandon jobs."""
        for job in jobs:
            job.wanted = False
            job.fail(batch_maker.Unwanted())

    def close(self) -> None:
        """End the workers and fail the queued jobs; a second call does nothing."""
        with self._changed:
            if self.closed:
                return
            self.closed = True
            left, self._jobs = self._jobs, deque()
            self._changed.notify_all()
        for job in left:
            job.fail(_closed())
        self._end()

    def _end(self) -> None:
        """End the workers; called once, by `close`."""


class ThreadPool(WorkerPool):
    """A pool of daemon threads.

    Args:
        count: the number of threads.
        make: makes a batch from a job.
    """

    def __init__(self, count: int, make: Callable[[Job], Any]) -> None:
        super().__init__()
        self._make = make
        for index in range(count):
            threading.Thread(target=self._serve, name=f"flowmx-load-{index}", daemon=True).start()

    def _serve(self) -> None:
        while (job := self.next_job()) is not None:
            job.begun.set_result(None)
            try:
                with seeds.seeded_thread(job.seed):
                    job.finish(self._make(job))
            except BaseException as error:
                job.fail(error)
            del job


class ProcessPool(WorkerPool):
    """A pool of worker processes, each served by a thread of this process.

    The constructor starts them, and does not wait until they run.

    Args:
        count: the number of processes.
        package: the data set and the batch function.
        timeout: the time limit of a batch, in seconds.
    """

    ends_late_ones = True

    def __init__(self, count: int, package: Package, timeout: float) -> None:
        super().__init__()
        self._package = package
        self._pid = os.getpid()
        self._threads: list[WorkerThread] = []
        _open.add(self)
        try:
            for index in range(count):
                self._threads.append(WorkerThread(self, package, index, timeout))
        except BaseException:
            self.close()
            raise
        for thread in self._threads:
            thread.start()

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
        if self._pid != os.getpid():  # the child of a fork: the workers are its parent's
            return
        for thread in self._threads:
            thread.close()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(1.0)
        self._package.close()

    def leave(self) -> None:
        """Close the copies of the sockets in the child of a fork, so that the workers see the parent's end."""
        self.closed = True
        self._changed = threading.Condition()
        for thread in self._threads:
            if thread.worker is not None:
                thread.worker.leave()


def _closed() -> DataLoaderWorkerError:
    return DataLoaderWorkerError("the DataLoader's workers were ended before the batch was made")


_open: weakref.WeakSet[ProcessPool] = weakref.WeakSet()


def _close_all() -> None:
    for pool in list(_open):
        pool.close()


def _leave_all() -> None:
    for pool in list(_open):
        pool.leave()


# Registered after the engine's own, and so run before it: the engine waits for batches that are under way.
atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all)
