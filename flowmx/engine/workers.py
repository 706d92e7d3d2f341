"""Actors whose operations run on threads: worker threads, and waiting threads that help.

A thread takes *turns* at an actor: it runs one operation at a time, and at most ``slots`` threads run operations
concurrently. A worker takes the next ready operation, or sleeps until a push wakes it. The actor's coroutine starts
workers when work is ready and no worker sleeps, and replaces dead workers, whose operations fail. It also adds slots if
user code occupies all of them for long, since that code may wait for the other work.
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
_USER_CODE_TIME = 0.25
"""Seconds after which another operation may use the slot of user code."""
_PAUSE = 1 << 40
"""The number of slots that a pause subtracts: more than any actor has."""


class Turn:
    """A thread's use of an actor.

    Attributes:
        actor: the actor.
        op: the operation that the thread is running, or None.
    """

    __slots__ = ("actor", "op")

    def __init__(self, actor: ThreadActor) -> None:
        self.actor = actor
        self.op: Operation | None = None

    def turn_ended(self) -> None:
        """Record that the mailbox has no operation for this thread (locked)."""


class Worker(Turn):
    """A worker thread of an actor's pool.

    Attributes:
        wake_lock: acquired by the worker to sleep, released to wake it.
        is_called: whether it was woken and has not read the mailbox yet.
        is_dismissed: whether its thread must end.
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
        """Make its thread end once it has no operation (locked)."""
        self.is_dismissed = True
        self.actor.idle.pop(self, None)
        if self.wake_lock.locked():
            self.wake_lock.release()

    def turn_ended(self) -> None:
        if not self.is_dismissed:
            self.actor.idle[self] = None

    def run(self) -> None:
        """Sleep, run ready operations, and sleep again, until dismissed (the thread's main function)."""
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
                        engine.recover()
                        op = self.actor.begin(self)
                    if op is not None:
                        engine.runner.prepare()  # settings may have changed during the sleep
                        engine.work(self, op)
                    self.wake_lock.acquire()
        except BaseException as error:  # errors of operations are caught elsewhere
            self.actor.report_death(self, engine)
            _log.error("a worker of %s died", self.actor.name, exc_info=error)


class ThreadActor(Actor):
    """An actor whose operations run on threads, at most ``slots`` at a time.

    Operations with a priority above 0 may use ``urgent_slots`` more threads, so that a long queue of other operations
    does not delay them.

    Attributes:
        running: the number of running operations.
        users: the running operations of user code; the value is True if another operation may use the slot.
        idle: the sleeping workers.
        workers: all workers.
        reserved: an operation that the pushing thread will run, so that no worker is woken.
    """

    accepts_help = True
    reserved: Operation | None = None

    def __init__(self, name: str, slots: int = 1, urgent_slots: int = 0) -> None:
        super().__init__(name)
        self.slots = slots
        self.urgent_slots = urgent_slots
        self.running = 0
        self.users: dict[Operation, bool] = {}
        self.workers: dict[Worker, None] = {}
        self.idle: dict[Worker, None] = {}
        self._woken_count = 0
        self._spare_worker: Worker | None = None
        self._dead_workers: list[Worker] = []
        self._is_check_scheduled = False

    # -- handing over ----------------------------------------------------------------------------------

    def accept(self, op: Operation) -> None:
        self.mailbox.put(op)
        if op is self.reserved:
            return
        if self.running + self._woken_count < self.slots + (self.urgent_slots if op.priority > 0 else 0):
            self._call()
        elif self.users and not self._is_check_scheduled:
            self.wake()

    def is_idle(self) -> bool:
        return not self.running and not self.mailbox.plain and not self.mailbox.ranked

    def _call(self) -> None:
        """Wake an idle worker, or make the coroutine start one (locked)."""
        for worker in self.idle:
            # From here on nothing is called until the worker is woken.
            worker.is_called = True
            self._woken_count += 1
            del self.idle[worker]
            worker.wake_lock.release()
            return
        self.wake()

    def begin(self, worker: Worker) -> Operation | None:
        """Return the next operation for a woken worker, or None if it must sleep again (locked)."""
        if worker.is_dismissed:
            return None
        if worker.is_called:
            worker.is_called = False
            self._woken_count -= 1
        if worker in self.idle:
            del self.idle[worker]
        return self.next(worker)

    def next(self, turn: Turn, light: bool = False) -> Operation | None:
        """Take the next operation for a thread and mark it as running; or return None (locked).

        Args:
            turn: the thread's turn.
            light: take only a light operation.
        """
        while True:
            op = self.mailbox.first()
            if (
                op is None
                or (light and not op.light)
                or ((self._stopped or self.running >= self.slots) and not self._has_slot(turn, op))
            ):
                turn.turn_ended()
                return None
            if op.state == READY:  # else other code ran in between, and started it
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
        if op.runs_user_code and not self._is_check_scheduled and self.mailbox.first() is not None:
            self.wake()
        return op

    def _has_slot(self, turn: Turn, op: Operation) -> bool:
        if self._stopped or self.slots < 0:
            return False
        if self.running < self.slots + (self.urgent_slots if op.priority > 0 else 0):
            return True
        # The running user code may wait for the operation that the waiting thread would run.
        return self.running == len(self.users) and type(turn) is Turn

    def release_slot(self, turn: Turn, op: Operation) -> None:
        """Release the slot of a turn whose operation has ended (locked)."""
        if turn.op is op:
            turn.op = None
            if self.running:  # reset to 0 in the child of a fork
                self.running -= 1
            if op in self.users:
                if self.users[op]:
                    self.slots -= 1
                del self.users[op]

    def put_back(self, turn: Turn) -> None:
        """Put back an operation that has not started (locked)."""
        op = turn.op
        if op is not None:
            op.state = READY
            self.mailbox.put(op)  # first: an interrupt may come in between, and adding it twice does no harm
            self.release_slot(turn, op)
        self.wake_worker()

    def wake_worker(self) -> None:
        """Wake a worker if there are ready operations and free slots (locked)."""
        if self.running + self._woken_count < self.slots and self.mailbox.first() is not None:
            self._call()

    def open_slot(self) -> None:
        self.slots += 1
        self.wake_worker()

    def close_slot(self) -> None:
        self.slots -= 1

    def pause(self) -> None:
        if self.slots >= 0:
            self.slots -= _PAUSE

    def unpause(self) -> None:
        if self.slots < 0:
            self.slots += _PAUSE
            self.wake_worker()

    # -- the coroutine ---------------------------------------------------------------------------------

    def prepare(self) -> None:
        if self._spare_worker is None:
            worker = self._spare_worker = Worker(self)
            with contextlib.suppress(RuntimeError):  # the coroutine will try again, and report the error
                start_locked(worker.thread)

    async def run(self) -> None:
        self.attach()
        engine = self.engine
        assert engine is not None
        while not self._stopped:
            with engine.lock:
                dead_workers, self._dead_workers = self._dead_workers, []
                count = self._missing_workers()
            for worker in dead_workers:
                self._clean_up(worker, engine)
            for _ in range(count):
                self._start_worker(engine)
            if self.users:
                self._check_later(engine)
            await self.wait_for_wake()

    def _missing_workers(self) -> int:
        """Return the number of workers to start for the ready operations (locked)."""
        free = self.slots - self.running - self._woken_count - len(self.idle)
        if self.mailbox.ranked and self.mailbox.ranked[0][0] < 0:
            free += self.urgent_slots
        return min(free, len(self.mailbox)) if free > 0 else 0

    def _start_worker(self, engine: Engine) -> None:
        """Start a worker thread, which begins with the mailbox."""
        with engine.lock:
            worker, self._spare_worker = self._spare_worker, None
        if worker is None or not worker.thread.is_alive():
            worker = Worker(self)
            try:
                worker.thread.start()
            except RuntimeError:
                if not self.workers:
                    raise
                return  # the existing workers suffice
        with engine.lock:
            if self._stopped:
                worker.dismiss()
                return
            self.workers[worker] = None
            worker.is_called = True
            self._woken_count += 1
            worker.wake_lock.release()

    def report_death(self, worker: Worker, engine: Engine) -> None:
        """Report that a worker's thread ends without dismissal (called on that thread)."""
        with engine.lock:
            if self.engine is engine and worker in self.workers:
                self._dead_workers.append(worker)
                self.wake()

    def _clean_up(self, worker: Worker, engine: Engine) -> None:
        """Release the slot of a dead worker, and fail its operation."""
        with engine.lock:
            self.workers.pop(worker, None)
            self.idle.pop(worker, None)
            if worker.is_called:
                worker.is_called = False
                self._woken_count -= 1
            op = worker.op
            if op is not None:
                self.release_slot(worker, op)
        if op is not None:
            engine.abandon([op], f"the worker of {self.name} that ran it has died")
        with engine.lock:
            self.wake_worker()

    # -- user code that occupies all slots -------------------------------------------------------------

    def _check_later(self, engine: Engine) -> None:
        """Schedule a check whether user code keeps ready operations from running."""
        if not self._is_check_scheduled:
            self._is_check_scheduled = True
            asyncio.get_running_loop().call_later(_USER_CODE_TIME, self._relieve, engine)

    def _relieve(self, engine: Engine) -> None:
        """Run ready operations concurrently with long-running user code, which may wait for them on any thread."""
        self._is_check_scheduled = False
        with engine.lock:
            engine.recover()
            threshold = monotonic() - _USER_CODE_TIME
            if self._is_blocked_by_users():
                for op in self.users:
                    if op.began < threshold and not self.users[op]:
                        self.users[op] = True
                        self.slots += 1
                self.wake_worker()
            is_needed = self.users and self.mailbox.first() is not None
        if is_needed:
            self._check_later(engine)

    def _is_blocked_by_users(self) -> bool:
        """Return whether only user code keeps ready operations from running (locked)."""
        return (
            not self._stopped
            and self.running >= self.slots
            and len(self.users) == self.running
            and self.mailbox.first() is not None
        )

    # -- endings ---------------------------------------------------------------------------------------

    def stop(self) -> None:
        super().stop()
        for worker in self._all_workers():
            worker.dismiss()

    def threads(self) -> list[threading.Thread]:
        return [worker.thread for worker in self._all_workers() if worker.thread.is_alive()]

    def _all_workers(self) -> list[Worker]:
        return [*self.workers, *([] if self._spare_worker is None else [self._spare_worker])]

    def clear(self) -> None:
        super().clear()
        self.workers, self.idle, self._dead_workers, self._spare_worker = {}, {}, [], None
        self._woken_count = 0
        self._is_check_scheduled = False

    def reset_after_fork(self) -> None:
        super().reset_after_fork()
        self.slots -= sum(self.users.values())
        if self.slots < 0:
            self.slots += _PAUSE
        self.running, self.users = 0, {}


class InlineActor(ThreadActor):
    """The naive engine's actor: operations run on the thread that pushes them, at the push."""

    def __init__(self, name: str) -> None:
        super().__init__(name, slots=1 << 30)

    def accept(self, op: Operation) -> None:
        self.mailbox.put(op)

    def wake_worker(self) -> None:
        return None

    def prepare(self) -> None:
        return None

    async def run(self) -> None:
        return None
