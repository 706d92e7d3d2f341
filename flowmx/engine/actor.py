"""The actors that the engine hands ready operations to.

An :class:`Actor` is a mailbox and a coroutine that consumes it, one for each device, copy stream and the network. The
coroutine runs the device: replaced by an empty one, nothing runs. It lives on the engine's event loop, or on one that
it shares with the other actors of its device. :class:`BatchActor` takes what is ready in batches and begins it there;
:class:`flowmx.engine.workers.ThreadActor` has worker threads, which its coroutine starts and looks after.

Every method whose docstring says *locked* is called with the engine's lock held.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowmx.engine.mailbox import Mailbox
from flowmx.engine.scheduler import RUNNING, Operation

if TYPE_CHECKING:
    from flowmx.engine.runtime import Engine

__all__ = ["Actor", "BatchActor", "LoopActor"]

_MOST_AT_ONCE = 32
"""Operations that an actor begins before the others of its home get their turn."""


class Actor(ABC):
    """One device's mailbox and the coroutine that consumes it.

    Attributes:
        name: as in messages and profiles, for example ``cpu(0)``.
        home: the event loop that it lives on, by name: actors of one home share a thread.
        own_loop: an event loop of somebody else's that it lives on instead.
        may_lend: True when a thread that waits may run this actor's operations itself.
        launches: True when its operations only launch work, which goes on elsewhere.
        engine: the engine that it works for, once something was pushed to it.
        executed: how many operations have ended.
    """

    home = "engine"
    own_loop: asyncio.AbstractEventLoop | None = None
    may_lend = False
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
        """Put a ready operation into the mailbox, and wake a thread to run it (locked)."""
        self.mailbox.put(op)
        self.wake()

    def is_idle(self) -> bool:
        """True when nothing is queued and nothing runs, so that an operation may run at its push (locked)."""
        return False

    def open_slot(self) -> None:
        """Let one more operation run: one that runs waits for others (locked)."""

    def close_slot(self) -> None:
        """Undo :meth:`open_slot` (locked); for a moment there may be one runner too many."""

    def cancel_running(self, op: Operation) -> bool:
        """Try to stop an operation that runs already; True when it will end early (locked)."""
        return False

    def prepare(self) -> None:
        """Start what the coroutine can not start itself while the interpreter exits (locked)."""

    # -- the coroutine ---------------------------------------------------------------------------------

    def wake(self) -> None:
        """Wake the coroutine, which then looks for work (locked)."""
        if self._loop is not None and self._wake_event is not None and not self._is_waking:
            with contextlib.suppress(RuntimeError):  # the loop has ended; who starts the actor anew sees what is ready
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
        """Let :meth:`run` return soon; what has not started stays undone (locked)."""
        self._stopped = True
        self.wake()

    def threads(self) -> list[threading.Thread]:
        """The threads that it has started and that have not ended."""
        return []

    def rest(self) -> None:
        """Return to the initial state after a stop; the engine hands ready operations over again (locked)."""
        self.mailbox = Mailbox()
        self.engine = self._loop = self._wake_event = None
        self._is_waking = self._stopped = False

    def reset(self) -> None:
        """Forget threads and what runs, in the child of a fork."""
        self.rest()


class BatchActor(Actor):
    """An actor whose coroutine takes what is ready in batches and begins it."""

    async def run(self) -> None:
        self.attach()
        begun = 0
        while not self._stopped:
            batch = self._take()
            if not batch:
                await self.wait_for_wake()
                continue
            await self.begin(batch)
            begun += len(batch)
            if begun >= _MOST_AT_ONCE:
                begun = 0
                await asyncio.sleep(0)
        await self.end()

    def _take(self) -> list[Operation]:
        """Take the ready operations that go into a batch; each runs from now on."""
        assert self.engine is not None
        batch: list[Operation] = []
        with self.engine.lock:
            self.engine.settle()
            while len(batch) < _MOST_AT_ONCE and (op := self.mailbox.first()) is not None:
                op.state = RUNNING
                batch.append(op)
        return batch

    @abstractmethod
    async def begin(self, batch: Sequence[Operation]) -> None:
        """Begin operations; each ends when its end is reported to the engine."""

    async def end(self) -> None:
        """Stop what has begun."""


class LoopActor(BatchActor):
    """An actor that awaits coroutine operations as tasks on its loop: the network, files, timers."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._tasks: dict[Operation, asyncio.Task[None]] = {}

    async def begin(self, batch: Sequence[Operation]) -> None:
        assert self.engine is not None
        for op in batch:
            task = asyncio.get_running_loop().create_task(self.engine.run_coroutine(op), name=op.name)
            self._tasks[op] = task
            task.add_done_callback(lambda _, op=op: self._tasks.pop(op, None))  # type: ignore[misc]

    async def end(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def tasks(self) -> list[tuple[Operation, asyncio.Task[None]]]:
        """The operations that run, with their tasks."""
        return list(self._tasks.copy().items())

    def cancel_running(self, op: Operation) -> bool:
        task = self._tasks.get(op)
        if task is None or self._loop is None:
            return False
        self._loop.call_soon_threadsafe(task.cancel)
        return True

    def rest(self) -> None:
        super().rest()
        self._tasks = {}
