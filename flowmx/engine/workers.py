"""Actors whose operations run on threads: workers of their own, and threads that wait and lend themselves meanwhile.

A thread takes its *turn* at an actor: one operation at a time, of at most ``slots`` that run together. A worker with
ready work goes on without asking anybody; without any it goes to sleep until a push calls it. The actor's coroutine
starts the workers: when work is ready and none is asleep, and when one has died, whose operation then fails. It also
sees that user code which holds all slots for long does not hold up the rest, for which it may wait itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from time import monotonic
from typing import TYPE_CHECKING

from flowmx.engine.actor import Actor
from flowmx.engine.loops import start_locked
from flowmx.engine.scheduler import READY, RUNNING, Operation

if TYPE_CHECKING:
    from flowmx.engine.runtime import Engine

__all__ = ["InlineActor", "ThreadActor", "Turn", "Worker"]

_log = logging.getLogger("flowmx.engine")
_PATIENCE = 0.25
"""Seconds for which user code that holds a slot keeps others from it."""


class Turn:
    """A thread's hold on an actor.

    Attributes:
        actor: the actor.
        op: the operation that the thread has taken and that has not ended.
    """

    __slots__ = ("actor", "op")

    def __init__(self, actor: ThreadActor) -> None:
        self.actor = actor
        self.op: Operation | None = None

    def is_over(self) -> None:
        """Called when the mailbox has no operation for this thread (locked)."""


class Worker(Turn):
    """A worker thread of an actor's pool.

    Attributes:
        wake_lock: acquired by the worker to sleep, released to wake it.
        is_called: True from its wake-up until it has looked into the mailbox.
        is_dismissed: True when its thread is to end.
        thread: the thread.
    """

    __slots__ = ("is_called", "is_dismissed", "thread", "wake_lock")

    def __init__(self, actor: ThreadActor) -> None:
        super().__init__(actor)
        self.wake_lock = threading.Lock()
        self.wake_lock.acquire()
        self.is_called = self.is_dismissed = False
        name = f"flowmx-{actor.name}-{len(actor.workers)}"
        self.thread = threading.Thread(target=self.run, name=name, daemon=True)

    def dismiss(self) -> None:
        """Let its thread end when it has no operation any more (locked)."""
        self.is_dismissed = True
        self.actor.idle.pop(self, None)
        if self.wake_lock.locked():
            self.wake_lock.release()

    def is_over(self) -> None:
        if not self.is_dismissed:
            self.actor.idle[self] = None

    def run(self) -> None:
        """Sleep, run what is ready, and sleep again, until dismissed: the thread's whole life."""
        self.wake_lock.acquire()
        if self.is_dismissed:
            return
        engine = self.actor.engine
        assert engine is not None
        try:
            engine.local.turn = self
            with engine.runner.guard():
                while not self.is_dismissed:
                    with engine.lock:
                        engine.settle()
                        op = self.actor.begin(self)
                    if op is not None:
                        engine.runner.prepare()  # anew each time: settings may have changed while it slept
                        engine.work(self, op)
                    self.wake_lock.acquire()
        except BaseException as error:  # not an operation's: those are caught where it is run
            self.actor.report_death(self, engine)
            _log.error("a worker of %s died", self.actor.name, exc_info=error)


class ThreadActor(Actor):
    """An actor whose operations run on threads, at most ``slots`` at a time.

    Operations of a priority above 0 may also use ``urgent_slots`` further threads, so that a long queue of ordinary
    work does not hold them up.

    Attributes:
        running: how many operations run.
        users: those of them that are user code, and whether others have got their slot.
        idle: the workers that sleep.
        workers: all of them.
        kept: an operation for which nobody is called, since the thread that pushes it will run it.
    """

    may_lend = True
    kept: Operation | None = None

    def __init__(self, name: str, slots: int = 1, urgent_slots: int = 0) -> None:
        super().__init__(name)
        self.slots = slots
        self.urgent_slots = urgent_slots
        self.running = 0
        self.users: dict[Operation, bool] = {}
        self.workers: dict[Worker, None] = {}
        self.idle: dict[Worker, None] = {}
        self._called = 0
        self._spare: Worker | None = None
        self._lost: list[Worker] = []
        self._is_looking = False

    # -- handing over ----------------------------------------------------------------------------------

    def accept(self, op: Operation) -> None:
        self.mailbox.put(op)
        if op is self.kept:
            return
        if self.running + self._called < self.slots + (self.urgent_slots if op.priority > 0 else 0):
            self._call()
        elif self.users and not self._is_looking:
            self.wake()

    def is_idle(self) -> bool:
        return not self.running and not self.mailbox.plain and not self.mailbox.ranked

    def _call(self) -> None:
        """Wake an idle worker, or have the coroutine start one (locked)."""
        for worker in self.idle:
            # From here on nothing is called until the worker is woken.
            worker.is_called = True
            self._called += 1
            del self.idle[worker]
            worker.wake_lock.release()
            return
        self.wake()

    def begin(self, worker: Worker) -> Operation | None:
        """The first operation for a worker that was called; without one it sleeps on (locked)."""
        if worker.is_dismissed:
            return None
        if worker.is_called:
            worker.is_called = False
            self._called -= 1
        if worker in self.idle:
            del self.idle[worker]
        return self.next(worker)

    def next(self, turn: Turn, light: bool = False) -> Operation | None:
        """Let a thread take the next operation, which runs from now on; None where there is none for it (locked).

        Args:
            turn: the thread's.
            light: take only one that is light.
        """
        while True:
            op = self.mailbox.first()
            if (
                op is None
                or (light and not op.light)
                or ((self._stopped or self.running >= self.slots) and not self._has_slot(turn, op))
            ):
                turn.is_over()
                return None
            if op.state == READY:  # else somebody came in between, and it has been taken
                break
        plain = self.mailbox.plain
        # From here on nothing is called.
        op.state = RUNNING
        turn.op = op
        self.running += 1
        if op.runs_user_code:
            self.users[op] = False
        if plain and plain[0] is op:
            del plain[0]
        if op.runs_user_code and not self._is_looking and self.mailbox.first() is not None:
            self.wake()
        return op

    def _has_slot(self, turn: Turn, op: Operation) -> bool:
        if self._stopped:
            return False
        if self.running < self.slots + (self.urgent_slots if op.priority > 0 else 0):
            return True
        # Who waits may be what the user code that runs waits for.
        return self.running == len(self.users) and type(turn) is Turn

    def over(self, turn: Turn, op: Operation) -> None:
        """Release the slot of a turn whose operation has ended (locked)."""
        if turn.op is op:
            turn.op = None
            if self.running:  # in the child of a fork they were forgotten
                self.running -= 1
            if op in self.users:
                if self.users[op]:
                    self.slots -= 1
                del self.users[op]

    def give_back(self, turn: Turn) -> None:
        """Put back an operation that was taken and has not begun (locked)."""
        op = turn.op
        if op is not None:
            op.state = READY
            self.mailbox.put(op)  # first: an interrupt may come in between, and putting it in again does no harm
            self.over(turn, op)
        self.tend()

    def tend(self) -> None:
        """Wake a worker if there are ready operations and free slots (locked)."""
        if self.running + self._called < self.slots and self.mailbox.first() is not None:
            self._call()

    def open_slot(self) -> None:
        self.slots += 1
        self.tend()

    def close_slot(self) -> None:
        self.slots -= 1

    # -- the coroutine ---------------------------------------------------------------------------------

    def prepare(self) -> None:
        if self._spare is None:
            worker = self._spare = Worker(self)
            with contextlib.suppress(RuntimeError):  # the coroutine will try again, and tell
                start_locked(worker.thread)

    async def run(self) -> None:
        self.attach()
        engine = self.engine
        assert engine is not None
        while not self._stopped:
            with engine.lock:
                lost, self._lost = self._lost, []
                count = self._wanted()
            for worker in lost:
                self._clean_up(worker, engine)
            for _ in range(count):
                self._start_worker(engine)
            if self.users:
                self._look_again(engine)
            await self.wait_for_wake()

    def _wanted(self) -> int:
        """The number of workers to be started for what is ready (locked)."""
        free = self.slots - self.running - self._called - len(self.idle)
        if self.mailbox.ranked and self.mailbox.ranked[0][0] < 0:
            free += self.urgent_slots
        return min(free, len(self.mailbox)) if free > 0 else 0

    def _start_worker(self, engine: Engine) -> None:
        """Start a worker thread, which takes from the mailbox at once."""
        with engine.lock:
            worker, self._spare = self._spare, None
        if worker is None or not worker.thread.is_alive():
            worker = Worker(self)
            try:
                worker.thread.start()
            except RuntimeError:
                if not self.workers:
                    raise
                return  # those that there are will do it
        with engine.lock:
            if self._stopped:
                worker.dismiss()
                return
            self.workers[worker] = None
            worker.is_called = True
            self._called += 1
            worker.wake_lock.release()

    def report_death(self, worker: Worker, engine: Engine) -> None:
        """Report that a worker's thread ends without having been dismissed (called on that thread)."""
        with engine.lock:
            if self.engine is engine and worker in self.workers:
                self._lost.append(worker)
                self.wake()

    def _clean_up(self, worker: Worker, engine: Engine) -> None:
        """Release what a dead worker held; its operation fails."""
        with engine.lock:
            self.workers.pop(worker, None)
            self.idle.pop(worker, None)
            if worker.is_called:
                worker.is_called = False
                self._called -= 1
            op = worker.op
            if op is not None:
                self.over(worker, op)
        if op is not None:
            engine.abandon([op], f"the worker of {self.name} that ran it has died")
        with engine.lock:
            self.tend()

    # -- user code that holds all slots ----------------------------------------------------------------

    def _look_again(self, engine: Engine) -> None:
        """Check in a while whether user code keeps ready work from running; no wake-up is needed for that."""
        if not self._is_looking:
            self._is_looking = True
            asyncio.get_running_loop().call_later(_PATIENCE, self._relieve, engine)

    def _relieve(self, engine: Engine) -> None:
        """Let ready work run in parallel to long-running user code, which may wait for it on any thread."""
        self._is_looking = False
        with engine.lock:
            engine.settle()
            since = monotonic() - _PATIENCE
            if self._is_held():
                for op in self.users:
                    if op.began < since and not self.users[op]:
                        self.users[op] = True
                        self.slots += 1
                self.tend()
            is_needed = self.users and self.mailbox.first() is not None
        if is_needed:
            self._look_again(engine)

    def _is_held(self) -> bool:
        """Tell whether user code alone keeps ready work from running (locked)."""
        return (
            not self._stopped
            and self.running >= self.slots
            and len(self.users) == self.running
            and self.mailbox.first() is not None
        )

    # -- endings ---------------------------------------------------------------------------------------

    def stop(self) -> None:
        super().stop()
        for worker in self._all():
            worker.dismiss()

    def threads(self) -> list[threading.Thread]:
        return [worker.thread for worker in self._all() if worker.thread.is_alive()]

    def _all(self) -> list[Worker]:
        return [*self.workers, *([] if self._spare is None else [self._spare])]

    def rest(self) -> None:
        super().rest()
        self.workers, self.idle, self._lost, self._spare = {}, {}, [], None
        self._called = 0
        self._is_looking = False

    def reset(self) -> None:
        super().reset()
        self.slots -= sum(self.users.values())
        self.running, self.users = 0, {}


class InlineActor(ThreadActor):
    """The naive engine's actor: operations run on the thread that pushes them, at the push."""

    def __init__(self, name: str) -> None:
        super().__init__(name, slots=1 << 30)

    def accept(self, op: Operation) -> None:
        self.mailbox.put(op)

    def tend(self) -> None:
        return None

    def prepare(self) -> None:
        return None

    async def run(self) -> None:
        return None
