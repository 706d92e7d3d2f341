"""Actors, to which the engine hands ready operations.

An :class:`Actor` is a mailbox and a coroutine that consumes it. There is one for each device, for each copy stream and
for the network. The coroutine drives the device: if an empty one replaces it, nothing runs. It runs on the engine's
event loop, or on a loop that the actors of a device share. :class:`BatchActor` starts ready operations in batches on
its loop; :class:`flowmx.engine.workers.ThreadActor` has worker threads, which its coroutine starts and supervises.

Every method whose docstring says *locked* is called with the engine's lock held.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowmx.engine.failure import Failure
from flowmx.engine.loops import LoopCalls, create_hidden_task
from flowmx.engine.mailbox import Mailbox
from flowmx.engine.scheduler import DONE, RUNNING, Operation
from flowmx.errors import OperationCancelled

if TYPE_CHECKING:
    from flowmx.engine.runtime import Engine

__all__ = ["Actor", "BatchActor", "LoopActor"]

_BATCH_LIMIT = 32
"""The number of operations that an actor starts before the other actors on its loop get a turn."""


class Actor(ABC):
    """The mailbox of a device, a copy stream or the network, and the coroutine that consumes it.

    Attributes:
        name: its name in messages and profiles, for example ``cpu(0)``.
        home: the name of the event loop that it runs on; actors with the same home share a thread.
        external_loop: an event loop outside the engine, which replaces that of ``home``.
        accepts_help: whether a waiting thread may run this actor's operations itself.
        launches: whether its operations only launch work, which continues elsewhere.
        engine: the engine that it works for, set at the first push.
        executed: the number of operations that have ended.
    """

    home = "engine"
    external_loop: asyncio.AbstractEventLoop | None = None
    accepts_help = False
    launches = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.mailbox = Mailbox()
        self.engine: Engine | None = None
        self.executed = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake_event: asyncio.Event | None = None
        self._is_waking = self._stopped = False

    @abstractmethod
    async def run(self) -> None:
        """Consume the mailbox until :meth:`stop`."""

    def accept(self, op: Operation) -> None:
        """Put a ready operation into the mailbox and wake a thread to run it (locked)."""
        self.mailbox.put(op)
        self.wake()

    def is_idle(self) -> bool:
        """Return whether nothing is queued or running, so that an operation may run when pushed (locked)."""
        return False

    def open_slot(self) -> None:
        """Allow one more operation to run, because a running one waits for others (locked)."""

    def close_slot(self) -> None:
        """Undo :meth:`open_slot` (locked); the limit may be exceeded by one for a moment."""

    def pause(self) -> None:
        """Start no further operation that only computes, until :meth:`unpause` (locked)."""

    def unpause(self) -> None:
        """Undo :meth:`pause` (locked)."""

    def cancel_running(self, op: Operation) -> bool:
        """Try to stop a running operation; return whether it will end early (locked)."""
        return False

    def prepare(self) -> None:
        """Start a thread in advance, because none can be started while the interpreter exits (locked)."""

    # -- the coroutine ---------------------------------------------------------------------------------

    def wake(self) -> None:
        """Wake the coroutine, which then checks for work (locked)."""
        if self._loop is not None and self._wake_event is not None and not self._is_waking:
            with contextlib.suppress(RuntimeError):  # the loop has ended; a restarted actor checks for ready work
                self._loop.call_soon_threadsafe(self._wake_event.set)
                self._is_waking = True

    def attach(self) -> None:
        """Bind the wake-up event to the running loop; the coroutine's first statement."""
        assert self.engine is not None
        with self.engine.lock:
            self._loop, self._wake_event, self._is_waking = asyncio.get_running_loop(), asyncio.Event(), False

    async def wait_for_wake(self) -> None:
        """Wait until :meth:`wake` is called."""
        assert self.engine is not None
        assert self._wake_event is not None
        await self._wake_event.wait()
        with self.engine.lock:
            self._wake_event.clear()
            self._is_waking = False

    def stop(self) -> None:
        """Make :meth:`run` return soon; operations that have not started are not run (locked)."""
        self._stopped = True
        self.wake()

    def threads(self) -> list[threading.Thread]:
        """Return the actor's living threads."""
        return []

    def clear(self) -> None:
        """Return to the initial state after :meth:`stop` (locked). The engine then sends ready operations again."""
        self.mailbox = Mailbox()
        self.engine = self._loop = self._wake_event = None
        self._is_waking = self._stopped = False

    def reset_after_fork(self) -> None:
        """Discard threads and running operations, in the child of a fork."""
        self.clear()


class BatchActor(Actor):
    """An actor whose coroutine starts ready operations in batches."""

    async def run(self) -> None:
        self.attach()
        started = 0
        while not self._stopped:
            batch = self._next_batch()
            if not batch:
                await self.wait_for_wake()
                continue
            await self.begin(batch)
            started += len(batch)
            if started >= _BATCH_LIMIT:
                started = 0
                await asyncio.sleep(0)
        await self.end()

    def _next_batch(self) -> list[Operation]:
        """Return a batch of ready operations, marked as running."""
        assert self.engine is not None
        batch: list[Operation] = []
        with self.engine.lock:
            self.engine.recover()
            while len(batch) < _BATCH_LIMIT and (op := self.mailbox.first()) is not None:
                op.state = RUNNING
                batch.append(op)
        return batch

    @abstractmethod
    async def begin(self, batch: Sequence[Operation]) -> None:
        """Start operations; each ends when its completion is reported to the engine."""

    async def end(self) -> None:
        """Stop the operations that have started."""


class LoopActor(BatchActor):
    """An actor that awaits coroutine operations as tasks on its loop: the network, files, timers."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._tasks: dict[Operation, asyncio.Task[None]] = {}
        self._calls: LoopCalls | None = None

    def attach(self) -> None:
        super().attach()
        self._calls = LoopCalls(asyncio.get_running_loop())

    async def begin(self, batch: Sequence[Operation]) -> None:
        assert self.engine is not None
        loop = asyncio.get_running_loop()
        for op in batch:
            self._tasks[op] = task = create_hidden_task(loop, self.engine.run_coroutine(op), op.name)
            task.add_done_callback(functools.partial(self._end_task, self.engine, op))

    def _end_task(self, engine: Engine, op: Operation, task: asyncio.Task[None]) -> None:
        self._tasks.pop(op, None)
        if op.state != DONE:  # the task was cancelled before its first step
            engine.end(op, Failure(OperationCancelled(f"operation {op.name!r} was cancelled before it ran"), op))

    async def end(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def tasks(self) -> list[tuple[Operation, asyncio.Task[None]]]:
        """Return the running operations with their tasks."""
        return list(self._tasks.copy().items())

    def cancel_running(self, op: Operation) -> bool:
        if self._calls is None:
            return False
        self._calls.add(self._cancel, op)
        return True

    def _cancel(self, op: Operation) -> None:
        """Cancel the task of an operation (on the loop; the task exists, since ``begin`` was called before)."""
        task = self._tasks.get(op)
        if task is not None:
            task.cancel()

    def clear(self) -> None:
        super().clear()
        self._tasks, self._calls = {}, None
