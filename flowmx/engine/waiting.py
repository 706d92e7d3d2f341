"""Waiting: blocking reads for plain threads, awaits for coroutines, and waits that are refused.

A thread that waits lends itself: where the operation it waits for has not started and its actor has a free slot, the
thread runs the actor's ready operations instead of sleeping, which is what makes push-and-wait cost microseconds and
not a thread hop. An event loop lends itself to light operations alone, and not for long.

Who waits *inside* an operation, on whatever thread or event loop, gives the operation's slot up meanwhile. What can
not end before that operation does is not waited for: that is an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import warnings
from asyncio import _get_running_loop as _running_loop  # bound: it is asked at each await
from collections.abc import Callable, Generator, Iterator
from contextvars import ContextVar
from time import monotonic
from typing import Any, NamedTuple

from flowmx.engine.bookkeeping import Books
from flowmx.engine.loops import LOOK_UP, in_plain_code, running
from flowmx.engine.origin import user_frame
from flowmx.engine.running import Runner, again
from flowmx.engine.scheduler import DONE, RUNNING, Marks, Operation, Token, Variable
from flowmx.errors import EngineError
from flowmx.settings import Settings

current: ContextVar[Operation | None] = ContextVar("flowmx_operation", default=None)
"""The pushed operation that this code runs in."""

# Every so many awaits that needed no wait, yield to the loop all the same, so that a task which awaits
# tiny operations in a loop does not starve its neighbours (64 of them take about half a millisecond).
_YIELD_EVERY = 64
_PRIVATE_FRAMES_HIDDEN = 2
_NO_LOOP = (
    "something is awaited where no asyncio event loop runs, and flowmx is awaited on asyncio alone; under trio, wait "
    "in a thread instead: `await trio.to_thread.run_sync(array.wait_to_read)`"
)
_AWAIT_IT = "write `await array` first (or `await mx.nd.waitall_async()`), then read it"
_LENDING_ON_A_LOOP = 0.001
"""Seconds after which an event loop that lends itself goes back to its own work."""
_ROOM_ON_A_LOOP = 0.005
"""Seconds that a push on an event loop waits for room."""
_STANDSTILL = 1.0
"""Seconds without any end, while nothing but user code runs, after which a push waits for room no longer."""


class BlockingInCoroutineWarning(UserWarning):
    """A blocking read was used inside a coroutine, where an awaited one belongs."""


class _Circle(EngineError):
    """An operation would wait for one that waits for it."""


class Wait(NamedTuple):
    """A thread or task that waits for an operation.

    Attributes:
        op: the operation.
        since: seconds of :func:`time.monotonic`.
        thread: the waiting thread's identity.
        task: the waiting task, where it is one.
    """

    op: Operation
    since: float
    thread: int
    task: asyncio.Task[Any] | None = None


class Waiting:
    """Waits for operations, for the content of variables, and for room.

    Attributes:
        waits: who waits for what at the moment.
        inside: which running operations wait, inside, for which others.
        flush: pushes the operations that bulks hold back, which a waiter may depend on.
        synchronizers: block until an asynchronous device has done what was launched there; called by whoever waits
            for all.
        loop_thread: the thread of the engine's own loop, if there is one.
        is_home: whether the calling thread is one in which actors live.
        most_ops, most_bytes: the run-ahead limit: where as much is pending, a push waits for room.
    """

    def __init__(self, books: Books, runner: Runner) -> None:
        self.books = books
        self.runner = runner
        self.waits: dict[object, Wait] = {}
        self.inside: dict[object, tuple[Operation, Operation]] = {}
        self.flush: Callable[[], None] = _nothing
        self.synchronizers: list[Callable[[], None]] = []
        self.loop_thread: Callable[[], threading.Thread | None] = _nothing
        self.is_home: Callable[[], bool] = bool
        self._awaits = 0
        self._warned: set[tuple[str, int]] = set()
        self.configure(Settings())

    def configure(self, config: Settings) -> None:
        """Use other settings."""
        self._blocking_in_loop = config.blocking_in_loop
        self._max_ops = self.most_ops = config.engine_max_ops
        self.most_bytes = config.engine_max_bytes

    # -- for an operation ------------------------------------------------------------------------------

    def wait(self, op: Operation) -> None:
        """Block this thread until an operation is complete (without raising its error)."""
        if op.state == DONE:
            return
        if asyncio._get_running_loop() is not None:
            self._blocking_in_coroutine(op)
        self._wait(op)

    def _wait(self, op: Operation) -> None:
        self.flush()
        holder = self._holder()
        if holder is not None:
            with self._waiting_inside(holder, op):
                self._block(op)
            return
        self.runner.lend(op.actor, op)
        if op.state != DONE:
            self._block(op)

    def _block(self, op: Operation) -> None:
        gate = threading.Lock()
        gate.acquire()
        try:
            with self.books.lock:
                self.books.settle()
                if op.state == DONE:
                    return
                op.tell(gate, lambda: _open(gate))
                self.waits[gate] = Wait(op, monotonic(), threading.get_ident())
            self._sleep(gate)
        finally:
            self.waits.pop(gate, None)
            self._tell_no_more(op, gate)

    def _tell_no_more(self, op: Operation, key: object) -> None:
        if op.waiters is not None:
            with self.books.lock:
                if op.waiters is not None:
                    op.waiters.pop(key, None)

    def _sleep(self, gate: threading.Lock, timeout: float | None = None) -> None:
        """Block until a lock is released. A handler or finaliser may hold the engine's lock, further down."""
        lock: Any = self.books.lock
        held = lock._release_save() if lock._is_owned() else None
        try:
            if timeout is not None:
                gate.acquire(timeout=timeout)
            else:
                while not gate.acquire(timeout=LOOK_UP):
                    pass
        finally:
            if held is not None:
                lock._acquire_restore(held)

    def must_yield(self) -> bool:
        """True at every 64th await that needs no wait: it yields to the loop all the same."""
        if _running_loop() is None:
            raise EngineError(_NO_LOOP)
        self._awaits += 1
        return self._awaits % _YIELD_EVERY == 0

    def wait_async(self, op: Operation) -> Generator[Any, None, None]:
        """Await an operation (``yield from`` in an ``__await__``); cancelling abandons only the wait."""
        if self.must_yield():
            yield
        if op.state == DONE:
            return
        self.flush()
        holder = self._holder()
        if op.light and holder is None:
            self.runner.lend(op.actor, op, True, monotonic() + _LENDING_ON_A_LOOP)
            if op.state == DONE:
                return
        if holder is None:
            yield from self._wait_in_loop(op)
        else:
            with self._waiting_inside(holder, op):
                yield from self._wait_in_loop(op)

    def _wait_in_loop(self, op: Operation) -> Generator[Any, None, None]:
        loop = asyncio.get_running_loop()
        if loop not in running:
            running[loop] = threading.get_ident()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(_resolve, future)
            except RuntimeError:  # the waiter's loop is closed: nobody waits any more
                pass

        try:
            with self.books.lock:
                self.books.settle()
                if op.state == DONE:
                    return
                op.tell(future, wake)
                self.waits[future] = Wait(op, monotonic(), threading.get_ident(), asyncio.current_task(loop))
            yield from future
        finally:
            self.waits.pop(future, None)
            self._tell_no_more(op, future)

    # -- for the content of a variable -----------------------------------------------------------------

    def wait_variable(self, variable: Variable) -> None:
        """Block until the writes pushed on a variable so far are done; raises what poisoned it."""
        writer = variable.writer
        if writer is not None and writer.state != DONE:
            if self.holds(variable):
                return
            self.wait(writer)
        if variable.marks is not None:
            self._wait_for_device(variable.marks)
        if variable.failure is not None:
            variable.failure.throw()

    def wait_variable_async(self, variable: Variable) -> Generator[Any, None, None]:
        """The awaited form of :meth:`wait_variable`."""
        writer = variable.writer
        if writer is not None:
            if writer.state != DONE and self.holds(variable):
                return
            yield from self.wait_async(writer)
        elif self.must_yield():
            yield
        if variable.marks is not None:
            yield from self.wait_for_device(variable.marks)
        if variable.failure is not None:
            variable.failure.throw_awaited()

    def _wait_for_device(self, marks: Marks) -> None:
        """Block until launched work is done; raises the device's error, if any."""
        if not marks.done() and asyncio._get_running_loop() is not None:
            self._warn_of_blocking("a blocking read", "a device")
        failure = marks.finish()
        if failure is not None:
            failure.throw()

    def wait_for_device(self, waited: Marks | Token) -> Generator[Any, None, None]:
        """The awaited form: a helper thread waits."""
        if not waited.done():
            yield from asyncio.get_running_loop().run_in_executor(None, waited.finish)
        failure = waited.finish()
        if failure is not None:
            failure.throw_awaited()

    def holds(self, variable: Variable) -> bool:
        """True inside an operation that reads or writes the variable: it is there, and later writers wait."""
        op = current.get()
        return op is not None and (variable in op.reads or variable in op.writes)

    # -- for all ---------------------------------------------------------------------------------------

    def wait_all(self, throw: bool = True) -> None:
        """Block until everything pushed so far is complete; raises the first error nobody has seen."""
        with self.books.lock:
            waiting = list(self.books.pending)
        in_loop = asyncio._get_running_loop() is not None
        # The last first: when it is done, most are. None is kept, since a failure may keep this frame.
        while waiting:
            op = waiting.pop()
            if op.state != DONE and op not in self._behind_this():
                if in_loop:
                    self._blocking_in_coroutine(op)
                with contextlib.suppress(_Circle):
                    self._wait(op)
        for synchronize in list(self.synchronizers):
            synchronize()
        if throw:
            self._throw_unseen()

    def wait_all_async(self) -> Generator[Any, None, None]:
        """The awaited form of :meth:`wait_all`."""
        with self.books.lock:
            waiting = list(self.books.pending)
        while waiting:
            op = waiting.pop()
            if op.state != DONE:
                with contextlib.suppress(_Circle):
                    yield from self.wait_async(op)
        for synchronize in list(self.synchronizers):
            yield from asyncio.get_running_loop().run_in_executor(None, synchronize)
        self._throw_unseen()

    def _throw_unseen(self) -> None:
        with self.books.lock:
            failure = self.books.take_unseen()
        if failure is not None:
            failure.throw()

    # -- for room --------------------------------------------------------------------------------------

    def make_room(self, nbytes: int) -> None:
        """Law 4: at the run-ahead limit the pushing thread waits until half of it has drained.

        Inside an operation there is no waiting, since it might be for itself. Threads that an operation has started do
        not show as such: where nothing but user code runs and nothing ends any more, the push goes on. An event loop,
        which pending work may need, waits for some milliseconds alone.
        """
        if self._holder() is not None or self.is_home() or self._is_below_limit(nbytes):
            return
        self.flush()
        on_a_loop = asyncio._get_running_loop() is not None
        if on_a_loop and self._only_user_code_runs():  # which may need this loop
            self.most_ops = len(self.books.pending) + self._max_ops // 2
            return
        if on_a_loop:
            self._warn_of_blocking("a push", "room for more operations", "`await mx.engine.room()` now and then")
        has_room = self._is_below_limit if on_a_loop else self.has_room
        patience = _ROOM_ON_A_LOOP if on_a_loop else _STANDSTILL
        completed = self.books.scheduler.completed
        while not self._sleep_for_room(nbytes, has_room, patience):
            before, completed = completed, self.books.scheduler.completed
            if before == completed and self._only_user_code_runs():
                self.most_ops = len(self.books.pending) + self._max_ops // 2
                return
            if on_a_loop:
                return

    def _sleep_for_room(self, nbytes: int, has_room: Callable[[int], bool], timeout: float) -> bool:
        """Block until there is room, at most for so many seconds; True where there is."""
        gate = threading.Lock()
        gate.acquire()
        try:
            with self.books.lock:
                self.books.settle()
                if not has_room(nbytes):
                    self.books.wait_for_room(gate, lambda: has_room(nbytes), lambda: _open(gate))
                    self._sleep(gate, timeout)
                return has_room(nbytes)
        finally:
            with self.books.lock:
                self.books.wait_no_more(gate)

    def _is_below_limit(self, nbytes: int) -> bool:
        books = self.books
        return not books.pending or (
            len(books.pending) < self.most_ops and books.scheduler.pending_bytes + nbytes <= self.most_bytes
        )

    def _only_user_code_runs(self) -> bool:
        with self.books.lock:
            running = [op for op in self.books.pending if op.state == RUNNING]
        return bool(running) and all(op.runs_user_code for op in running)

    def has_room(self, nbytes: int = 0) -> bool:
        """Tell whether the run-ahead is below half its limits."""
        pending = self.books.pending
        if pending and (
            len(pending) > self._max_ops // 2
            or self.books.scheduler.pending_bytes + nbytes > max(self.most_bytes // 2, nbytes)
        ):  # fmt: skip
            return False
        self.most_ops = self._max_ops
        return True

    def room(self) -> Generator[Any, None, None]:
        """Await until the run-ahead is below half its limits (what a loop that pushes in a coroutine awaits)."""
        while not self.has_room():
            oldest = self.books.oldest()
            if oldest is not None:
                yield from self.wait_async(oldest)

    # -- inside an operation ---------------------------------------------------------------------------

    def _holder(self) -> Operation | None:
        """The operation that this code runs in: by its context, or because it stands on this thread's stack."""
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

    def _behind_this(self) -> set[Operation]:
        """The operation that this code runs in and all that wait for it (usually: none)."""
        holder = self._holder()
        if holder is None:
            return set()
        with self.books.lock:
            return self.books.behind([holder], self.inside.values())

    @contextlib.contextmanager
    def _waiting_inside(self, holder: Operation, op: Operation) -> Iterator[None]:
        """Say that an operation waits, inside, for another one, and let others have its slot.

        Raises:
            EngineError: that one can not end before this one does.
        """
        key = object()
        try:
            with self.books.lock:
                self.books.settle()
                if op in self.books.behind([holder], self.inside.values()):
                    raise _Circle(
                        f"an operation waits inside itself for {op.name!r}, which can not end before it does: wait "
                        "outside, or push what is to come later without waiting"
                    )
                self.inside[key] = holder, op
                holder.waits_inside += 1
                if holder.waits_inside == 1:
                    holder.actor.open_slot()
            yield
        finally:
            again(self._no_longer_inside, key, holder)

    def _no_longer_inside(self, key: object, holder: Operation) -> None:
        with self.books.lock:
            self.books.settle()
            if key in self.inside:
                del self.inside[key]
                holder.waits_inside -= 1
                if holder.waits_inside == 0:
                    holder.actor.close_slot()

    @contextlib.contextmanager
    def standing_aside(self) -> Iterator[None]:
        """While this thread waits for a device, let another worker take its place, where it is one."""
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

    def _blocking_in_coroutine(self, op: Operation) -> None:
        """Law 2: a blocking read inside a coroutine warns once per place, or is an error."""
        if threading.current_thread() is self.loop_thread():
            with self.books.lock:
                # What does not lend its work runs on this loop, or is code that may wait for it.
                needing = [
                    each
                    for each in self.books.pending
                    if not (each.actor.may_lend or (each.actor.launches and not each.runs_user_code))
                    and each is not current.get()
                ]
                if op in self.books.behind(needing, self.inside.values()):
                    raise EngineError(
                        f"a coroutine operation would block the engine's own loop until {op.name!r} is complete, "
                        "which needs that loop: await it instead"
                    )
            return
        self._warn_of_blocking("a blocking read", repr(op.name))

    def _warn_of_blocking(self, kind: str, what: str, instead: str = _AWAIT_IT) -> None:
        """Something blocks inside a coroutine: warn once per place, or raise."""
        mode = self._blocking_in_loop
        if mode == "allow" or _in_notebook() or in_plain_code():
            return
        frame = user_frame(_PRIVATE_FRAMES_HIDDEN)
        place = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("?", 0)
        message = f"{kind} inside a coroutine waits for {what} and holds up the event loop: {instead}"
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
    """Release a lock at which a thread sleeps, unless that was done."""
    try:
        gate.release()
    except RuntimeError:
        pass


def _in_notebook() -> bool:
    """True inside an IPython kernel or shell, where a loop always runs and blocking reads are normal."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def _nothing() -> None:
    return None
