"""An event loop with simulated time, on which simulated processes take turns in an order that a seed determines.

Callbacks of one process run in the order in which they were scheduled, as on a real loop. The order among processes,
the duration of each callback and the delay of work in threads are drawn from the seed. When no callback is ready, time
jumps to the next timer.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import hashlib
import heapq
import itertools
import random
import signal
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from tests.world.processes import CURRENT, Process

if TYPE_CHECKING:
    from tests.world.network import Network, Socket

__all__ = ["Loop", "WorldError"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

START = 1_700_000_000.0
"""The date at the start of a world, in seconds of :func:`time.time`."""
MAX_STEP = 2e-5
"""The longest duration of a callback, in seconds."""
MAX_THREAD_DELAY = 2e-3
"""The longest delay of work in a thread, in seconds."""
BURST = 8
"""The maximum number of callbacks that a process runs in one turn."""


class WorldError(Exception):
    """The program did something that a world cannot simulate."""


class _Future(asyncio.Future[Any]):
    """A future whose hash is its number: iterating over a set of futures has the same order in each run."""

    def __init__(self, *, loop: Loop) -> None:
        super().__init__(loop=loop)
        self._number = next(loop.numbers)

    def __hash__(self) -> int:
        return self._number


class _Task(asyncio.Task[Any]):
    """A task whose hash is its number."""

    def __init__(self, coroutine: Any, *, loop: Loop, **options: Any) -> None:
        self._number = next(loop.numbers)
        super().__init__(coroutine, loop=loop, **options)

    def __hash__(self) -> int:
        return self._number


def _new_task(loop: Any, coroutine: Any, context: Any = None, **options: Any) -> _Task:
    task = _Task(coroutine, loop=loop, context=context)
    CURRENT.get().tasks.append(task)
    return task


class Loop(asyncio.BaseEventLoop):
    """An event loop for simulated processes.

    Args:
        seed: determines the order of the processes.

    Attributes:
        network: the network, set by the world.
        steps: the number of callbacks that have run.
        numbers: the numbers of futures and tasks.
    """

    network: Network

    def __init__(self, seed: object) -> None:
        super().__init__()
        self.random = random.Random(f"{seed} schedule")
        self.steps = 0
        self.numbers = itertools.count()
        self.kernel = Process("world", "127.0.0.1", self)
        self._now = 0.0
        self._stranger = ""
        self._digest = hashlib.blake2b(digest_size=16)
        self._thread = threading.get_ident()
        self._active: dict[Process, None] = {}
        """The processes with callbacks that are ready, in the order in which they became so."""
        self._readers: dict[int, asyncio.Handle] = {}
        self.set_task_factory(_new_task)
        self.set_exception_handler(_note_error)

    # -- time and turns --------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def date(self) -> float:
        """Return the simulated time of the day, in seconds of :func:`time.time`."""
        return START + self._now

    def digest(self) -> str:
        """Return a hash of all turns so far."""
        return self._digest.hexdigest()

    def record(self, *fields: object) -> None:
        """Add fields to the hash of the turns."""
        self._digest.update(repr(fields).encode())

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def _run_once(self) -> None:
        if self._stranger:
            raise WorldError(f"the order is not the seed's: {self._stranger}")
        self._sort_ready()
        self._fire_timers()
        while not self._active:
            self._jump()
        active = list(self._active)
        process = active[0] if len(active) == 1 else active[self.random.randrange(len(active))]
        for _ in range(min(len(process.ready), self.random.randint(1, BURST))):
            if process.ready and process.is_running:
                self._step(process, process.ready.popleft())
        if not process.ready or not process.is_running:
            self._active.pop(process, None)

    def _step(self, process: Process, handle: asyncio.Handle) -> None:
        if handle._cancelled:
            return
        self._now += self.random.random() * MAX_STEP
        self.steps += 1
        self._digest.update(struct.pack("<dHI", self._now, process.number, len(process.ready)))
        handle._run()
        self._sort_ready()

    def _sort_ready(self) -> None:
        """Move callbacks to the queues of their processes; those of ended processes are dropped."""
        ready: deque[Any] = self._ready  # type: ignore[attr-defined]
        while ready:
            handle = ready.popleft()
            process = _process_of(handle)
            if process.is_alive:
                process.ready.append(handle)
                if process.is_running:
                    self._active[process] = None

    def activate(self, process: Process) -> None:
        """Give a process turns again."""
        if process.ready and process.is_running:
            self._active[process] = None

    def _fire_timers(self) -> None:
        timers: list[Any] = self._scheduled  # type: ignore[attr-defined]
        while timers and (timers[0]._cancelled or timers[0]._when <= self._now):
            handle = heapq.heappop(timers)
            handle._scheduled = False
            if handle._cancelled:
                self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
            else:
                self._ready.append(handle)  # type: ignore[attr-defined]
        self._sort_ready()

    def _jump(self) -> None:
        """Advance the time to the next timer."""
        timers: list[Any] = self._scheduled  # type: ignore[attr-defined]
        if not timers:
            raise WorldError("nothing can happen any more: no callback is ready and no timer is set")
        self._now = max(self._now, timers[0]._when)
        self._fire_timers()

    # -- what real loops do with threads, signals and files --------------------------------------------

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if threading.get_ident() != self._thread:
            self._stranger = f"the thread {threading.current_thread().name} calls {callback}"
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        future = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:  # the caller's function may raise anything
                future.set_exception(error)

        self.call_later(self.random.random() * MAX_THREAD_DELAY, run)
        return future

    def add_signal_handler(self, sig: int, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        CURRENT.get().signals[signal.Signals(sig)] = asyncio.Handle(callback, args, self, contextvars.copy_context())

    def remove_signal_handler(self, sig: int) -> bool:
        return CURRENT.get().signals.pop(signal.Signals(sig), None) is not None

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))]

    def add_reader(self, fd: Any, callback: Callable[[*Ts], Any], *args: *Ts) -> None:
        self._readers[fd] = asyncio.Handle(callback, args, self, contextvars.copy_context())
        self.network.poll(fd)

    def remove_reader(self, fd: Any) -> bool:
        return self._readers.pop(fd, None) is not None

    def notify_reader(self, fd: int) -> None:
        """Run the reader of a socket soon, if there is one."""
        reader = self._readers.get(fd)
        if reader is not None:
            self._ready.append(reader)  # type: ignore[attr-defined]

    # -- connections -----------------------------------------------------------------------------------

    async def create_connection(self, protocol_factory: Any, *_: Any, sock: Socket | None = None, **__: Any) -> Any:  # type: ignore[override]
        if sock is None:
            raise OSError(errno.EOPNOTSUPP, "a world opens connections by sockets")
        return await self.network.attach(sock, protocol_factory)

    async def connect_accepted_socket(self, protocol_factory: Any, sock: Any, **_: Any) -> Any:
        return await self.network.attach(sock, protocol_factory)

    def _write_to_self(self) -> None:
        """Do nothing: the loop has one thread."""

    def _process_events(self, event_list: Any) -> None:
        """Do nothing: events are timers."""


def _process_of(handle: Any) -> Process:
    process: Process | None = handle._context.get(CURRENT)
    if process is None:
        raise WorldError(f"{handle} belongs to no process")
    return process


def _note_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Record an error that no task handled, with its process."""
    process = CURRENT.get(None)
    if process is not None:
        process.errors.append(f"{context.get('message')}: {context.get('exception')!r}")
