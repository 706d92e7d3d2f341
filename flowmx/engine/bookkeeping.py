"""The books of an engine: pending operations, failures, and the waiters to notify when operations end.

Whoever enters them takes :attr:`Books.lock` and calls :meth:`Books.settle`. The lock is re-entrant, since a finaliser
or a signal handler may come in the middle of anything; every method may be called again where it was broken off.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any

from flowmx.engine.failure import Failure, failure_of
from flowmx.engine.origin import Origin
from flowmx.engine.scheduler import DONE, READY, WAITING, Operation, Scheduler
from flowmx.errors import OperationCancelled

_MOST_FAILURES = 64

Ended = tuple[int, str, str, Origin | None, float, float, bool]
"""An operation that has ended: serial, name, actor, origin, when it began and ended, whether it failed."""


class Books:
    """The engine's knowledge of its operations.

    Attributes:
        lock: held by who reads or changes them.
        scheduler: resolves operations by their variables.
        pending: the operations that are not complete, the oldest first.
        failed: how many operations have failed so far.
        is_poisoned: whether anything has ever failed, so that variables must be looked at.
        failures: those that nobody has seen yet, as far as they are kept: the first ones tell most.
        journal: where to note each queued operation that has ended, for the flight recorder.
        adopted: operations that run at their push although something was pushed meanwhile, and their threads.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.scheduler = Scheduler(self._hand_over)
        self.pending = self.scheduler.pending
        self.failed = 0
        self.is_poisoned = False
        self.failures: list[Failure] = []
        self.journal: deque[Ended] | None = None
        self.adopted: dict[Operation, int] = {}
        self._cancelled: list[Operation] = []
        self._room_waiters: dict[object, tuple[Callable[[], bool], Callable[[], None]]] = {}

    def settle(self) -> None:
        """Finish what has begun and was broken off, or is being done further down on this thread's stack (locked)."""
        scheduler = self.scheduler
        inside = scheduler.inside
        if inside is not None:
            self.adopted[inside] = threading.get_ident()
            scheduler.settle()
        elif scheduler.step is not None:
            scheduler.settle()
        if self.adopted:
            self._end_orphans()

    def _end_orphans(self) -> None:
        """End adopted operations that nobody runs: an interrupt broke one off, and the next one what was to end it.

        The call that pushes one is on its thread's stack for as long as it runs. That need not be this thread: where a
        signal handler in the middle of such a call waits, other threads have the lock meanwhile.
        """
        frames = sys._current_frames()
        running = set()
        for thread in set(self.adopted.values()):
            frame = frames.get(thread)
            while frame is not None:
                if frame.f_code.co_name == "enqueue":
                    running.add(frame.f_locals.get("op"))
                frame = frame.f_back
        for op in [op for op in list(self.adopted) if op not in running]:
            waiters: list[Callable[[], None]] = []
            self.finish(
                op, Failure(OperationCancelled(f"operation {op.name!r} was interrupted at its push"), op), waiters
            )
            self.adopted.pop(op, None)
            for waiter in waiters:
                waiter()

    def oldest(self) -> Operation | None:
        """The operation that has been pending for the longest time."""
        for op in self.pending:
            return op
        return None

    # -- pushing ---------------------------------------------------------------------------------------

    def push(self, op: Operation, hold: bool = False) -> None:
        """Add an operation (locked, settled)."""
        self.scheduler.push(op, hold)
        if op.priority > 0 and op.blockers:
            self._urge(op.blockers, op.priority)
        if self._cancelled:
            waiters: list[Callable[[], None]] = []
            self._end_cancelled(waiters)
            for waiter in waiters:
                waiter()

    def _hand_over(self, op: Operation) -> None:
        """Give a ready operation to its actor; one that was cancelled, or that is not taken, ends instead."""
        if op.failure is None:
            try:
                op.actor.accept(op)
            except Exception as error:
                op.failure = failure_of(error, op)
        if op.failure is not None:
            self._cancelled.append(op)

    def _urge(self, ops: Iterable[Any], priority: int) -> None:
        """Raise the priority of what an urgent operation waits for to its own."""
        todo = list(ops)
        while todo:
            op = todo.pop()
            if not isinstance(op, Operation) or op.priority >= priority:
                continue
            op.priority = priority
            if op.state == READY:
                op.actor.accept(op)
            elif op.state == WAITING:
                todo += op.blockers or ()

    # -- completing ------------------------------------------------------------------------------------

    def finish(self, op: Operation, failure: Failure | None, waiters: list[Callable[[], None]]) -> None:
        """Complete an operation and hand on what it makes ready (locked, settled).

        Args:
            op: the operation.
            failure: how it failed, if it did.
            waiters: callbacks to call once the lock is released are added here.
        """
        if op.state != DONE:
            if failure is not None:
                self.poison(op, failure)
            elif self.is_poisoned and not op.settles:
                for variable in op.writes:
                    variable.failure = None
            op.actor.executed += 1
            if self.journal is not None:
                # Not the failure itself: it would hold on to what its frames hold.
                failed = op.failure is not None
                self.journal.append((op.serial, op.name, op.actor.name, op.origin, op.began, monotonic(), failed))
            self.scheduler.complete(op)
        if op.waiters is not None:
            waiters += op.waiters.values()
            op.waiters = None
        if self._cancelled:
            self._end_cancelled(waiters)
        if self._room_waiters:
            waiters += [wake for is_due, wake in list(self._room_waiters.values()) if is_due()]

    def _end_cancelled(self, waiters: list[Callable[[], None]]) -> None:
        """Complete operations that were cancelled while they waited: their turn has come."""
        while self._cancelled:
            op = self._cancelled[-1]
            if op.state != DONE:
                assert op.failure is not None
                self.poison(op, op.failure)
                self.scheduler.complete(op)
                op.reads = op.writes = ()
            if op.waiters is not None:
                waiters += op.waiters.values()
                op.waiters = None
            if op in self._cancelled:  # else somebody came in between
                self._cancelled.remove(op)

    # -- failures --------------------------------------------------------------------------------------

    def poison(self, op: Operation, failure: Failure) -> None:
        """Law 3: what a failed operation writes carries its error (locked)."""
        if op.failure is not failure or op.state != DONE:
            self.is_poisoned = True
            op.failure = failure
            self.failed += 1
            self.report(failure)
        for variable in op.writes:
            variable.failure = failure

    def report(self, failure: Failure) -> None:
        """Have the next ``waitall`` raise a failure that no wait has raised by then (locked)."""
        if failure.seen or failure.listed:
            return
        if len(self.failures) >= _MOST_FAILURES:
            self.failures = [each for each in self.failures if not each.seen]
        if len(self.failures) >= _MOST_FAILURES:
            # Several workers end operations in any order: those pushed first are kept.
            last = max(self.failures, key=lambda each: each.serial)
            if last.serial > failure.serial:
                self.failures.remove(last)
                last.listed = False
        if len(self.failures) < _MOST_FAILURES:
            failure.listed = True
            self.failures.append(failure)
        if len(self.failures) > 1:
            failure.forget_values()

    def take_unseen(self) -> Failure | None:
        """The first failure, in the order pushed, that no wait has raised; all count as raised now (locked)."""
        unseen = [failure for failure in self.failures if not failure.seen]
        self.failures.clear()
        for failure in unseen:
            failure.seen = True
        return min(unseen, key=lambda failure: failure.serial, default=None)

    # -- waiting ---------------------------------------------------------------------------------------

    def wait_for_room(self, key: object, is_due: Callable[[], bool], wake: Callable[[], None]) -> None:
        """Call a function once less is pending (locked)."""
        self._room_waiters[key] = (is_due, wake)

    def wait_no_more(self, key: object) -> None:
        """Undo :meth:`wait_for_room` (locked)."""
        self._room_waiters.pop(key, None)

    def behind(self, ops: Iterable[Operation], waits: Iterable[tuple[Operation, Operation]]) -> set[Operation]:
        """Operations and all that can not end before one of them does (locked).

        Args:
            ops: the operations.
            waits: which running operations wait, inside, for which others.
        """
        waits = list(waits)
        found = set(ops)
        todo = list(found)
        while todo:
            op = todo.pop()
            later = {*(op.dependents or ()), *(outer for outer, inner in waits if inner is op)} - found
            found |= later
            todo += later
        return found


def carried(op: Operation) -> Failure | None:
    """The failure that an operation inherits from what it reads, if any."""
    if op.settles:
        return None
    for variable in op.reads:
        if variable.failure is not None:
            return variable.failure
    return None


def release(op: Operation) -> None:
    """Drop all references of an ended operation but its outcome (not locked: a finaliser may do anything)."""
    op.function = _nothing
    op.arguments = op.reads = op.writes = ()
    op.layers, op.context = (), None


def _nothing(*_: Any) -> None:
    """The function of an operation that has ended."""
