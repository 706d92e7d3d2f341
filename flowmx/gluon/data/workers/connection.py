"""A worker process, and the thread of the loader's process that serves it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowmx.gluon.data.workers import failures, messages, process, template
from flowmx.gluon.data.workers.blocks import LoaderBlocks
from flowmx.gluon.data.workers.startup_package import Package

if TYPE_CHECKING:
    from flowmx.gluon.data.workers.pool import Job, ProcessPool

_DEPTH = 2
"""Tasks in flight per worker, so that the next task is ready when one is done."""
_START_TIMEOUT = 300.0
"""Minimum time limit in seconds for a worker's start, which takes long on a busy machine."""
_ENVIRONMENT = {
    "FLOWMX_ENGINE_TYPE": "NaiveEngine", "FLOWMX_CPU_KERNEL_NTHREADS": "1", "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "FLOWMX_DASHBOARD": "",
}  # fmt: skip
"""Workers run operators synchronously on one core, because other workers use the other cores."""


class Worker:
    """A worker process.

    Args:
        package: the data set and the batch function.
        name: the worker's name in error messages.
    """

    def __init__(self, package: Package, name: str) -> None:
        self.connection, worker_end = socket.socketpair()
        with worker_end:
            self.process = _start_process(worker_end.fileno(), package)
        self._label = name
        self.blocks = LoaderBlocks()

    @property
    def name(self) -> str:
        """The worker's name in error messages."""
        return f"{self._label} (pid {self.process.pid})"

    def end(self, wait: float = 5.0) -> int | None:
        """Wait for the process to end, killing it after `wait` seconds; return its exit code."""
        self.connection.close()
        try:
            return self.process.wait(wait)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.process.wait(wait)

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()

    def leave(self) -> None:
        """Close this process's copy of the socket, in the child of a fork."""
        self.connection.close()
        if isinstance(self.process, template.ForkedProcess):
            self.process.leave()
        else:
            self.process.returncode = 0  # the worker is not a child of this process


def _start_process(connection: int, package: Package) -> subprocess.Popen[bytes] | template.ForkedProcess:
    """Start a worker: forked by the template, or else a new interpreter."""
    environment = {**os.environ, **_ENVIRONMENT}
    if template.available:
        return template.fork(connection, package.descriptor, process.startup_data(package), environment)
    # A separate process group, so that Ctrl-C interrupts only the loader's process.
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
        self._label = f"DataLoader worker {index}"
        self._timeout = timeout
        self._jobs: deque[Job] = deque()  # in flight
        self._send_lock = threading.RLock()  # the garbage collector may end a loop while a task is sent
        self.worker: Worker | None = self._new_worker()

    def _new_worker(self) -> Worker:
        worker = Worker(self._package, self._label)
        worker.connection.settimeout(max(_START_TIMEOUT, self._timeout))
        return worker

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
            if self._pool.closed:  # closed while the worker started; nothing else would end it
                self.close()
        free, drop = self.worker.blocks.take_returns()
        self._jobs.append(job)
        task = messages.Task(job.task_id, job.samples, job.seed, job.number, free, drop)
        try:
            with self._send_lock:
                messages.send_task(self.worker.connection, task)
        except (OSError, ValueError):
            self._drop_worker(failures.worker_ended_error)
        except Exception as error:  # samples that cannot be pickled
            self._jobs.remove(job)
            job.fail(error)

    def forget(self, job: Job) -> None:
        """Abandon a job if the worker has it; callable from any thread."""
        worker = self.worker
        if worker is None or job not in tuple(self._jobs):
            return
        try:
            with self._send_lock:
                messages.send_task(worker.connection, messages.Task(job.task_id, None))
        except OSError:
            pass  # the worker has ended, or is ending

    # -- results -----------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        worker = self.worker
        if worker is None:  # lost while a task was sent
            return
        try:
            result = messages.receive_result(worker.connection)
        except TimeoutError:
            self._drop_worker(self._timeout_error)
        except (EOFError, OSError):
            self._drop_worker(failures.worker_ended_error)
        else:
            self._handle_result(worker, result.kind, worker.blocks.open(result))

    def _handle_result(self, worker: Worker, kind: int, value: Any) -> None:
        if kind == messages.READY:
            worker.connection.settimeout(self._timeout)
            return
        if kind == messages.BATCH:
            self._jobs.popleft().finish(value)
            return
        error = failures.rebuild(failures.Report(*value), worker.name)
        if kind == messages.REFUSED:
            self._drop_worker(lambda *_: error)
        else:
            self._jobs.popleft().fail(error)

    def _drop_worker(self, make_error: Any) -> None:
        """Drop the worker: fail its current job, and return its other jobs to the queue."""
        worker, self.worker = self.worker, None
        assert worker is not None
        if make_error is not failures.worker_ended_error:
            worker.kill()
        code = worker.end()
        jobs, self._jobs = self._jobs, deque()
        if jobs and not self._pool.closed:
            first = jobs.popleft()
            first.fail(make_error(worker.name, code, f"at batch {first.number}, samples {_abbreviate(first.samples)}"))
        self._pool.requeue(jobs)

    def _timeout_error(self, name: str, code: int | None, activity: str) -> failures.DataLoaderTimeout:
        return failures.DataLoaderTimeout(
            f"{name} was killed: it took more than {self._timeout:g} seconds {activity} (the DataLoader's `timeout`)"
        )

    def close(self) -> None:
        """Kill the process; the thread ends soon after."""
        worker = self.worker
        if worker is None:
            return
        worker.kill()
        try:
            worker.connection.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closes the socket
        except OSError:
            pass
        worker.process.wait()


def _abbreviate(samples: Sequence[object]) -> str:
    return f"{samples!r}" if len(samples) <= 8 else f"{samples[:8]!r} and {len(samples) - 8} more"
