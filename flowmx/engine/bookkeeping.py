"""The engine's record of its operations: which are pending, which failed, and which callbacks wait for them.

Callers hold :attr:`Books.lock` and first call :meth:`Books.recover`. The lock is re-entrant, since a finalizer or a
signal handler may run at any point; every method may be called again after an interruption.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic

from flowmx.engine.failure import Failure, failure_of
from flowmx.engine.origin import Origin
from flowmx.engine.scheduler import DONE, READY, WAITING, Operation, Scheduler
from flowmx.errors import OperationCancelled

_FAILURE_LIMIT = 64

Ended = tuple[int, str, str, Origin | None, float, float, bool]
"""A completed operation: serial, name, actor, origin, start and end times, whether it failed."""


class Books:
    """The engine's record of its operations.

    Attributes:
        lock: guards all other attributes.
        scheduler: orders operations by their variables.
        pending: the incomplete operations, the oldest first.
        failed: the number of operations that have failed.
        is_poisoned: whether any operation has failed, so that variables must be checked.
        failures: the first 64 unreported failures.
        journal: the queued operations that have ended, for the flight recorder.
        adopted: operations that run inside ``enqueue`` and became pending because they pushed another operation; each
            with the identity of its thread.
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

    def recover(self) -> None:
        """Finish steps that were interrupted, or that are in progress further down this thread's stack (locked)."""
        scheduler = self.scheduler
        inside = scheduler.inside
        if inside is not None:
            self.adopted[inside] = threading.get_ident()
            scheduler.recover()
        elif scheduler.step is not None:
            scheduler.recover()
        if self.adopted:
            self._end_orphans()

    def _end_orphans(self) -> None:
        """End adopted operations that no thread runs: an interrupt ended both the operation and its cleanup.

        While an adopted operation runs, its ``enqueue`` call is on its thread's stack. This may be another thread: if a
        signal handler waits in the middle of such a call, other threads can take the lock.
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
        """Return the operation that has been pending longest."""
        for op in self.pending:
            return op
        return None

    # -- pushing ---------------------------------------------------------------------------------------

    def push(self, op: Operation, hold: bool = False) -> None:
        """Add an operation (locked, after :meth:`recover`)."""
        self.scheduler.push(op, hold)
        if op.priority > 0 and op.blockers:
            self._raise_priorities(op.blockers, op.priority)
        if self._cancelled:
            waiters: list[Callable[[], None]] = []
            self._end_cancelled(waiters)
            for waiter in waiters:
                waiter()

    def _hand_over(self, op: Operation) -> None:
        """Hand a ready operation to its actor; end it if it was cancelled or the actor raises an error."""
        if op.failure is None:
            try:
                op.actor.accept(op)
            except Exception as error:  # whatever the actor raises fails the operation
                op.failure = failure_of(error, op)
        if op.failure is not None:
            self._cancelled.append(op)

    def _raise_priorities(self, ops: Iterable[object], priority: int) -> None:
        """Raise the priority of the operations that an urgent operation waits for."""
        queue = list(ops)
        while queue:
            op = queue.pop()
            if not isinstance(op, Operation) or op.priority >= priority:
                continue
            op.priority = priority
            if op.state == READY:
                op.actor.accept(op)
            elif op.state == WAITING:
                queue += op.blockers or ()

    # -- completing ------------------------------------------------------------------------------------

    def finish(self, op: Operation, failure: Failure | None, waiters: list[Callable[[], None]]) -> None:
        """Complete an operation and hand over the operations that become ready (locked, after :meth:`recover`).

        Args:
            op: the operation.
            failure: its failure, or None.
            waiters: receives the callbacks to call once the lock is released.
        """
        if op.state != DONE:
            if failure is not None:
                self.poison(op, failure)
            elif self.is_poisoned and not op.handles_failures:
                for variable in op.writes:
                    variable.failure = None
            op.actor.executed += 1
            if self.journal is not None:
                # Not the failure itself: its frames keep values alive.
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
        """Complete cancelled operations whose dependencies are complete."""
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
            if op in self._cancelled:  # else other code ran in between
                self._cancelled.remove(op)

    # -- failures --------------------------------------------------------------------------------------

    def poison(self, op: Operation, failure: Failure) -> None:
        """Law 3: store an operation's failure in the variables that it writes (locked)."""
        if op.failure is not failure or op.state != DONE:
            self.is_poisoned = True
            op.failure = failure
            self.failed += 1
            self.report(failure)
        for variable in op.writes:
            variable.failure = failure

    def report(self, failure: Failure) -> None:
        """Record a failure, so that the next ``waitall`` raises it unless another wait did (locked)."""
        if failure.raised or failure.listed:
            return
        if len(self.failures) >= _FAILURE_LIMIT:
            self.failures = [item for item in self.failures if not item.raised]
        if len(self.failures) >= _FAILURE_LIMIT:
            # Several workers end operations in any order: keep those pushed first.
            last = max(self.failures, key=lambda item: item.serial)
            if last.serial > failure.serial:
                self.failures.remove(last)
                last.listed = False
        if len(self.failures) < _FAILURE_LIMIT:
            failure.listed = True
            self.failures.append(failure)
        if len(self.failures) > 1:
            failure.clear_locals()

    def take_unraised(self) -> Failure | None:
        """Return the first failure, in push order, that no wait has raised; mark all as raised (locked)."""
        unraised = [failure for failure in self.failures if not failure.raised]
        self.failures.clear()
        for failure in unraised:
            failure.raised = True
        return min(unraised, key=lambda failure: failure.serial, default=None)

    # -- waiting ---------------------------------------------------------------------------------------

    def add_room_waiter(self, key: object, is_due: Callable[[], bool], wake: Callable[[], None]) -> None:
        """Call ``wake`` when ``is_due()`` becomes true as operations complete (locked)."""
        self._room_waiters[key] = (is_due, wake)

    def cancel_room_wait(self, key: object) -> None:
        """Undo :meth:`add_room_waiter` (locked)."""
        self._room_waiters.pop(key, None)

    def dependents_of(self, ops: Iterable[Operation], waits: Iterable[tuple[Operation, Operation]]) -> set[Operation]:
        """Return the operations, and all others that can only end after one of them (locked).

        Args:
            ops: the operations.
            waits: pairs of a running operation and an operation that its function waits for.
        """
        waits = list(waits)
        result = set(ops)
        queue = list(result)
        while queue:
            op = queue.pop()
            later = {*(op.dependents or ()), *(outer for outer, inner in waits if inner is op)} - result
            result |= later
            queue += later
        return result


def inherited_failure(op: Operation) -> Failure | None:
    """Return the failure that an operation inherits from the variables it reads, or None."""
    if op.handles_failures:
        return None
    for variable in op.reads:
        if variable.failure is not None:
            return variable.failure
    return None


def release(op: Operation) -> None:
    """Drop the references of a completed operation, except its outcome (not locked: finalizers may run any code)."""
    op.function = _do_nothing
    op.arguments = op.reads = op.writes = ()
    op.layers, op.context = (), None


def _do_nothing(*_: object) -> None:
    """The function of a completed operation."""
