"""A worker process, and the thread of the loader's process that talks to it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from flowmx.gluon.data.workers import failures, messages, process, template
from flowmx.gluon.data.workers.blocks import Seen
from flowmx.gluon.data.workers.package import Package

if TYPE_CHECKING:
    from flowmx.gluon.data.workers.pool import Job, ProcessPool

_DEPTH = 2
"""Tasks in flight per worker: the next one is there when one is done."""
_STARTING = 300.0
"""Seconds that a worker may take until it is up, whatever `timeout` says of a batch: a busy machine is no error."""
_ENVIRONMENT = {
    "FLOWMX_ENGINE_TYPE": "NaiveEngine", "FLOWMX_CPU_KERNEL_NTHREADS": "1", "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "FLOWMX_DASHBOARD": "",
}  # fmt: skip
"""In a worker an operator runs where it is called: the other cores are for the other workers."""


class Worker:
    """A worker process.

    Args:
        package: the data set and the batch function.
        name: its name in error messages.
    """

    def __init__(self, package: Package, name: str) -> None:
        here, there = socket.socketpair()
        with there:
            self.connection = here
            self.process = _started(there.fileno(), package)
        self._called = name
        self.blocks = Seen()

    @property
    def name(self) -> str:
        """Its name in error messages."""
        return f"{self._called} (pid {self.process.pid})"

    def end(self, wait: float = 5.0) -> int | None:
        """End the process, where it has not ended by itself; returns its exit code."""
        self.connection.close()
        try:
            return self.process.wait(wait)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.process.wait(wait)

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()

    def leave(self) -> None:
        """Close the copy of its socket in the child of a fork."""
        self.connection.close()
        if isinstance(self.process, template.Forked):
            self.process.leave()
        else:
            self.process.returncode = 0  # it is not this process's child


def _started(connection: int, package: Package) -> subprocess.Popen[bytes] | template.Forked:
    """A new worker: forked by the template, or else an interpreter of its own."""
    environment = {**os.environ, **_ENVIRONMENT}
    if template.available:
        return template.fork(connection, package.descriptor, process.start_of(package), environment)
    # A process group of its own: Ctrl-C is for the loader's process.
    return subprocess.Popen(
        [sys.executable, *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
         *process.command(connection, package)],
        stdin=subprocess.DEVNULL, pass_fds=(connection, package.descriptor), process_group=0, env=environment,
    )  # fmt: skip


class WorkerThread(threading.Thread):
    """Sends jobs from the pool's queue to a worker process, and completes them with its results.

    Args:
        pool: the pool.
        package: the data set and the batch function.
        index: the worker's number.
        timeout: the time limit of a batch, in seconds.
    """

    def __init__(self, pool: ProcessPool, package: Package, index: int, timeout: float) -> None:
        super().__init__(name=f"flowmx-loader-{index}", daemon=True)
        self._pool = pool
        self._package = package
        self._called = f"DataLoader worker {index}"
        self._timeout = timeout
        self._jobs: deque[Job] = deque()  # in flight
        self._sending = threading.RLock()  # the collector may end a loop while a task is being sent
        self.worker: Worker | None = self._new_worker()

    def _new_worker(self) -> Worker:
        made = Worker(self._package, self._called)
        made.connection.settimeout(max(_STARTING, self._timeout))
        return made

    def run(self) -> None:
        """Serve the worker until the pool is closed."""
        try:
            self._serve()
        finally:
            if self.worker is not None:
                self.worker.connection.close()

    def _serve(self) -> None:
        while True:
            while len(self._jobs) < _DEPTH:
                job = self._pool.next_job(wait=not self._jobs)
                if job is None:
                    break
                self._send(job)
            if not self._jobs:
                return
            self._receive()

    # -- tasks -------------------------------------------------------------------------------------------------

    def _send(self, job: Job) -> None:
        if self.worker is None:
            self.worker = self._new_worker()
            if self._pool.closed:  # meanwhile: nothing else would end the new worker
                self.close()
        free, drop = self.worker.blocks.news()
        self._jobs.append(job)
        task = messages.Task(job.ticket, job.samples, job.seed, job.number, free, drop)
        try:
            with self._sending:
                messages.send_task(self.worker.connection, task)
        except (OSError, ValueError):
            self._lose(failures.ended)
        except Exception as error:  # samples that can not be pickled
            self._jobs.remove(job)
            job.fail(error)

    def forget(self, job: Job) -> None:
        """Tell the worker that a job is not wanted any more, if it has it; from any thread."""
        worker = self.worker
        if worker is None or job not in tuple(self._jobs):
            return
        try:
            with self._sending:
                messages.send_task(worker.connection, messages.Task(job.ticket, None))
        except OSError:
            pass  # the worker has ended, or is ending

    # -- results -----------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        worker = self.worker
        if worker is None:  # it was lost while it was sent a task
            return
        try:
            result = messages.receive_result(worker.connection)
        except TimeoutError:
            self._lose(self._late)
        except (EOFError, OSError):
            self._lose(failures.ended)
        else:
            self._take(worker, result.kind, worker.blocks.open(result))

    def _take(self, worker: Worker, kind: int, value: Any) -> None:
        if kind == messages.READY:
            worker.connection.settimeout(self._timeout)
            return
        if kind == messages.BATCH:
            self._jobs.popleft().finish(value)
            return
        error = failures.rebuilt(failures.Report(*value), worker.name)
        if kind == messages.REFUSED:
            self._lose(lambda *_: error)
        else:
            self._jobs.popleft().fail(error)

    def _lose(self, why: Any) -> None:
        """Give up the worker: its current job fails, and its other jobs go back to the queue."""
        worker, self.worker = self.worker, None
        assert worker is not None
        if why is not failures.ended:
            worker.kill()
        code = worker.end()
        jobs, self._jobs = self._jobs, deque()
        if jobs and not self._pool.closed:
            first = jobs.popleft()
            first.fail(why(worker.name, code, f"at batch {first.number}, samples {_shown(first.samples)}"))
        self._pool.take_back(jobs)

    def _late(self, name: str, code: int | None, doing: str) -> failures.DataLoaderTimeout:
        return failures.DataLoaderTimeout(
            f"{name} was given up: it took more than {self._timeout:g} seconds {doing}; the DataLoader's `timeout` "
            "says how long it may"
        )

    def close(self) -> None:
        """End the process, and with it, soon, the thread."""
        worker = self.worker
        if worker is None:
            return
        worker.kill()
        try:
            worker.connection.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closes it
        except OSError:
            pass
        worker.process.wait()


def _shown(samples: list[Any]) -> str:
    return f"{samples!r}" if len(samples) <= 8 else f"{samples[:8]!r} and {len(samples) - 8} more"
