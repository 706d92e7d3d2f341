"""The task on a Dask worker: it runs one process of a job as its child, and ends with it.

The task runs in a separate thread with its event loop, so that it never blocks Dask's loop. Lines of the process are
sent to the launcher as Dask events. The views of the job's scheduler are sent as events too, so that the launcher need
not connect to it. The process ends with the task, with the Dask worker, and when Dask has released the task: after a
cancellation, or when its client is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import shutil
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from distributed import get_worker, secede
from distributed.worker import thread_state

from flowmx.comm.errors import CommError
from flowmx.comm.launch.agent import run_process
from flowmx.comm.launch.child import Child
from flowmx.comm.launch.hosts import connect_to
from flowmx.comm.launch.plan import ProcessSpec
from flowmx.comm.launch.scheduler import ANNOUNCEMENT

__all__ = ["Ended", "control", "free_slot", "machine", "relay", "remove", "run"]

CHECK_INTERVAL = 1.0  # seconds between checks whether Dask has released the task
FLUSH_DELAY = 0.05  # seconds for which lines are collected
ACTIVE_STATES = ("executing", "long-running")


class Ended(NamedTuple):
    """The end of a process.

    Attributes:
        status: negative for a signal.
        lines: the number of lines that it wrote, so that the launcher knows when it has all of them.
    """

    status: int
    lines: int


@dataclass
class TaskProcess:
    """A process that runs under a task of this Dask worker.

    Args:
        key: the key of the task.
        spec: describes the process.
        topic: the topic of the events.
        worker: the Dask worker.
    """

    key: str
    spec: ProcessSpec
    topic: str
    worker: Any
    address: str = ""
    lines: list[str] = field(default_factory=list)
    written: int = 0
    child: Child | None = None

    def __post_init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()  # Dask finds its worker in this context
        self._tasks: set[asyncio.Task[None]] = set()

    def buffer_line(self, _: str, line: str) -> None:
        """Buffer a line of the process for the launcher."""
        if not self.lines:
            self.loop.call_later(FLUSH_DELAY, self.flush)
        self.lines.append(line)
        self.written += 1
        if self.spec.name == "scheduler" and line.startswith(ANNOUNCEMENT) and not self.address:
            self.address = line.removeprefix(ANNOUNCEMENT)
            self._tasks.add(self.loop.create_task(self._send_views()))

    def flush(self) -> None:
        """Send the buffered lines."""
        if self.lines:
            self._event({"lines": self.lines})
            self.lines = []

    def free_slot(self) -> None:
        """Free the slot of the task if that was requested; may be called from any thread."""
        self.loop.call_soon_threadsafe(self._secede, context=self._context)

    def _secede(self) -> None:
        if self.key in _slots_to_free:
            _slots_to_free.discard(self.key)
            secede()

    async def close(self) -> None:
        """Stop following the scheduler, and send the remaining lines."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.flush()

    async def wait_for_release(self) -> None:
        """Wait until Dask has released the task."""
        while True:
            task = self.worker.state.tasks.get(self.key)
            if task is None or task.state not in ACTIVE_STATES:
                return
            await asyncio.sleep(CHECK_INTERVAL)

    def _event(self, message: Mapping[str, object]) -> None:
        self.worker.log_event(self.topic, {"key": self.key, "name": self.spec.name, **message})

    async def _send_views(self) -> None:
        """Send each new view of the job's scheduler as an event."""
        connection, epoch = connect_to(self.address, self.spec.secret), -1
        try:
            while True:
                with contextlib.suppress(CommError, TimeoutError):
                    view = (await connection.call("view", {"epoch": max(epoch, 0)}, timeout=10.0)).header["view"]
                    if view["epoch"] != epoch:
                        epoch = view["epoch"]
                        self._event({"view": view})
                    continue
                await asyncio.sleep(FLUSH_DELAY)
        finally:
            await connection.close()


_running: dict[str, TaskProcess] = {}  # by the task's key
_slots_to_free: set[str] = set()  # keys of tasks that must free their slots, started or not


def run(spec: ProcessSpec, topic: str, holds: bool) -> Ended:
    """Run a process to completion; this is the function of the Dask task.

    Args:
        spec: describes the process.
        topic: the topic of the events with its lines.
        holds: whether the task occupies its slot; otherwise Dask may use the slot for other tasks.
    """
    worker, key = get_worker(), thread_state.key
    if not holds:
        _slots_to_free.add(key)
    return asyncio.run(_run(spec, topic, worker, key))


async def _run(spec: ProcessSpec, topic: str, worker: object, key: str) -> Ended:
    async with _registered(TaskProcess(key, spec, topic, worker)) as running:
        async with run_process(spec, running.buffer_line) as running.child:
            released = asyncio.create_task(running.wait_for_release())
            await asyncio.wait({released, running.child.ended}, return_when=asyncio.FIRST_COMPLETED)
            released.cancel()
        await asyncio.gather(released, return_exceptions=True)
    assert running.child.status is not None
    return Ended(running.child.status, running.written)


@contextlib.asynccontextmanager
async def _registered(running: TaskProcess) -> AsyncIterator[TaskProcess]:
    _running[running.key] = running
    running.free_slot()
    try:
        yield running
    finally:
        del _running[running.key]
        _slots_to_free.discard(running.key)
        await running.close()


# Functions that the launcher calls on a Dask worker. None of them blocks Dask's event loop.


def control(key: str, number: int) -> bool:
    """Send a process a signal; return whether it runs here."""
    running = _running.get(key)
    if running is None or running.child is None:
        return False
    running.loop.call_soon_threadsafe(running.child.signal, signal.Signals(number))
    return True


def free_slot(key: str) -> None:
    """Free the slot of a task, now or when it starts."""
    _slots_to_free.add(key)
    running = _running.get(key)
    if running is not None:
        running.free_slot()


async def relay(key: str, operation: str, header: dict[str, Any], seconds: float) -> dict[str, Any] | None:
    """Call an operation of the job's scheduler, which runs here; return None if it does not answer."""
    running = _running.get(key)
    if running is None or not running.address:
        return None
    call = _call(running.address, running.spec.secret, operation, header, seconds)
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, running.loop))


async def _call(
    address: str, secret: bytes | None, operation: str, header: dict[str, Any], seconds: float
) -> dict[str, Any] | None:
    connection = connect_to(address, secret)
    try:
        return (await connection.call(operation, header, timeout=seconds)).header
    except (CommError, TimeoutError):
        return None
    finally:
        await connection.close()


def machine() -> str:
    """Return the host name; a successful call also shows that flowmx can be imported."""
    return socket.gethostname()


def remove(folder: str) -> None:
    """Remove a job's temporary folder."""
    shutil.rmtree(folder, ignore_errors=True)
