"""The actors that the runtime hands ready operations to.

An :class:`Actor` is a mailbox and a coroutine that consumes it, one for each device, copy stream and the
network. The coroutine runs on the engine's loop. What it does with an operation is the device's affair:
:class:`LoopActor` awaits it as a task on that loop, :class:`ThreadActor` supervises worker threads that
take ready operations straight from the mailbox, so that a busy worker never hops back to the loop.

Every method whose docstring says *locked* is called with the engine's lock held.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flowmx.engine.scheduler import DONE, RUNNING, Operation

if TYPE_CHECKING:
    from flowmx.engine.runtime import Engine


class Mailbox:
    """Ready operations: higher priority first, and in the order pushed among equals."""

    __slots__ = ("_ranked", "plain")

    def __init__(self) -> None:
        self.plain: deque[Operation] = deque()
        self._ranked: list[tuple[int, int, Operation]] = []

    def put(self, op: Operation) -> None:
        """Add an operation (priority 0, the usual, costs one append)."""
        if op.priority == 0:
            self.plain.append(op)
        else:
            heapq.heappush(self._ranked, (-op.priority, op.serial, op))

    def take(self, light: bool = False) -> Operation | None:
        """Remove and return the next operation; with ``light`` only where that one is light."""
        plain = self.plain
        while True:
            if self._ranked and (self._ranked[0][0] < 0 or not plain):
                if light and not self._ranked[0][2].light:
                    return None
                op = heapq.heappop(self._ranked)[2]
            elif plain:
                if light and not plain[0].light:
                    return None
                op = plain.popleft()
            else:
                return None
            if op.state != DONE:  # a cancelled one
                return op

    def urgent(self) -> bool:
        """True when an operation of a priority above 0 waits."""
        return bool(self._ranked) and self._ranked[0][0] < 0

    def __len__(self) -> int:
        return len(self.plain) + len(self._ranked)

    def __iter__(self) -> Iterator[Operation]:
        yield from self.plain
        yield from (op for _, _, op in self._ranked)


class Actor(ABC):
    """One device's mailbox and the coroutine that consumes it.

    Attributes:
        name: as in messages and profiles, for example ``cpu(0)``.
        may_lend: True when a thread that waits may run this actor's operations itself.
        launches: True when its operations only launch work, on threads of their own.
    """

    may_lend = False
    launches = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.mailbox = Mailbox()
        self.engine: Engine | None = None
        self.executed = 0

    @abstractmethod
    def accept(self, op: Operation) -> None:
        """Take a ready operation into the mailbox and see that somebody will run it (locked)."""

    @abstractmethod
    async def run(self) -> None:
        """Consume the mailbox until :meth:`stop`; runs on the engine's loop."""

    @abstractmethod
    def stop(self) -> None:
        """Make :meth:`run` return soon; what has not started stays undone (locked)."""

    def is_idle(self) -> bool:
        """True when nothing is queued and a thread that lends itself could run an operation now (locked)."""
        return False

    def claim(self) -> bool:
        """Take one of the actor's slots for the calling thread, if one is free (locked)."""
        return False

    def release(self) -> None:
        """Give a slot back (locked)."""

    def proceed(self, parking: threading.Lock) -> Operation | None:
        """The next operation for a worker that has just finished one, or None: it is parked (locked)."""
        raise NotImplementedError(f"{type(self).__name__} has no worker threads")

    def cancel_running(self, op: Operation) -> bool:
        """Try to stop an operation that runs already; True when it will end early (locked)."""
        return False

    def rest(self) -> None:
        """Stopped: be ready to start anew at the next operation; the engine hands over again what is ready (locked)."""
        self.mailbox = Mailbox()
        self.engine = None

    def reset(self) -> None:
        """Forget threads and queued work, in the child of a fork."""
        self.rest()

    def mend(self, running: int) -> None:
        """Start from an empty mailbox and ``running`` operations, after an interrupt broke off some step (locked)."""
        self.mailbox = Mailbox()


class ThreadActor(Actor):
    """An actor whose operations run on worker threads of its own, at most ``slots`` at a time.

    A thread that waits for an operation may claim a free slot and run ready operations itself: that
    saves the hop to a worker and back. Operations of a priority above 0 may also use ``urgent_slots``
    further threads, so that a long queue of ordinary work does not hold them up.
    """

    may_lend = True

    def __init__(self, name: str, slots: int = 1, urgent_slots: int = 0) -> None:
        super().__init__(name)
        self.slots = slots
        self.urgent_slots = urgent_slots
        self.running = 0
        # A worker parks by acquiring a lock of its own. One too many wake-ups does no harm.
        self._workers: list[threading.Lock] = []
        self._parked: dict[threading.Lock, None] = {}
        self._waking: set[threading.Lock] = set()
        self._stopped = False
        self._finished: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def accept(self, op: Operation) -> None:
        if op.priority == 0:
            self.mailbox.plain.append(op)
            if self.running + len(self._waking) < self.slots:
                self._wake()
            return
        self.mailbox.put(op)
        if self.running + len(self._waking) < self.slots + (self.urgent_slots if op.priority > 0 else 0):
            self._wake()

    def is_idle(self) -> bool:
        return not self.running and not self.mailbox.plain and not len(self.mailbox)

    def claim(self) -> bool:
        if self.running >= self.slots or self._stopped:
            return False
        self.running += 1
        return True

    def release(self) -> None:
        self.running = max(0, self.running - 1)
        if self.running + len(self._waking) < self.slots and len(self.mailbox):
            self._wake()

    def yield_slot(self) -> None:
        """The calling worker is about to wait inside its operation: let another take its place (locked)."""
        self.slots += 1
        if len(self.mailbox) and self.running + len(self._waking) < self.slots:
            self._wake()

    def regain_slot(self) -> None:
        """Undo :meth:`yield_slot` (locked); for a moment there may be one runner too many."""
        self.slots -= 1

    def _wake(self) -> None:
        """Bring one more worker to the mailbox (locked)."""
        if self._stopped:
            return
        if self._parked:
            parking, _ = self._parked.popitem()
        else:
            assert self.engine is not None
            parking = threading.Lock()
            parking.acquire()
            self.engine.start_worker(self, parking)
            self._workers.append(parking)
        self._waking.add(parking)
        if parking.locked():
            parking.release()

    def begin(self, parking: threading.Lock) -> Operation | None:
        """The next operation for a worker that has just come, or None: then it is parked (locked)."""
        self._waking.discard(parking)
        self._parked.pop(parking, None)
        op = None
        if self.running < self.slots or (self.mailbox.urgent() and self.running < self.slots + self.urgent_slots):
            op = self.mailbox.take()
        if op is None:
            self._parked[parking] = None
            return None
        self.running += 1
        op.state = RUNNING
        return op

    def proceed(self, parking: threading.Lock) -> Operation | None:
        op = None
        if self.running <= self.slots or self.mailbox.urgent():
            op = self.mailbox.take()
        if op is None:
            self.running = max(0, self.running - 1)
            self._parked[parking] = None
        else:
            op.state = RUNNING
        return op

    def serve(self, parking: threading.Lock) -> None:
        """A worker thread's life: run what is ready, park, until stopped."""
        engine = self.engine
        assert engine is not None
        lock = engine.lock
        engine.here.actor = self
        with engine.guard():
            while True:
                parking.acquire()
                with lock:
                    if self._stopped or self.engine is not engine:
                        return
                    op = self.begin(parking)
                while op is not None:
                    op = engine.execute(op, self, parking)

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._finished = asyncio.Event()
        await self._finished.wait()

    def stop(self) -> None:
        self._stopped = True
        self._rouse()
        if self._loop is not None and self._finished is not None:
            self._loop.call_soon_threadsafe(self._finished.set)

    def _rouse(self) -> None:
        """Bring every worker to the mailbox (locked)."""
        workers = {*self._workers, *self._parked}
        self._waking |= set(self._parked)
        self._parked.clear()
        for parking in workers:
            if parking.locked():
                parking.release()

    def rest(self) -> None:
        super().rest()
        self._workers.clear()
        self._parked.clear()
        self._waking.clear()
        self._stopped = False
        self._finished = self._loop = None

    def reset(self) -> None:
        super().reset()
        self.running = 0

    def mend(self, running: int) -> None:
        super().mend(running)
        self.running = running
        self._rouse()


class LoopActor(Actor):
    """An actor that awaits coroutine operations as tasks on the engine's loop: the network, files, timers."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._tasks: dict[Operation, asyncio.Task[None]] = {}
        self._signalled = False
        self._wakeup: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False

    def accept(self, op: Operation) -> None:
        self.mailbox.put(op)
        if self._loop is not None and not self._signalled:
            self._signalled = True
            assert self._wakeup is not None
            self._loop.call_soon_threadsafe(self._wakeup.set)

    async def run(self) -> None:
        engine = self.engine
        assert engine is not None
        wakeup = asyncio.Event()
        with engine.lock:
            self._loop, self._wakeup = asyncio.get_running_loop(), wakeup
        while not self._stopped:
            with engine.lock:
                self._signalled = False
                wakeup.clear()
                while (op := self.mailbox.take()) is not None:
                    op.state = RUNNING
                    task = asyncio.get_running_loop().create_task(engine.run_coroutine(op), name=op.name)
                    self._tasks[op] = task
            await wakeup.wait()
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def tasks(self) -> list[tuple[Operation, asyncio.Task[None]]]:
        """The operations that run, with their tasks."""
        return list(self._tasks.copy().items())

    def forget(self, op: Operation) -> None:
        """The operation's task has ended (locked)."""
        self._tasks.pop(op, None)

    def cancel_running(self, op: Operation) -> bool:
        task = self._tasks.get(op)
        if task is None or self._loop is None:
            return False
        self._loop.call_soon_threadsafe(task.cancel)
        return True

    def stop(self) -> None:
        self._stopped = True
        if self._loop is not None and self._wakeup is not None:
            self._loop.call_soon_threadsafe(self._wakeup.set)

    def rest(self) -> None:
        super().rest()
        self._tasks = {}
        self._signalled = self._stopped = False
        self._wakeup = self._loop = None

    def mend(self, running: int) -> None:
        super().mend(running)
        self._signalled = False


class InlineActor(Actor):
    """The naive engine's actor: operations run on the thread that pushes them, at the push."""

    may_lend = True

    def accept(self, op: Operation) -> None:
        self.mailbox.put(op)

    def claim(self) -> bool:
        return True

    async def run(self) -> None:
        return None

    def stop(self) -> None:
        return None
