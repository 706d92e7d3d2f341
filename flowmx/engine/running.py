"""Running operations: on the threads of their actors and on those that lend themselves, at their push, as coroutines.

An interrupt may strike between any two bytecodes of the main thread, and other threads can be made to raise too. What
a thread holds is written down in its turn before anything is called, and the end of an operation may be done over, so
that whatever was broken off is finished where it was, and nothing is lost (:func:`again`).
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

from flowmx.engine.bookkeeping import Books, carried, release
from flowmx.engine.failure import Failure, failure_of
from flowmx.engine.scheduler import DONE, READY, RUNNING, Layer, Operation, Variable
from flowmx.engine.workers import Turn
from flowmx.errors import EngineError, OperationCancelled

T = TypeVar("T")

_NO_GUARD: AbstractContextManager[Any] = contextlib.nullcontext()
_MOST_ATTEMPTS = 1000
"""The number of attempts at a step that interrupts break off: a fault of its own would break it off for ever."""


class ThreadState(threading.local):
    """Thread-local state of the engine: the calling thread's turn, or None."""

    turn: Turn | None = None


class Runner:
    """Runs operations and completes them.

    Attributes:
        here: the calling thread's turn.
        guard: a context for a thread in which operations run; user code runs in that of its push instead.
        prepare: called whenever a thread begins to run some.
        inline: calls the function of a light operation at its push, as ``inline(function, *arguments)``.
        after: called when an operation has ended on the event loop.
    """

    def __init__(self, books: Books) -> None:
        self.books = books
        self.local = ThreadState()
        self.guard: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
        self.prepare: Callable[[], None] = _nothing
        self.inline: Callable[..., Any] = _call
        self.after: Callable[[], None] = _nothing

    # -- on threads ------------------------------------------------------------------------------------

    def work(self, turn: Turn, op: Operation | None, until: Operation | None = None, light: bool = False,
             deadline: float = float("inf")) -> None:  # fmt: skip
        """Run the operation of a turn, and the next ones of its actor.

        Args:
            turn: this thread's, which has taken the operation.
            op: the operation.
            until: stop when this one is done.
            light: stop before one that is not light.
            deadline: take nothing more after this moment, in seconds of :func:`time.monotonic`.
        """
        books = self.books
        while op is not None:
            failure: Failure | None = None
            interrupt: BaseException | None = None
            op.began = now = monotonic()
            try:
                if books.is_poisoned:
                    failure = carried(op)
                if failure is None:
                    if not op.layers:
                        op.result = op.function(*op.arguments)
                    elif op.arguments or len(op.layers) > 1:
                        op.result = layered(op)
                    else:  # user code: one call less
                        op.result = op.layers[0](op, op.function)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                    interrupt, failure = error, Failure(interrupted(op), op)
                else:
                    failure = failure_of(error, op)
            op = self._end(turn, op, failure, until, light, interrupt is None and now < deadline)
            if interrupt is not None:
                raise interrupt

    def lend(self, actor: Any, until: Operation | None = None, light: bool = False,
             deadline: float = float("inf")) -> None:  # fmt: skip
        """Run ready operations of an actor on this thread, which waits; arguments as of :meth:`work`."""
        if not actor.may_lend:
            return
        turn = Turn(actor)
        outer = self.local.turn
        try:
            self.local.turn = turn
            with self.books.lock:
                self.books.settle()
                op = None if until is not None and until.state == DONE else actor.next(turn, light)
            if op is not None:
                self.prepare()
                # Where it runs this one alone, the guard would be of no use.
                with _NO_GUARD if op.runs_user_code and op is until else self.guard():
                    self.work(turn, op, until, light, deadline)
        except BaseException:
            try:
                again(self.drop, turn)
            except BaseException:  # the next interrupt came before that had begun
                again(self.drop, turn)
            raise
        finally:
            self.local.turn = outer

    def drop(self, turn: Turn) -> None:
        """Put back an operation that an ending thread has taken and not begun."""
        op = turn.op
        if op is not None and op.began:
            self._end(turn, op, Failure(interrupted(op), op), None, False, False)
            self.after()
            return
        with self.books.lock:
            self.books.settle()
            turn.actor.give_back(turn)

    def _end(
        self, turn: Turn, op: Operation, failure: Failure | None, until: Operation | None, light: bool, goes_on: bool
    ) -> Operation | None:
        """Complete an operation, and return the next one of the turn, if there is one to go on with."""
        waiters: list[Callable[[], None]] = []
        books, actor = self.books, turn.actor
        try:
            with books.lock:
                books.settle()
                books.finish(op, failure, waiters)
                actor.over(turn, op)  # after that: what is ready now is for this thread, and no other need be called
                following = actor.next(turn, light) if goes_on and (until is None or until.state != DONE) else None
                if following is None:
                    actor.tend()  # there may be work that is not for this thread
            # Before waiters are notified, who may read the memory; outside the lock, since a finaliser may do anything.
            release(op)
            for waiter in waiters:
                waiter()
        except BaseException:
            again(self._end_again, turn, op, failure, waiters)
            raise
        return following

    def _end_again(self, turn: Turn, op: Operation, failure: Failure | None, waiters: list[Callable[[], None]]) -> None:
        if turn.op is not None and turn.op is not op:  # the next one, which it will not run
            self.drop(turn)
        with self.books.lock:
            self.books.settle()
            self.books.finish(op, failure, waiters)
            turn.actor.over(turn, op)
            turn.actor.tend()
        release(op)
        for waiter in waiters:
            waiter()

    # -- at the push -----------------------------------------------------------------------------------

    def run_at_push(self, op: Operation) -> None:
        """Run an operation that the scheduler has let in (locked).

        Queuing it, waking a worker and completing it would cost several times what it takes, and under one
        interpreter lock a worker could only take turns with this thread.
        """
        books = self.books
        failure = carried(op) if books.is_poisoned else None
        if failure is None:
            try:
                if op.layers:
                    self.inline(layered, op)
                else:
                    self.inline(op.function, *op.arguments)
            except Exception as error:
                failure = failure_of(error, op)
        if failure is None and not books.is_poisoned and books.scheduler.leave(op):
            op.actor.executed += 1
            return
        self._end_at_push(op, failure)

    def _end_at_push(self, op: Operation, failure: Failure | None) -> None:
        books = self.books
        if failure is None and not op.settles:
            for variable in op.writes:
                variable.failure = None
        if failure is not None:
            books.poison(op, failure)
        if books.scheduler.leave(op):
            op.actor.executed += 1
            return
        waiters: list[Callable[[], None]] = []
        books.settle()
        books.finish(op, failure, waiters)
        books.adopted.pop(op, None)
        for waiter in waiters:
            waiter()

    def break_off(self, op: Operation) -> None:
        """End what an interrupt broke off at a push: one that ran fails, one that was being pushed is pushed."""
        with self.books.lock:
            if self.books.scheduler.inside is op or op in self.books.adopted:
                self._end_at_push(op, Failure(interrupted(op), op))
            self.books.settle()

    # -- elsewhere -------------------------------------------------------------------------------------

    async def run_coroutine(self, op: Operation) -> None:
        """Run a coroutine operation to its end, as a task."""
        op.began = monotonic()
        failure = carried(op) if self.books.is_poisoned else None
        if failure is None:
            try:
                op.result = await (op.function(*op.arguments) if not op.layers else layered(op))
            except asyncio.CancelledError:
                failure = Failure(OperationCancelled(f"operation {op.name!r} was cancelled while it ran"), op)
            except BaseException as error:
                failure = failure_of(error, op)
        self.end(op, failure)

    def end(self, op: Operation, failure: Failure | None) -> None:
        """Complete an operation that its actor began, and that ended elsewhere (on any thread)."""
        waiters: list[Callable[[], None]] = []
        with self.books.lock:
            self.books.settle()
            self.books.finish(op, failure, waiters)
        release(op)
        for waiter in waiters:
            waiter()
        self.after()

    def end_all(self, endings: Sequence[tuple[Operation, Failure | None]]) -> None:
        """The same for several, in one step."""
        waiters: list[Callable[[], None]] = []
        with self.books.lock:
            self.books.settle()
            for op, failure in endings:
                self.books.finish(op, failure, waiters)
        for op, _ in endings:
            release(op)
        for waiter in waiters:
            waiter()
        self.after()

    def abandon(self, ops: Iterable[Operation], why: str) -> None:
        """Fail operations that will never be run, each in its turn."""
        waiters: list[Callable[[], None]] = []
        with self.books.lock:
            self.books.settle()
            ops = list(ops)
            for op in ops:
                if op.failure is None:
                    op.failure = Failure(EngineError(f"operation {op.name!r} was given up: {why}"), op)
            for op in ops:
                if op.state in (READY, RUNNING):
                    self.books.finish(op, op.failure, waiters)
        for waiter in waiters:
            waiter()

    # -- parts -----------------------------------------------------------------------------------------

    def run_part(self, part: Operation) -> None:
        """Run one part of an operation that settles its failures: its own error poisons its own variables, at once."""
        failure = carried(part) if self.books.is_poisoned else None
        if failure is None:
            try:
                part.result = part.function(*part.arguments) if not part.layers else layered(part)
            except Exception as error:
                failure = failure_of(error, part)
        if failure is not None:
            self.fail_part(failure, part.writes, part)
        elif self.books.is_poisoned:
            for variable in part.writes:
                variable.failure = None

    def fail_part(self, failure: Failure, variables: tuple[Variable, ...], op: Operation) -> None:
        """Law 3 for a part of an operation that settles its failures by itself: these carry its error."""
        part = Operation(_nothing, (), (), variables, op.actor, op.name, op.origin)
        with self.books.lock:
            self.books.poison(part, failure)


def layered(op: Operation) -> Any:
    """Call the function of an operation with all that is done around it."""
    return call_in(op.layers, op, op.function, op.arguments)


def call_in(layers: Iterable[Layer], op: Operation, function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    """Call a function with layers of an operation around it, the innermost first."""
    proceed = partial(function, *arguments)
    for layer in layers:
        proceed = partial(layer, op, proceed)
    return proceed()


def again(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function that may be called again where an interrupt broke it off, until it has run through."""
    for _ in range(_MOST_ATTEMPTS):
        try:
            return function(*arguments)
        except BaseException as error:
            last = error
    raise last


def interrupted(op: Operation) -> BaseException:
    """The failure of an operation that an interrupt broke off."""
    return OperationCancelled(f"operation {op.name!r} was interrupted by KeyboardInterrupt")


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def _nothing() -> None:
    """The function of an operation that only stands for others."""
