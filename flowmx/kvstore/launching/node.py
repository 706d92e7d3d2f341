"""The task on a Dask worker: it has one process of a job as a child, and ends with it.

The task is in a thread of its own, with an event loop of its own, so that Dask's is never held up. Lines of the process
go to the launcher as events of Dask; where it is the job's scheduler, its views do too, so that the launcher need not
reach it. The process ends with the task, with the Dask worker, and when Dask no longer wants the task: it was
cancelled, or its client is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import shutil
import signal
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from distributed import get_worker, secede
from distributed.worker import thread_state

from flowmx.comm.errors import CommError
from flowmx.comm.launch.agent import started
from flowmx.comm.launch.child import Child
from flowmx.comm.launch.hosts import peer
from flowmx.comm.launch.plan import Order
from flowmx.comm.launch.scheduler import ANNOUNCEMENT

__all__ = ["Ended", "control", "give_room", "machine", "relay", "remove", "run"]

LOOK = 1.0  # seconds between looks at whether Dask still wants the task
SOON = 0.05  # seconds for which lines are collected
WANTED = ("executing", "long-running")


class Ended(NamedTuple):
    """The end of a process.

    Attributes:
        status: negative for a signal.
        lines: how many it wrote, so that the launcher knows when it has them all.
    """

    status: int
    lines: int


@dataclass
class Running:
    """A process that runs under a task of this Dask worker.

    Args:
        key: of the task.
        order: for the process.
        topic: of the events.
        worker: the Dask worker.
    """

    key: str
    order: Order
    topic: str
    worker: Any
    address: str = ""
    lines: list[str] = field(default_factory=list)
    written: int = 0
    child: Child | None = None

    def __post_init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()  # in which Dask knows its worker
        self._tasks: set[asyncio.Task[None]] = set()

    def take_line(self, _: str, line: str) -> None:
        """Collect a line of the process, to be sent to the launcher."""
        if not self.lines:
            self.loop.call_later(SOON, self.flush)
        self.lines.append(line)
        self.written += 1
        if self.order.name == "scheduler" and line.startswith(ANNOUNCEMENT) and not self.address:
            self.address = line.removeprefix(ANNOUNCEMENT)
            self._tasks.add(self.loop.create_task(self._views()))

    def flush(self) -> None:
        """Send the lines that were collected."""
        if self.lines:
            self._event({"lines": self.lines})
            self.lines = []

    def give_room(self) -> None:
        """Have the task give up its slot, if it was asked to; from any thread, once the task is here."""
        self.loop.call_soon_threadsafe(self._secede, context=self._context)

    def _secede(self) -> None:
        if self.key in _asked:
            _asked.discard(self.key)
            secede()

    async def close(self) -> None:
        """Send the remaining lines."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.flush()

    async def wanted(self) -> None:
        """Wait until Dask does not want the task any more."""
        while True:
            task = self.worker.state.tasks.get(self.key)
            if task is None or task.state not in WANTED:
                return
            await asyncio.sleep(LOOK)

    def _event(self, message: dict[str, Any]) -> None:
        self.worker.log_event(self.topic, {"key": self.key, "name": self.order.name, **message})

    async def _views(self) -> None:
        """Follow the views of the job's scheduler."""
        line, epoch = peer(self.address, self.order.secret), -1
        try:
            while True:
                with contextlib.suppress(CommError, TimeoutError):
                    view = (await line.call("view", {"epoch": max(epoch, 0)}, timeout=10.0)).header["view"]
                    if view["epoch"] != epoch:
                        epoch = view["epoch"]
                        self._event({"view": view})
                    continue
                await asyncio.sleep(SOON)
        finally:
            await line.close()


_running: dict[str, Running] = {}  # by the task's key
_asked: set[str] = set()  # tasks that are to give up their slots, begun or not


def run(order: Order, topic: str, holds: bool) -> Ended:
    """The task: run a process to its end.

    Args:
        order: for the process.
        topic: of the events with its lines.
        holds: whether the task keeps its slot; otherwise Dask gives that to other tasks.
    """
    worker, key = get_worker(), thread_state.key
    if not holds:
        _asked.add(key)
    return asyncio.run(_run(order, topic, worker, key))


async def _run(order: Order, topic: str, worker: Any, key: str) -> Ended:
    async with _entered(Running(key, order, topic, worker)) as running:
        async with started(order, running.take_line) as running.child:
            unwanted = asyncio.create_task(running.wanted())
            await asyncio.wait({unwanted, running.child.ended}, return_when=asyncio.FIRST_COMPLETED)
            unwanted.cancel()
        await asyncio.gather(unwanted, return_exceptions=True)
    assert running.child.status is not None
    return Ended(running.child.status, running.written)


@contextlib.asynccontextmanager
async def _entered(running: Running) -> AsyncIterator[Running]:
    _running[running.key] = running
    running.give_room()
    try:
        yield running
    finally:
        del _running[running.key]
        _asked.discard(running.key)
        await running.close()


# What the launcher has a Dask worker do besides: none of these waits for anything on Dask's loop.


def control(key: str, number: int) -> bool:
    """Send a process a signal; return whether it is here."""
    running = _running.get(key)
    if running is None or running.child is None:
        return False
    running.loop.call_soon_threadsafe(running.child.signal, signal.Signals(number))
    return True


def give_room(key: str) -> None:
    """Have a task give up its slot, now or when it begins."""
    _asked.add(key)
    running = _running.get(key)
    if running is not None:
        running.give_room()


async def relay(key: str, operation: str, header: dict[str, Any], seconds: float) -> dict[str, Any] | None:
    """Call an operation of the job's scheduler, which runs under a task here; None where there is no answer."""
    running = _running.get(key)
    if running is None or not running.address:
        return None
    call = _call(running.address, running.order.secret, operation, header, seconds)
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, running.loop))


async def _call(
    address: str, secret: bytes | None, operation: str, header: dict[str, Any], seconds: float
) -> dict[str, Any] | None:
    line = peer(address, secret)
    try:
        return (await line.call(operation, header, timeout=seconds)).header
    except (CommError, TimeoutError):
        return None
    finally:
        await line.close()


def machine() -> str:
    """The name of the machine, which also shows that flowmx is there."""
    return socket.gethostname()


def remove(folder: str) -> None:
    """Remove a job's temporary folder."""
    shutil.rmtree(folder, ignore_errors=True)
