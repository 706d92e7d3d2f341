"""Running operations: on actors' threads, on waiting threads, on the pushing thread, and as coroutines.

An interrupt may come between any two bytecodes of the main thread, and other threads can be interrupted too. A thread
records the operation in its turn before it calls anything, and completing an operation is repeatable. So interrupted
steps are finished by :func:`retry`, and no operation is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from time import monotonic
from typing import Any, TypeVar

from flowmx.engine.bookkeeping import Books, inherited_failure, release
from flowmx.engine.failure import Failure, failure_of
from flowmx.engine.scheduler import DONE, READY, RUNNING, Layer, Operation, Variable
from flowmx.engine.workers import Turn
from flowmx.errors import EngineError, OperationCancelled

T = TypeVar("T")

_NO_GUARD: AbstractContextManager[Any] = contextlib.nullcontext()
_ATTEMPT_LIMIT = 1000
"""Maximum number of attempts at an interrupted step; after that, the error counts as a bug in the step."""


class ThreadState(threading.local):
    """Thread-local state of the engine: the calling thread's turn, or None."""

    turn: Turn | None = None


class Runner:
    """Runs operations and completes them.

    Attributes:
        local: the calling thread's turn.
        guard: returns a context manager in which threads run operations, except user code.
        prepare: called whenever a thread starts to run operations.
        inline: calls the function of a light operation when pushed, as ``inline(function, *arguments)``.
        on_operation_end: called when an operation has ended on the event loop.
    """

    def __init__(self, books: Books) -> None:
        self.books = books
        self.local = ThreadState()
        self.guard: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
        self.prepare: Callable[[], None] = _do_nothing
        self.inline: Callable[..., Any] = _call
        self.on_operation_end: Callable[[], None] = _do_nothing

    # -- on threads ------------------------------------------------------------------------------------

    def work(self, turn: Turn, op: Operation | None, until: Operation | None = None, light: bool = False,
             deadline: float = float("inf")) -> None:  # fmt: skip
        """Run the operation of a turn, then the next operations of the actor.

        Args:
            turn: this thread's turn, which records the operation.
            op: the operation.
            until: stop once this operation is done.
            light: run only light operations; stop before any other.
            deadline: take no operation after this time, in seconds of :func:`time.monotonic`.
        """
        books = self.books
        while op is not None:
            failure: Failure | None = None
            interrupt: BaseException | None = None
            op.began = now = monotonic()
            try:
                if books.is_poisoned:
                    failure = inherited_failure(op)
                if failure is None:
                    if not op.layers:
                        op.result = op.function(*op.arguments)
                    elif op.arguments or len(op.layers) > 1:
                        op.result = call_layered(op)
                    else:  # user code: avoid one call
                        op.result = op.layers[0](op, op.function)
            except BaseException as error:  # whatever user code raises fails the operation
                if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                    interrupt, failure = error, Failure(interrupt_error(op), op)
                else:
                    failure = failure_of(error, op)
            op = self._end(turn, op, failure, until, light, interrupt is None and now < deadline)
            if interrupt is not None:
                raise interrupt

    def help(self, actor: Any, until: Operation | None = None, light: bool = False,
             deadline: float = float("inf")) -> None:  # fmt: skip
        """Run ready operations of an actor on this waiting thread; for the arguments see :meth:`work`."""
        if not actor.accepts_help:
            return
        turn = Turn(actor)
        outer = self.local.turn
        try:
            self.local.turn = turn
            with self.books.lock:
                self.books.recover()
                op = None if until is not None and until.state == DONE else actor.next(turn, light)
            if op is not None:
                self.prepare()
                # A single operation of user code needs no guard.
                with _NO_GUARD if op.runs_user_code and op is until else self.guard():
                    self.work(turn, op, until, light, deadline)
        except BaseException:  # an interrupt must not lose the operation
            try:
                retry(self.drop, turn)
            except BaseException:  # a second interrupt came before the call started
                retry(self.drop, turn)
            raise
        finally:
            self.local.turn = outer

    def drop(self, turn: Turn) -> None:
        """Put back the operation of an interrupted thread if it has not started, else fail it."""
        op = turn.op
        if op is not None and op.began:
            self._end(turn, op, Failure(interrupt_error(op), op), None, False, False)
            self.on_operation_end()
            return
        with self.books.lock:
            self.books.recover()
            turn.actor.put_back(turn)

    def _end(
        self, turn: Turn, op: Operation, failure: Failure | None, until: Operation | None, light: bool, continues: bool
    ) -> Operation | None:
        """Complete an operation; return the next operation of the turn, or None if ``continues`` is False."""
        waiters: list[Callable[[], None]] = []
        books, actor = self.books, turn.actor
        try:
            with books.lock:
                books.recover()
                books.finish(op, failure, waiters)
                # Release the slot last, so that this thread picks up newly ready work without waking another.
                actor.release_slot(turn, op)
                next_op = actor.next(turn, light) if continues and (until is None or until.state != DONE) else None
                if next_op is None:
                    actor.wake_worker()  # for work that this thread may not take
            # Before waking the waiters, so that no reference is left; outside the lock, since finalizers run any code.
            release(op)
            for waiter in waiters:
                waiter()
        except BaseException:  # an interrupt must not lose the operation
            retry(self._end_again, turn, op, failure, waiters)
            raise
        return next_op

    def _end_again(self, turn: Turn, op: Operation, failure: Failure | None, waiters: list[Callable[[], None]]) -> None:
        if turn.op is not None and turn.op is not op:  # the next operation, which this thread will not run
            self.drop(turn)
        with self.books.lock:
            self.books.recover()
            self.books.finish(op, failure, waiters)
            turn.actor.release_slot(turn, op)
            turn.actor.wake_worker()
        release(op)
        for waiter in waiters:
            waiter()

    def is_busy(self) -> bool:
        """Return whether the calling thread runs an operation other than user code, or changes the engine's state."""
        lock: Any = self.books.lock
        if lock._is_owned():
            return True
        op = None if self.local.turn is None else self.local.turn.op
        return op is not None and bool(op.began) and not op.runs_user_code and not op.waits_inside

    # -- at the push -----------------------------------------------------------------------------------

    def run_at_push(self, op: Operation) -> None:
        """Run an operation that the scheduler has admitted (locked).

        Queuing it, waking a worker and completing it would cost several times as much as running it. Under one
        interpreter lock, a worker could only alternate with this thread.
        """
        books = self.books
        failure = inherited_failure(op) if books.is_poisoned else None
        if failure is None:
            try:
                if op.layers:
                    self.inline(call_layered, op)
                else:
                    self.inline(op.function, *op.arguments)
            except Exception as error:  # whatever the operation raises fails it
                failure = failure_of(error, op)
        if failure is None and not books.is_poisoned and books.scheduler.leave(op):
            op.actor.executed += 1
            return
        self._end_at_push(op, failure)

    def _end_at_push(self, op: Operation, failure: Failure | None) -> None:
        books = self.books
        if failure is None and not op.handles_failures:
            for variable in op.writes:
                variable.failure = None
        if failure is not None:
            books.poison(op, failure)
        if books.scheduler.leave(op):
            op.actor.executed += 1
            return
        waiters: list[Callable[[], None]] = []
        books.recover()
        books.finish(op, failure, waiters)
        books.adopted.pop(op, None)
        for waiter in waiters:
            waiter()

    def finish_interrupted(self, op: Operation) -> None:
        """Finish an interrupted push: fail the operation if it was running, else complete the push."""
        with self.books.lock:
            if self.books.scheduler.inside is op or op in self.books.adopted:
                self._end_at_push(op, Failure(interrupt_error(op), op))
            self.books.recover()

    # -- elsewhere -------------------------------------------------------------------------------------

    async def run_coroutine(self, op: Operation) -> None:
        """Run a coroutine operation as a task until it ends."""
        op.began = monotonic()
        failure = inherited_failure(op) if self.books.is_poisoned else None
        if failure is None:
            try:
                op.result = await (op.function(*op.arguments) if not op.layers else call_layered(op))
            except asyncio.CancelledError:
                failure = Failure(OperationCancelled(f"operation {op.name!r} was cancelled while it ran"), op)
            except BaseException as error:  # whatever user code raises fails the operation
                failure = failure_of(error, op)
        self.end(op, failure)

    def end(self, op: Operation, failure: Failure | None) -> None:
        """Complete an operation that ended outside its actor's threads. Any thread may call this."""
        waiters: list[Callable[[], None]] = []
        with self.books.lock:
            self.books.recover()
            self.books.finish(op, failure, waiters)
        release(op)
        for waiter in waiters:
            waiter()
        self.on_operation_end()

    def end_all(self, endings: Sequence[tuple[Operation, Failure | None]]) -> None:
        """Complete several operations as :meth:`end` does, in one step."""
        waiters: list[Callable[[], None]] = []
        with self.books.lock:
            self.books.recover()
            for op, failure in endings:
                self.books.finish(op, failure, waiters)
        for op, _ in endings:
            release(op)
        for waiter in waiters:
            waiter()
        self.on_operation_end()

    def abandon(self, ops: Iterable[Operation], reason: str) -> None:
        """Fail operations that will never run, in dependency order."""
        waiters: list[Callable[[], None]] = []
        with self.books.lock:
            self.books.recover()
            ops = list(ops)
            for op in ops:
                if op.failure is None:
                    op.failure = Failure(EngineError(f"operation {op.name!r} was abandoned: {reason}"), op)
            for op in ops:
                if op.state in (READY, RUNNING):
                    self.books.finish(op, op.failure, waiters)
        for waiter in waiters:
            waiter()

    # -- parts -----------------------------------------------------------------------------------------

    def run_part(self, part: Operation) -> None:
        """Run a part of an operation that handles failures itself; an error poisons the part's variables."""
        failure = inherited_failure(part) if self.books.is_poisoned else None
        if failure is None:
            try:
                part.result = part.function(*part.arguments) if not part.layers else call_layered(part)
            except Exception as error:  # operations may raise anything
                failure = failure_of(error, part)
        if failure is not None:
            self.fail_part(failure, part.writes, part)
        elif self.books.is_poisoned:
            for variable in part.writes:
                variable.failure = None

    def fail_part(self, failure: Failure, variables: tuple[Variable, ...], op: Operation) -> None:
        """Apply Law 3 to a part of an operation that handles failures itself: its variables carry the error."""
        part = Operation(_do_nothing, (), (), variables, op.actor, op.name, op.origin)
        with self.books.lock:
            self.books.poison(part, failure)


def call_layered(op: Operation) -> Any:
    """Call the function of an operation inside its layers."""
    return call_in_layers(op.layers, op, op.function, op.arguments)


def call_in_layers(
    layers: Iterable[Layer], op: Operation, function: Callable[..., T], arguments: tuple[object, ...]
) -> T:
    """Call a function inside layers of an operation, the first innermost."""
    proceed = partial(function, *arguments)
    for layer in layers:
        proceed = partial(layer, op, proceed)
    return proceed()


def retry(function: Callable[..., T], *arguments: object) -> T:
    """Call a repeatable function until it completes without an interrupt."""
    for _ in range(_ATTEMPT_LIMIT):
        try:
            return function(*arguments)
        except BaseException as error:  # an interrupt must not skip the clean-up
            last = error
    raise last


def interrupt_error(op: Operation) -> BaseException:
    """Return the error of an interrupted operation."""
    return OperationCancelled(f"operation {op.name!r} was interrupted by KeyboardInterrupt")


def _call(function: Callable[..., object], *arguments: object) -> Any:
    return function(*arguments)


def _do_nothing() -> None:
    """The default of hooks, and the function of operations that do no work."""
