"""Waiting for operations: blocking waits of threads, and awaits of coroutines.

A waiting thread helps: if the operation has not started and its actor has a free slot, the thread runs the actor's
ready operations instead of sleeping. So push-and-wait costs microseconds and no thread switch. An event loop helps only
with light operations, and only briefly.

A wait *inside* an operation, on any thread or event loop, releases the operation's slot. Waiting there for an
operation that can only end later than the waiting one is an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import warnings
from asyncio import _get_running_loop as _running_loop  # bound here: called at each await
from collections.abc import Callable, Generator, Iterator
from contextvars import ContextVar
from time import monotonic
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from flowmx.engine.bookkeeping import Books
from flowmx.engine.loops import SIGNAL_CHECK_INTERVAL, LoopCalls, in_ordinary_code
from flowmx.engine.origin import user_frame
from flowmx.engine.running import Runner, retry
from flowmx.engine.scheduler import DONE, RUNNING, Marks, Operation, Token, Variable
from flowmx.errors import EngineError
from flowmx.event_loops import library, refuse, running_loop
from flowmx.settings import Settings

_log = logging.getLogger("flowmx.engine")

current: ContextVar[Operation | None] = ContextVar("flowmx_operation", default=None)
"""The pushed operation that this code runs in."""

# Every 64th await yields to the loop even if it need not wait. Otherwise a task that awaits tiny operations in a loop
# would starve other tasks (64 such operations take about half a millisecond).
_YIELD_EVERY = 64
_PRIVATE_FRAMES_HIDDEN = 2
"""Frames of this module between a warning and the caller."""
_AWAIT_HINT = "write `await array` first (or `await mx.nd.waitall_async()`), then read it"
_LOOP_HELPING_TIME = 0.001
"""Seconds for which a waiting event loop runs an actor's operations."""
_LOOP_ROOM_TIMEOUT = 0.005
"""Seconds that a push on an event loop waits for room in the run-ahead."""
_STALL_TIMEOUT = 1.0
"""Seconds without a completed operation, while only user code runs, after which a push stops waiting for room."""


class BlockingInCoroutineWarning(UserWarning):
    """A blocking read was used inside a coroutine, which should await instead."""


class _DeadlockError(EngineError):
    """An operation would wait for an operation that waits for it."""


class Wait(NamedTuple):
    """A thread or task that waits for an operation.

    Attributes:
        op: the operation.
        since: seconds of :func:`time.monotonic`.
        thread: the waiting thread's identity.
        task: the waiting task; None for a thread.
    """

    op: Operation
    since: float
    thread: int
    task: asyncio.Task[Any] | None = None


class Waiter:
    """Implements waits for operations, for the content of variables, and for room.

    Attributes:
        waits: the current waits, by future or lock.
        inside: waits inside operations, as pairs of the waiting operation and its dependency.
        flush: pushes the operations of open bulks, since a waiter may depend on them.
        synchronizers: called by waits for everything; each blocks until an asynchronous device has finished its work.
        loop_thread: returns the thread of the engine's event loop, or None.
        is_actor_thread: returns whether the calling thread runs actors' coroutines.
        ops_limit, bytes_limit: the run-ahead limits: beyond them, a push waits for room.
    """

    def __init__(self, books: Books, runner: Runner) -> None:
        self.books = books
        self.runner = runner
        self.waits: dict[object, Wait] = {}
        self.inside: dict[object, tuple[Operation, Operation]] = {}
        self.flush: Callable[[], None] = _do_nothing
        self.synchronizers: list[Callable[[], None]] = []
        self.loop_thread: Callable[[], threading.Thread | None] = _do_nothing
        self.is_actor_thread: Callable[[], bool] = bool
        self._awaits = 0
        self._calls: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopCalls] = WeakKeyDictionary()
        self._warned: set[tuple[str, int]] = set()
        self._has_logged_stall = False
        self.configure(Settings())

    def configure(self, config: Settings) -> None:
        """Use other settings."""
        self._blocking_in_loop = config.blocking_in_loop
        self._max_ops = self.ops_limit = config.engine_max_ops
        self.bytes_limit = config.engine_max_bytes

    # -- for an operation ------------------------------------------------------------------------------

    def wait(self, op: Operation) -> None:
        """Block this thread until an operation is complete (without raising its error)."""
        if op.state == DONE:
            return
        if asyncio._get_running_loop() is not None:
            self._check_blocking(op)
        elif library() is not None:
            self._refuse_foreign(repr(op.name))
        self._wait(op)

    def _wait(self, op: Operation) -> None:
        self.flush()
        holder = self._holder()
        if holder is not None:
            with self._waiting_inside(holder, op):
                self._block(op)
            return
        self.runner.help(op.actor, op)
        if op.state != DONE:
            self._block(op)

    def _block(self, op: Operation) -> None:
        gate = threading.Lock()
        gate.acquire()
        try:
            with self.books.lock:
                self.books.recover()
                if op.state == DONE:
                    return
                op.add_waiter(gate, lambda: _open(gate))
                self.waits[gate] = Wait(op, monotonic(), threading.get_ident())
            self._sleep(gate)
        finally:
            self.waits.pop(gate, None)
            self._remove_waiter(op, gate)

    def _remove_waiter(self, op: Operation, key: object) -> None:
        if op.waiters is not None:
            with self.books.lock:
                if op.waiters is not None:
                    op.waiters.pop(key, None)

    def _sleep(self, gate: threading.Lock, timeout: float | None = None) -> None:
        """Block until a lock is released; meanwhile, release the engine's lock, which a finalizer may hold."""
        lock: Any = self.books.lock
        lock_state = lock._release_save() if lock._is_owned() else None
        try:
            if timeout is not None:
                gate.acquire(timeout=timeout)
            else:
                while not gate.acquire(timeout=SIGNAL_CHECK_INTERVAL):
                    pass
        finally:
            if lock_state is not None:
                lock._acquire_restore(lock_state)

    def must_yield(self) -> bool:
        """Return whether an await that need not wait yields to the loop: every 64th does."""
        if _running_loop() is None:
            running_loop()  # raises
        self._awaits += 1
        return self._awaits % _YIELD_EVERY == 0

    def wait_async(self, op: Operation) -> Generator[object, None, None]:
        """Await an operation (``yield from`` in an ``__await__``); cancelling abandons only the wait."""
        if self.must_yield():
            yield None
        if op.state == DONE:
            return
        self.flush()
        holder = self._holder()
        if op.light and holder is None:
            self.runner.help(op.actor, op, True, monotonic() + _LOOP_HELPING_TIME)
            if op.state == DONE:
                return
        if holder is None:
            yield from self._wait_in_loop(op)
        else:
            with self._waiting_inside(holder, op):
                yield from self._wait_in_loop(op)

    def _wait_in_loop(self, op: Operation) -> Generator[object, None, None]:
        loop = running_loop()
        calls = self._calls.get(loop) or self._calls.setdefault(loop, LoopCalls(loop))
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            calls.add(_resolve, future)

        try:
            with self.books.lock:
                self.books.recover()
                if op.state == DONE:
                    return
                op.add_waiter(future, wake)
                self.waits[future] = Wait(op, monotonic(), threading.get_ident(), asyncio.current_task(loop))
            yield from future
        finally:
            self.waits.pop(future, None)
            self._remove_waiter(op, future)

    # -- for the content of a variable -----------------------------------------------------------------

    def wait_variable(self, variable: Variable) -> None:
        """Block until the writes pushed on a variable so far are complete; raise the error that poisoned it."""
        writer = variable.writer
        if writer is not None and writer.state != DONE:
            if self.holds(variable):
                return
            self.wait(writer)
        if variable.marks is not None:
            self._wait_for_device(variable.marks)
        if variable.failure is not None:
            variable.failure.throw()

    def wait_variable_async(self, variable: Variable) -> Generator[object, None, None]:
        """Await the variable: the async form of :meth:`wait_variable`."""
        writer = variable.writer
        if writer is not None:
            if writer.state != DONE and self.holds(variable):
                return
            yield from self.wait_async(writer)
        elif self.must_yield():
            yield None
        if variable.marks is not None:
            yield from self.wait_for_device(variable.marks)
        if variable.failure is not None:
            variable.failure.throw_awaited()

    def _wait_for_device(self, marks: Marks) -> None:
        """Block until launched work is complete; raise the device's error, if any."""
        if not marks.done():
            if asyncio._get_running_loop() is not None:
                self._warn_of_blocking("a blocking read", "a device")
            else:
                self._refuse_foreign("a device")
        failure = marks.finish()
        if failure is not None:
            failure.throw()

    def wait_for_device(self, token: Marks | Token) -> Generator[object, None, None]:
        """Wait for launched work in a helper thread; raise the device's error, if any."""
        if not token.done():
            yield from asyncio.get_running_loop().run_in_executor(None, token.finish)
        failure = token.finish()
        if failure is not None:
            failure.throw_awaited()

    def holds(self, variable: Variable) -> bool:
        """Return whether this code runs in an operation that uses the variable, which is therefore ready."""
        op = current.get()
        return op is not None and (variable in op.reads or variable in op.writes)

    # -- for all ---------------------------------------------------------------------------------------

    def wait_all(self, throw: bool = True) -> None:
        """Block until everything pushed so far is complete; raise the first error that no wait has raised yet."""
        with self.books.lock:
            ops = list(self.books.pending)
        in_loop = asyncio._get_running_loop() is not None
        # The last operation first: most others finish before it. pop(): a failure may keep this frame's list alive.
        while ops:
            op = ops.pop()
            if op.state != DONE and op not in self._unwaitable():
                if in_loop:
                    self._check_blocking(op)
                else:
                    self._refuse_foreign(repr(op.name))
                with contextlib.suppress(_DeadlockError):
                    self._wait(op)
        for synchronize in list(self.synchronizers):
            synchronize()
        if throw:
            self._throw_unraised()

    def wait_all_async(self) -> Generator[object, None, None]:
        """Await everything pushed so far: the async form of :meth:`wait_all`."""
        with self.books.lock:
            ops = list(self.books.pending)
        while ops:
            op = ops.pop()
            if op.state != DONE:
                with contextlib.suppress(_DeadlockError):
                    yield from self.wait_async(op)
        for synchronize in list(self.synchronizers):
            yield from asyncio.get_running_loop().run_in_executor(None, synchronize)
        self._throw_unraised()

    def _throw_unraised(self) -> None:
        with self.books.lock:
            failure = self.books.take_unraised()
        if failure is not None:
            failure.throw()

    # -- for room --------------------------------------------------------------------------------------

    def make_room(self, nbytes: int, is_user_code: bool = False) -> None:
        """Law 4: at the run-ahead limit, make the pushing thread wait until half of the pending operations are done.

        A push inside an operation does not wait, since it might wait for that operation. Threads that operations start
        cannot be recognized, so a push continues if only user code runs and no operation completes. Pending operations
        may need the event loop, so a push there waits only a few milliseconds. A push of user code, which allocates no
        array, does not wait there.
        """
        if self._holder() is not None or self.is_actor_thread() or self._is_below_limit(nbytes):
            return
        self.flush()
        is_other_library = library() is not None
        in_loop = is_other_library or asyncio._get_running_loop() is not None
        if in_loop and (is_user_code or self._only_user_code_runs()):  # user code may need this loop
            self.ops_limit = len(self.books.pending) + self._max_ops // 2
            return
        if in_loop and not is_other_library:
            self._warn_of_blocking(
                "a push", "room for more operations", "`await mx.engine.wait_for_capacity()` now and then"
            )
        has_room = self._is_below_limit if in_loop else self.has_room
        timeout = _LOOP_ROOM_TIMEOUT if in_loop else _STALL_TIMEOUT
        completed = self.books.scheduler.completed
        while not self._sleep_for_room(nbytes, has_room, timeout):
            before, completed = completed, self.books.scheduler.completed
            if before == completed and self._only_user_code_runs():
                self._log_stall()
                self.ops_limit = len(self.books.pending) + self._max_ops // 2
                return
            if in_loop:
                return

    def _log_stall(self) -> None:
        """Log once that pushes wait for operations that do not end."""
        with self.books.lock:
            names = [op.name for op in self.books.pending if op.state == RUNNING]
        if not self._has_logged_stall:
            self._has_logged_stall = True
            _log.warning(
                "%d operations are pending (the limit is FLOWMX_ENGINE_MAX_OPS=%d), so a push waited %g s for "
                "running user code: %s. If that code waits for this thread, push it less work, or raise the limit",
                len(self.books.pending), self._max_ops, _STALL_TIMEOUT, ", ".join(map(repr, names)),
            )  # fmt: skip

    def _sleep_for_room(self, nbytes: int, has_room: Callable[[int], bool], timeout: float) -> bool:
        """Block until there is room, for at most ``timeout`` seconds; return whether there is room."""
        gate = threading.Lock()
        gate.acquire()
        try:
            with self.books.lock:
                self.books.recover()
                if not has_room(nbytes):
                    self.books.add_room_waiter(gate, lambda: has_room(nbytes), lambda: _open(gate))
                    self._sleep(gate, timeout)
                return has_room(nbytes)
        finally:
            with self.books.lock:
                self.books.cancel_room_wait(gate)

    def _is_below_limit(self, nbytes: int) -> bool:
        books = self.books
        return not books.pending or (
            len(books.pending) < self.ops_limit and books.scheduler.pending_bytes + nbytes <= self.bytes_limit
        )

    def _only_user_code_runs(self) -> bool:
        with self.books.lock:
            running = [op for op in self.books.pending if op.state == RUNNING]
        return bool(running) and all(op.runs_user_code for op in running)

    def has_room(self, nbytes: int = 0) -> bool:
        """Return whether the run-ahead is below half its limits."""
        pending = self.books.pending
        if pending and (
            len(pending) > self._max_ops // 2
            or self.books.scheduler.pending_bytes + nbytes > max(self.bytes_limit // 2, nbytes)
        ):  # fmt: skip
            return False
        self.ops_limit = self._max_ops
        return True

    def wait_for_room(self) -> Generator[object, None, None]:
        """Await until the run-ahead is below half its limits, for a loop that pushes in a coroutine."""
        while not self.has_room():
            oldest = self.books.oldest()
            if oldest is not None:
                yield from self.wait_async(oldest)

    # -- inside an operation ---------------------------------------------------------------------------

    def _holder(self) -> Operation | None:
        """Return the operation that this code runs in, by its context or by this thread's stack, or None."""
        op = current.get()
        if op is not None and op.state != DONE:
            return op
        turn = self.runner.local.turn
        if turn is not None and turn.op is not None:
            return turn.op
        if self.books.adopted:
            ident = threading.get_ident()
            return next((op for op, thread in self.books.adopted.items() if thread == ident), None)
        return None

    def _unwaitable(self) -> set[Operation]:
        """Return the operation that this code runs in and its dependents (usually an empty set)."""
        holder = self._holder()
        if holder is None:
            return set()
        with self.books.lock:
            return self.books.dependents_of([holder], self.inside.values())

    @contextlib.contextmanager
    def _waiting_inside(self, holder: Operation, op: Operation) -> Iterator[None]:
        """Record that an operation waits inside for another, and release its slot meanwhile.

        Raises:
            EngineError: the other operation can only end after this one.
        """
        key = object()
        try:
            with self.books.lock:
                self.books.recover()
                if op in self.books.dependents_of([holder], self.inside.values()):
                    raise _DeadlockError(
                        f"an operation waits inside itself for {op.name!r}, which cannot end before it does: wait "
                        "outside, or push the later work without waiting"
                    )
                self.inside[key] = holder, op
                holder.waits_inside += 1
                if holder.waits_inside == 1:
                    holder.actor.open_slot()
            yield
        finally:
            retry(self._end_wait_inside, key, holder)

    def _end_wait_inside(self, key: object, holder: Operation) -> None:
        with self.books.lock:
            self.books.recover()
            if key in self.inside:
                del self.inside[key]
                holder.waits_inside -= 1
                if holder.waits_inside == 0:
                    holder.actor.close_slot()

    @contextlib.contextmanager
    def slot_released(self) -> Iterator[None]:
        """Release this worker's slot to another while this thread waits for a device."""
        turn = self.runner.local.turn
        if turn is None:
            yield
            return
        with self.books.lock:
            turn.actor.open_slot()
        try:
            yield
        finally:
            with self.books.lock:
                turn.actor.close_slot()

    # -- on an event loop ------------------------------------------------------------------------------

    def _check_blocking(self, op: Operation) -> None:
        """Law 2: a blocking read inside a coroutine warns once per place, or raises an error."""
        if threading.current_thread() is self.loop_thread():
            with self.books.lock:
                # Actors whose operations no waiting thread can run need this loop, or run code that may wait for it.
                loop_ops = [
                    other
                    for other in self.books.pending
                    if not (other.actor.accepts_help or (other.actor.launches and not other.runs_user_code))
                    and other is not current.get()
                ]
                if op in self.books.dependents_of(loop_ops, self.inside.values()):
                    raise EngineError(
                        f"a coroutine operation would block the engine's event loop until {op.name!r} is complete, "
                        "which needs that loop: await it instead"
                    )
            return
        self._warn_of_blocking("a blocking read", repr(op.name))

    def _refuse_foreign(self, what: str) -> None:
        """Raise EngineError if a blocking read would block the event loop of a library other than asyncio."""
        if self._blocking_in_loop == "allow":
            return
        error = refuse(f"a blocking read waits for {what}")
        if error is not None:
            raise error

    def _warn_of_blocking(self, kind: str, what: str, instead: str = _AWAIT_HINT) -> None:
        """Warn once per place that a call blocks inside a coroutine, or raise."""
        mode = self._blocking_in_loop
        if mode == "allow" or _in_notebook() or in_ordinary_code():
            return
        frame = user_frame(_PRIVATE_FRAMES_HIDDEN)
        place = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("?", 0)
        message = f"{kind} inside a coroutine waits for {what} and blocks the event loop: {instead}"
        if mode == "error":
            raise EngineError(f"{place[0]}:{place[1]}: {message}")
        if place in self._warned:
            return
        self._warned.add(place)
        warnings.warn_explicit(message, BlockingInCoroutineWarning, place[0], place[1])


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _open(gate: threading.Lock) -> None:
    """Release the lock of a sleeping thread if it is still locked."""
    try:
        gate.release()
    except RuntimeError:
        pass


def _in_notebook() -> bool:
    """Return whether this is an IPython kernel or shell, where a loop always runs and blocking reads are normal."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def _do_nothing() -> None:
    return None
