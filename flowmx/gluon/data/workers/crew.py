"""All workers of a loader: jobs go in, and batches come out of whichever worker makes them."""

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

from flowmx.gluon.data import loading, seeds
from flowmx.gluon.data.workers.failures import DataLoaderWorkerError
from flowmx.gluon.data.workers.line import Line
from flowmx.gluon.data.workers.package import Package

_tickets = itertools.count(1)


class Failed(NamedTuple):
    """In place of a batch: why there is none. A value, since some exceptions can not be a future's."""

    error: BaseException


class Job:
    """A batch that is to be made.

    Args:
        samples: which samples.
        number: the batch's number.
        seed: what is random follows from it.

    Attributes:
        begun: done when a thread takes it up.
        future: gets the batch, or why there is none.
        wanted: whether somebody waits for it.
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
        """It is made."""
        try:
            self.future.set_result(batch)
        except InvalidStateError:
            pass  # it was given up meanwhile

    def fail(self, error: BaseException) -> None:
        """It can not be made."""
        self.finish(Failed(error))


class Crew:
    """Base of the crews: a queue of jobs, that threads take from."""

    ends_late_ones = False
    """True where the pool itself ends batches that exceed the time limit."""

    def __init__(self) -> None:
        self.closed = False
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._waiting = 0

    def submit(self, job: Job) -> None:
        """Have a batch made."""
        with self._changed:
            if not self.closed:
                self._jobs.append(job)
                self._changed.notify()
                return
        job.fail(_closed())

    def next_job(self, wait: bool = True) -> Job | None:
        """For a thread: a job; None where there is none, or none more to come.

        One that does not wait has work: it leaves jobs to those that have none.
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
        """From a thread: jobs that it has not come to."""
        with self._changed:
            if not self.closed:
                self._jobs.extendleft(reversed(list(jobs)))
                self._changed.notify_all()
                return
        for job in jobs:
            job.fail(_closed())

    def forget(self, jobs: Iterable[Job]) -> None:
        """Nobody wants these batches any more."""
        for job in jobs:
            job.wanted = False
            job.fail(loading.Unwanted())

    def close(self) -> None:
        """End the workers; a second time nothing happens."""
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
        """Called when it is closed."""


class Threads(Crew):
    """Threads of this process, for which its end does not wait.

    Args:
        count: how many.
        make: from a job to a batch.
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
                with seeds.thread_streams(job.seed):
                    job.finish(self._make(job))
            except BaseException as error:
                job.fail(error)
            del job


class Processes(Crew):
    """Worker processes, each with a thread here that talks to it.

    They are started at once, and nobody waits until they are up.

    Args:
        count: how many.
        package: what they get.
        timeout: seconds that one may take for a batch.
    """

    ends_late_ones = True

    def __init__(self, count: int, package: Package, timeout: float) -> None:
        super().__init__()
        self._package = package
        self._pid = os.getpid()
        self._lines: list[Line] = []
        _open.add(self)
        try:
            for index in range(count):
                self._lines.append(Line(self, package, index, timeout))
        except BaseException:
            self.close()
            raise
        for line in self._lines:
            line.start()

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [line.worker.process.pid for line in self._lines if line.worker is not None]

    def forget(self, jobs: Iterable[Job]) -> None:
        jobs = [job for job in jobs if not job.future.done()]
        super().forget(jobs)
        for job in jobs:
            for line in self._lines:
                line.forget(job)

    def _end(self) -> None:
        if self._pid != os.getpid():  # the child of a fork: the workers are its parent's
            return
        for line in self._lines:
            line.close()
        for line in self._lines:
            if line.is_alive() and line is not threading.current_thread():
                line.join(1.0)
        self._package.close()

    def leave(self) -> None:
        """In the child of a fork: have no part in the workers, so that they see when the parent ends."""
        self.closed = True
        self._changed = threading.Condition()
        for line in self._lines:
            if line.worker is not None:
                line.worker.leave()


def _closed() -> DataLoaderWorkerError:
    return DataLoaderWorkerError("the DataLoader's workers were ended before the batch was made")


_open: weakref.WeakSet[Processes] = weakref.WeakSet()


def _close_all() -> None:
    for crew in list(_open):
        crew.close()


def _leave_all() -> None:
    for crew in list(_open):
        crew.leave()


# Registered after the engine's own, and so run before it: the engine waits for batches that are under way.
atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all)
