"""The asyncio runtime: drives actors with what the scheduler says may run.

One :class:`Engine` serves the process. Pushing happens on the caller's thread under one lock and never
waits for work (Law 2). Actors are coroutines on the engine's own loop, in its own thread; the CPU's actors
own worker threads. A thread that waits lends itself: where the operation it waits for has not started and
its actor has a free slot, the thread runs the actor's ready operations instead of sleeping, which is what
makes push-and-wait cost microseconds and not a thread hop.

The lock is re-entrant because a finaliser or a signal handler may push from the middle of anything.
A ``KeyboardInterrupt`` may strike between any two bytecodes of the main thread, in the middle of a push or
a completion too. :meth:`Engine._mend` then fails the operation that the thread was about and resolves what
is pending anew from what operations declare, so that the engine stays usable.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

from flowmx import settings
from flowmx.engine.actor import Actor, InlineActor, LoopActor, ThreadActor
from flowmx.engine.failure import Failure
from flowmx.engine.origin import user_frame
from flowmx.engine.scheduler import DONE, READY, RUNNING, WAITING, Operation, Scheduler, Variable
from flowmx.errors import EngineError, OperationCancelled, UndeclaredWriteError

_log = logging.getLogger("flowmx.engine")

# Every so many awaits that needed no wait, yield to the loop all the same, so that a task which awaits
# tiny operations in a loop does not starve its neighbours (64 of them take about half a millisecond).
_YIELD_EVERY = 64
_PRIVATE_FRAMES_HIDDEN = 2
# Seconds after which a blocked thread looks whether what it waits for has been lost.
_LOOK_AFTER = 1.0


_MAX_FAILURES = 64

current: ContextVar[Operation | None] = ContextVar("flowmx_operation", default=None)
"""The pushed operation that this code runs in."""


class BlockingInCoroutineWarning(UserWarning):
    """A blocking read was used inside a coroutine, where an awaited one belongs."""


class _Circle(EngineError):
    """An operation would wait for one that waits for it."""


class _Here(threading.local):
    """What the engine knows of the calling thread: the actor whose worker it is, if any."""

    actor: Actor | None = None


class Engine:
    """Schedules operations by the variables they read and write, and runs them on actors.

    Args:
        config: the settings to use (default: those of the process).
    """

    def __init__(self, config: settings.Settings | None = None) -> None:
        self.lock = threading.RLock()
        self.here = _Here()
        self.bulk_scope: ContextVar[Any] | None = None
        """Set once anybody has used :func:`flowmx.engine.bulk`."""
        self.open_bulks: dict[Any, None] = {}
        """The bulk scopes that hold an operation back; any wait lets them all go."""
        self.scheduler = Scheduler()
        self._push = self.scheduler.push
        self._is_free = self.scheduler.is_free
        self.pending = self.scheduler.pending
        self.pending_bytes = 0
        self.failed = 0
        self.failures: list[Failure] = []
        self.actors: dict[str, Actor] = {}
        self.network = LoopActor("network")
        self._inline = InlineActor("naive")
        self._pool = ThreadActor("pool")
        self._poisoned = False
        self._room_waiters: list[Callable[[], None]] = []
        self._waits_inside: list[tuple[Operation, Operation]] = []
        """Which running operations wait, inside, for which others."""
        self._awaits = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: threading.Thread | None = None
        self._left_behind: list[object] = []
        self._threads: list[threading.Thread] = []
        self._warned: set[tuple[str, int]] = set()
        self.guard: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
        """A context in which every operation runs, entered once for a worker's life or a lent thread's turn."""
        self.inline: Callable[..., Any] = _call
        """Calls the function of a light operation at its push, as ``inline(function, *arguments)``."""
        self._inside_inline = False
        self._closed = False
        self._switch_interval_set = False
        self.kind = ""
        self.configure(config or settings.Settings())
        # The environment is read at the first push, not here: a bad setting must not break the import.
        self._configured = config is not None
        self._special |= not self._configured

    def configure(self, config: settings.Settings) -> None:
        """Use other settings from here on; waits for what is pending where the engine's kind changes."""
        self.config = config
        self.max_ops = config.engine_max_ops
        self.max_bytes = config.engine_max_bytes
        self.checking = config.engine_check
        kind = {"ThreadedEnginePooled": "ThreadedEngine"}.get(config.engine_type, config.engine_type)
        if self.kind not in ("", kind):
            self.wait_all(throw=False)
        self.kind = kind
        self._configured = True
        self._pool.slots = max(2, config.cpu_worker_nthreads)
        self._naive = kind == "NaiveEngine"
        self._route: Actor | None = {"NaiveEngine": self._inline, "ThreadedEngine": self._pool}.get(kind)
        self._special = self._route is not None or self.checking or self.bulk_scope is not None

    # -- pushing ---------------------------------------------------------------------------------------

    def enqueue(self, op: Operation) -> None:
        """Push an operation: it runs when its dependencies are met. Returns at once."""
        if op.light and not self._special and op.actor.engine is self:
            try:
                with self.lock:
                    if op.actor.is_idle() and self._is_free(op) and not self._inside_inline:
                        self._run_at_push(op)
                        return
            except BaseException as error:
                self._mend(op, error)
                raise
        if len(self.pending) >= self.max_ops or self.pending_bytes + op.nbytes > self.max_bytes:
            self._make_room(op)
        try:
            if self._special and self._enqueue_specially(op):
                return
            actor = op.actor
            if actor.engine is not self:
                self._adopt(actor)
            with self.lock:
                self.pending_bytes += op.nbytes
                if self._push(op):
                    actor.accept(op)
        except BaseException as error:
            with self.lock:  # a worker may run it already
                self._mend(None if op.state == RUNNING else op, error)
            raise

    def _run_at_push(self, op: Operation) -> None:
        """Work first: run a light operation that waits for nothing on an idle actor, here and now (locked).

        Queuing it, waking a worker and completing it would cost several times what it takes, and under one
        interpreter lock a worker could only take turns with this thread.
        """
        self.scheduler.pass_through(op)
        failure = carried(op) if self._poisoned else None
        try:
            self._inside_inline = True
            if failure is None:
                self.inline(op.function, *op.arguments)
        except Exception as error:
            failure = Failure(error, op)
        except BaseException:
            self._poison(op, Failure(_interrupted(op), op))
            raise
        finally:
            self._inside_inline = False
        if failure is not None:
            self._poison(op, failure)
        elif self._poisoned:
            for variable in op.writes:
                variable.failure = None
        op.actor.executed += 1

    def _enqueue_specially(self, op: Operation) -> bool:
        """What other engine kinds, the checking mode and bulks change; True when that was all of the push."""
        if not self._configured:
            self.configure(settings.get())
        if self._route is not None and op.actor.may_lend:
            op.actor = self._route
        if self.checking:
            checked = _checked_coroutine if op.is_coroutine else _checked
            op.function, op.arguments = checked, (op.function, op.arguments, op.reads, op.writes)
        if op.actor.engine is not self:
            self._adopt(op.actor)
        if self._naive:
            with self.lock:
                self.pending_bytes += op.nbytes
                if self._push(op):
                    op.actor.accept(op)
            self._run_inline(op)
            return True
        scope = self.bulk_scope.get() if self.bulk_scope is not None and op.bulkable else None
        if scope is not None and not scope.closed:
            scope.add(op)
            return True
        return False

    def use_bulks(self, scope: ContextVar[Any]) -> None:
        """From now on look for an open bulk at each push."""
        self.bulk_scope = scope
        self._special = True

    def _adopt(self, actor: Actor) -> None:
        """First use of an actor: start its coroutine on the engine's loop."""
        if self._closed:
            raise EngineError("the engine has been shut down: nothing can be pushed any more")
        with self.lock:
            if actor.engine is self:
                return
            if not self._switch_interval_set:
                self._switch_interval_set = True
                if self.config.switch_interval and sys.getswitchinterval() > self.config.switch_interval:
                    sys.setswitchinterval(self.config.switch_interval)
            try:
                actor.engine = self
                self.actors[actor.name] = actor
                if not isinstance(actor, InlineActor):
                    self._ensure_loop().call_soon_threadsafe(self._supervise, actor)
            except BaseException:
                actor.engine = None
                raise

    def _supervise(self, actor: Actor) -> None:
        """Start an actor's coroutine (on the loop); where that ends by an error, its work fails loudly."""
        task = asyncio.get_running_loop().create_task(actor.run(), name=f"actor {actor.name}")

        def ended(task: asyncio.Task[None]) -> None:
            if task.cancelled() or task.exception() is None:
                return
            _log.error("actor %s died", actor.name, exc_info=task.exception())
            self._abandon([op for op in self.pending if op.actor is actor], f"actor {actor.name} died")

        task.add_done_callback(ended)

    def _ensure_loop(self) -> asyncio.AbstractEventLoop:
        """The engine's loop, started in a thread of its own at first use (locked)."""
        if self._loop is None:
            loop = new_event_loop(self.config.uvloop)
            thread = threading.Thread(target=_run_loop, args=(loop,), name="flowmx-engine", daemon=True)
            thread.start()
            self._loop, self._loop_thread = loop, thread
        return self._loop

    def start_worker(self, actor: ThreadActor, parking: threading.Lock) -> None:
        """Start one more worker thread for an actor, parked (locked)."""
        name = f"flowmx-{actor.name}-{len(self._threads)}"
        thread = threading.Thread(target=actor.serve, args=(parking,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _make_room(self, op: Operation) -> None:
        """Law 4: at the run-ahead limit the pushing thread waits until half of it has drained.

        Inside an operation there is no waiting (it could wait for itself).
        """
        if self.here.actor is not None or threading.current_thread() is self._loop_thread:
            return
        if self.open_bulks:
            self._flush_bulks()
        while True:
            gate = threading.Lock()
            gate.acquire()
            with self.lock:
                if self._has_room(op.nbytes):
                    return
                self._room_waiters.append(gate.release)
            gate.acquire()

    def _has_room(self, nbytes: int = 0) -> bool:
        return not self.pending or (
            len(self.pending) <= self.max_ops // 2 and self.pending_bytes + nbytes <= max(self.max_bytes // 2, nbytes)
        )

    def room(self) -> Generator[Any, None, None]:
        """Await until the run-ahead is below half its limits (what a loop that pushes in a coroutine awaits)."""
        while not self._has_room():
            with self.lock:
                oldest = next(iter(self.pending), None)
            if oldest is not None:
                yield from self.wait_async(oldest)

    def _flush_bulks(self) -> None:
        """Let every bulk go: whoever waits may wait for one that another task or thread holds open."""
        for scope in list(self.open_bulks):
            scope.flush()

    # -- running ---------------------------------------------------------------------------------------

    def execute(
        self,
        op: Operation,
        actor: Actor,
        parking: threading.Lock | None,
        until: Operation | None = None,
        light: bool = False,
    ) -> Operation | None:
        """Run an operation on this thread, complete it, and return the actor's next one, begun.

        A worker brings its ``parking`` lock; where there is no next operation it has been parked. A thread
        that lends itself brings None, and stops where ``until`` is done, or before one that is not ``light``.
        """
        failure: Failure | None = None
        interrupt: BaseException | None = None
        try:
            if self._poisoned:
                failure = carried(op)
            if failure is None:
                op.result = op.function(*op.arguments)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                interrupt, error = error, _interrupted(op)
            failure = Failure(error, op)
        following: Operation | None = None
        try:
            with self.lock:
                waiters = self._finish(op, failure)
                if parking is not None:
                    following = actor.proceed(parking)
                elif interrupt is None and (until is None or until.state != DONE):
                    following = actor.mailbox.take(light)
                    if following is not None:
                        following.state = RUNNING
            if waiters is not None:
                for waiter in waiters:
                    waiter()
            # Dropped outside the lock: a finaliser of what the operation held may do anything.
            op.function = _nothing
            op.arguments = op.reads = op.writes = ()
            if interrupt is None:
                return following
        except BaseException as error:
            self._mend(op, error, following)
            raise
        raise interrupt

    async def run_coroutine(self, op: Operation) -> None:
        """Run a coroutine operation to its end, as a task on the engine's loop."""
        failure = carried(op) if self._poisoned else None
        if failure is None:
            try:
                op.result = await op.function(*op.arguments)
            except asyncio.CancelledError:
                failure = Failure(OperationCancelled(f"operation {op.name!r} was cancelled while it ran"), op)
            except BaseException as error:
                failure = Failure(error, op)
        with self.lock:
            if isinstance(op.actor, LoopActor):
                op.actor.forget(op)
            waiters = self._finish(op, failure)
        for waiter in waiters or ():
            waiter()
        op.function = _nothing
        op.arguments = op.reads = op.writes = ()
        if self._naive:
            self._run_naive()

    def _finish(self, op: Operation, failure: Failure | None) -> list[Callable[[], None]] | None:
        """Complete an operation and hand on what it makes ready (locked); returns whom to tell."""
        if op.state == DONE:
            return None
        if failure is not None:
            self._poison(op, failure)
        elif self._poisoned and not isinstance(op.arguments, SettledArguments):
            for variable in op.writes:
                variable.failure = None
        self.pending_bytes -= op.nbytes
        op.actor.executed += 1
        cancelled: list[Operation] | None = None
        for ready in self.scheduler.complete(op):
            if ready.failure is None:
                ready.actor.accept(ready)
            elif cancelled is None:
                cancelled = [ready]
            else:
                cancelled.append(ready)
        waiters, op.waiters = op.waiters, None
        if cancelled is not None:
            waiters = [*(waiters or ()), *self._end_cancelled(cancelled)]
        if self._room_waiters and self._has_room():
            waiters = (waiters or []) + self._room_waiters
            self._room_waiters = []
        return waiters

    def _end_cancelled(self, cancelled: list[Operation]) -> list[Callable[[], None]]:
        """Complete operations that were cancelled while they waited: their turn has come (locked)."""
        waiters: list[Callable[[], None]] = []
        for op in cancelled:  # the list grows meanwhile
            assert op.failure is not None
            self._poison(op, op.failure)
            self.pending_bytes -= op.nbytes
            for ready in self.scheduler.complete(op):
                if ready.failure is None:
                    ready.actor.accept(ready)
                else:
                    cancelled.append(ready)
            waiters += op.waiters or ()
            op.waiters = None
            op.reads = op.writes = ()
        return waiters

    def _poison(self, op: Operation, failure: Failure) -> None:
        """Law 3: what a failed operation writes carries its error (locked)."""
        self._poisoned = True
        op.failure = failure
        self.failed += 1
        if not failure.seen and not failure.listed:
            if len(self.failures) >= _MAX_FAILURES:
                self.failures = [each for each in self.failures if not each.seen]
            if len(self.failures) < _MAX_FAILURES:  # the first ones are what tells most
                failure.listed = True
                self.failures.append(failure)
        for variable in op.writes:
            variable.failure = failure

    def settle(self, op: Operation) -> None:
        """Run one part of a bulk: its own error poisons its own variables, at once."""
        failure = carried(op) if self._poisoned else None
        if failure is None:
            try:
                op.result = op.function(*op.arguments)
            except Exception as error:
                failure = Failure(error, op)
        if failure is not None:
            with self.lock:
                self._poison(op, failure)
        elif self._poisoned:
            for variable in op.writes:
                variable.failure = None

    def _abandon(self, ops: list[Operation], why: str) -> None:
        """End operations that nobody will run: they fail, each in its turn."""
        with self.lock:
            for op in ops:
                if op.failure is None:
                    op.failure = Failure(EngineError(f"operation {op.name!r} was given up: {why}"), op)
            waiters = [
                waiter
                for op in ops
                if op.state in (READY, RUNNING)
                for waiter in self._finish(op, op.failure) or ()
            ]  # fmt: skip
        for waiter in waiters:
            waiter()

    def _mend(self, op: Operation | None, error: BaseException, following: Operation | None = None) -> None:
        """Put the books right where an interrupt broke off a push, a completion or a lent thread's turn.

        ``op`` is what the thread was about, and fails; ``following`` is what it had taken, and goes back. It may
        be done over, and is where another interrupt breaks it off too: the first one is on its way already.
        """
        while True:
            try:
                return self._mend_once(op, error, following)
            except KeyboardInterrupt:
                continue

    def _mend_once(self, op: Operation | None, error: BaseException, following: Operation | None) -> None:
        with self.lock:
            if following is not None:
                following.state = READY
            ready = self.scheduler.rebuild()
            self.pending_bytes = sum(each.nbytes for each in self.pending)
            for actor in self.actors.values():
                actor.mend(sum(o.state == RUNNING and o.actor is actor and o is not op for o in self.pending))
            waiters: list[Callable[[], None]] | None = None
            if op is not None:
                if isinstance(error, KeyboardInterrupt):
                    error = _interrupted(op)
                if op not in self.pending:
                    waiters, op.waiters = op.waiters, None
                elif op.state == WAITING:
                    op.failure = Failure(error, op)
                else:
                    waiters = self._finish(op, Failure(error, op))
            for each in ready:
                if each.state == READY:
                    each.actor.accept(each)
        for waiter in waiters or ():
            waiter()

    def _run_inline(self, op: Operation) -> None:
        """The naive engine: run what is ready here and now, then see the pushed operation complete."""
        self._run_naive()
        if op.state != DONE and self.here.actor is None and threading.current_thread() is not self._loop_thread:
            self._block(op)

    def _run_naive(self) -> None:
        """The naive engine: run what is ready on this thread."""
        op: Operation | None = None
        try:
            with self.guard():
                while True:
                    with self.lock:
                        op = self._inline.mailbox.take()
                        if op is None:
                            break
                        op.state = RUNNING
                    self.execute(op, self._inline, None, op)
        except BaseException as error:
            self._mend(op, error)
            raise

    def cancel(self, op: Operation) -> bool:
        """Cancel an operation that has not started (or a coroutine that runs); True when it will not end well.

        One that waits keeps its place: it ends, and poisons what it writes, when its turn comes.
        """
        with self.lock:
            if op.state == RUNNING:
                return bool(op.actor.cancel_running(op))
            if op.state == DONE or op.failure is not None:
                return False
            failure = Failure(OperationCancelled(f"operation {op.name!r} was cancelled before it ran"), op)
            dropped = op.function, op.arguments  # outside the lock, as in `execute`
            op.function, op.arguments = _nothing, ()
            try:
                if op.state == READY:
                    waiters = self._finish(op, failure)
                    op.reads = op.writes = ()
                else:
                    op.failure = failure
                    waiters, op.waiters = op.waiters, None
            except BaseException as error:
                self._mend(op, error)
                raise
        del dropped
        for waiter in waiters or ():
            waiter()
        return True

    # -- waiting ---------------------------------------------------------------------------------------

    def wait(self, op: Operation) -> None:
        """Block this thread until an operation is complete (without raising its error)."""
        if op.state == DONE:
            return
        if asyncio._get_running_loop() is not None:
            self._blocking_in_coroutine(op)
        self._wait(op)

    def _wait(self, op: Operation) -> None:
        if self.open_bulks:
            self._flush_bulks()
        if current.get() is not None:
            with self._waiting_inside(op):
                self._wait_lending(op)
        else:
            self._wait_lending(op)

    def _wait_lending(self, op: Operation) -> None:
        inside = self.here.actor
        if not isinstance(inside, ThreadActor):
            self._lend(op.actor, op, False)
            if op.state != DONE:
                self._block(op)
            return
        with self.lock:
            inside.yield_slot()
        try:
            # What runs user code would stand on top of this operation's own stack, and may wait for it.
            if current.get() is None:
                self._lend(op.actor, op, False)
            self._block(op)
        finally:
            with self.lock:
                inside.regain_slot()

    def _lend(self, actor: Actor, until: Operation | None, light: bool) -> None:
        """Run ready operations of an actor on this thread, until one is done or nothing (light) is ready."""
        op: Operation | None = None
        here = self.here
        inside = here.actor
        try:
            with self.lock:
                if not actor.may_lend or (until is not None and until.state == DONE) or not actor.claim():
                    return
                op = actor.mailbox.take(light)
                if op is None:
                    actor.release()
                    return
                op.state = RUNNING
            here.actor = actor
            with self.guard():
                while op is not None:
                    op = self.execute(op, actor, None, until, light)
            here.actor = inside
            with self.lock:
                actor.release()
        except BaseException as error:
            here.actor = inside
            self._mend(op, error)
            raise

    def _block(self, op: Operation) -> None:
        gate = threading.Lock()
        gate.acquire()
        with self.lock:
            if op.state == DONE:
                return
            op.waiters = [*(op.waiters or ()), gate.release]
        while not gate.acquire(timeout=_LOOK_AFTER):
            self._find_lost()

    def _find_lost(self) -> None:
        """Hand over again what is ready and in no mailbox: an interrupt between two bytecodes lost it."""
        with self.lock:
            ready = [each for each in self.pending if each.state == READY]
            queued = {each for actor in self.actors.values() for each in actor.mailbox}
            for each in ready:
                if each not in queued:
                    each.actor.accept(each)

    def must_yield(self) -> bool:
        """True at every 64th await that needs no wait: it yields to the loop all the same."""
        self._awaits += 1
        return self._awaits % _YIELD_EVERY == 0

    def wait_async(self, op: Operation) -> Generator[Any, None, None]:
        """Await an operation (``yield from`` in an ``__await__``); cancelling abandons only the wait."""
        if self.must_yield():
            yield
        if op.state == DONE:
            return
        if self.open_bulks:
            self._flush_bulks()
        if op.light:
            self._lend(op.actor, op, True)
            if op.state == DONE:
                return
        if current.get() is None:
            yield from self._wait_in_loop(op)
        else:
            with self._waiting_inside(op):
                yield from self._wait_in_loop(op)

    def _wait_in_loop(self, op: Operation) -> Generator[Any, None, None]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(_resolve, future)
            except RuntimeError:  # the waiter's loop is closed: nobody waits any more
                pass

        with self.lock:
            if op.state == DONE:
                return
            op.waiters = [*(op.waiters or ()), wake]
        try:
            yield from future
        finally:
            if not future.done() or future.cancelled():
                with self.lock:
                    if op.waiters and wake in op.waiters:
                        op.waiters.remove(wake)

    def wait_variable(self, variable: Variable) -> None:
        """Block until the writes pushed on a variable so far are done; raises what poisoned it."""
        writer = variable.writer
        if writer is not None and writer.state != DONE:
            if self.holds(variable):
                return
            self.wait(writer)
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
        if variable.failure is not None:
            variable.failure.throw()

    def holds(self, variable: Variable) -> bool:
        """True inside an operation that reads or writes the variable: it is there, and later writers wait."""
        op = current.get()
        return op is not None and (variable in op.reads or variable in op.writes)

    def _behind(self) -> set[Operation]:
        """The operation that this code runs in and all that wait for it (usually: none)."""
        inside = current.get()
        if inside is None or inside.state == DONE:
            return set()
        with self.lock:
            return self._after([inside])

    def _after(self, ops: Iterable[Operation]) -> set[Operation]:
        """These operations and all that can not end before one of them does (locked)."""
        found = set(ops)
        todo = list(found)
        while todo:
            op = todo.pop()
            later = {*(op.dependents or ()), *(outer for outer, inner in self._waits_inside if inner is op)} - found
            found |= later
            todo += later
        return found

    @contextlib.contextmanager
    def _waiting_inside(self, op: Operation) -> Iterator[None]:
        """Say that the operation which this code runs in waits for another one.

        Raises:
            EngineError: that one can not end before this one does.
        """
        inside = current.get()
        assert inside is not None
        wait = (inside, op)
        with self.lock:
            if op in self._behind():
                raise _Circle(
                    f"an operation waits inside itself for {op.name!r}, which can not end before it does: wait "
                    "outside, or push what is to come later without waiting"
                )
            self._waits_inside.append(wait)
        try:
            yield
        finally:
            with self.lock:
                self._waits_inside.remove(wait)

    def wait_all(self, throw: bool = True) -> None:
        """Block until everything pushed so far is complete; raises the first error nobody has seen."""
        with self.lock:
            waiting = list(self.pending)
        in_loop = asyncio._get_running_loop() is not None
        # The last first: when it is done, most are.
        for op in reversed(waiting):
            if op.state != DONE and op not in self._behind():
                if in_loop:
                    self._blocking_in_coroutine(op)
                with contextlib.suppress(_Circle):
                    self._wait(op)
        if throw:
            self._throw_unseen()

    def wait_all_async(self) -> Generator[Any, None, None]:
        """The awaited form of :meth:`wait_all`."""
        with self.lock:
            waiting = list(self.pending)
        for op in reversed(waiting):
            if op.state != DONE:
                with contextlib.suppress(_Circle):
                    yield from self.wait_async(op)
        self._throw_unseen()

    def _throw_unseen(self) -> None:
        with self.lock:
            unseen = [failure for failure in self.failures if not failure.seen]
            self.failures.clear()
        if unseen:
            for failure in unseen:
                failure.seen = True
            unseen[0].throw()

    def _blocking_in_coroutine(self, op: Operation) -> None:
        """Law 2: a blocking read inside a coroutine warns once per place, or is an error."""
        if threading.current_thread() is self._loop_thread:
            with self.lock:
                # What does not lend its work runs on this loop, or is code that may wait for it.
                needing = [each for each in self.pending if not each.actor.may_lend and each is not current.get()]
                if op in self._after(needing):
                    raise EngineError(
                        f"a coroutine operation would block the engine's own loop until {op.name!r} is complete, "
                        "which needs that loop: await it instead"
                    )
            return
        mode = self.config.blocking_in_loop
        if mode == "allow" or _in_notebook():
            return
        frame = user_frame(_PRIVATE_FRAMES_HIDDEN)
        place = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("?", 0)
        message = (
            f"a blocking read inside a coroutine waits for {op.name!r} and holds up the event loop: "
            "write `await array` first (or `await mx.nd.waitall_async()`), then read it"
        )
        if mode == "error":
            raise EngineError(f"{place[0]}:{place[1]}: {message}")
        if place in self._warned:
            return
        self._warned.add(place)
        warnings.warn_explicit(message, BlockingInCoroutineWarning, place[0], place[1])

    # -- endings ---------------------------------------------------------------------------------------

    def drain(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds for all pending work; True when nothing is left."""
        if self.open_bulks:
            self._flush_bulks()
        self._find_lost()
        idle = threading.Event()
        with self.lock:
            last = list(self.pending)
            left = [len(last)]

            def one_less() -> None:
                with self.lock:
                    left[0] -= 1
                    if left[0] <= 0:
                        idle.set()

            for op in last:
                op.waiters = [*(op.waiters or ()), one_less]
        return not last or idle.wait(timeout)

    def shutdown(self, timeout: float | None = None) -> None:
        """Finish pending work (at most ``timeout`` seconds), then stop every thread. Used at exit."""
        if self._closed:
            return
        timeout = self.config.exit_timeout if timeout is None else timeout
        if self.pending and not self.drain(timeout):
            _log.warning(
                "exit: %d operations were still pending after %g s and are given up, the oldest %r "
                "(FLOWMX_EXIT_TIMEOUT sets how long to wait)",
                len(self.pending), timeout, next(iter(self.pending), None),
            )  # fmt: skip
        unseen = [failure for failure in self.failures if not failure.seen]
        if unseen:
            first = unseen[0].exception
            _log.warning(
                "exit: %d operations failed and nobody waited for them; the first: %s: %s\n%s",
                self.failed, type(first).__name__, first, "\n".join(getattr(first, "__notes__", ())),
            )  # fmt: skip
        self._closed = True
        self._stop_threads(join=1.0)

    def _stop_threads(self, join: float) -> None:
        """Stop the actors and the loop, and join their threads for at most ``join`` seconds in all."""
        until = time.monotonic() + join
        with self.lock:
            for actor in self.actors.values():
                actor.stop()
            threads, self._threads = self._threads, []
            loop, loop_thread = self._loop, self._loop_thread
            self._loop = self._loop_thread = None
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))
        if loop is not None and loop_thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            loop_thread.join(max(0.1, until - time.monotonic()))
        with self.lock:
            for actor in self.actors.values():
                actor.rest()
            if not self._closed:  # what another thread has pushed meanwhile
                for op in self.pending:
                    if op.state == READY:
                        self._adopt(op.actor)
                        op.actor.accept(op)

    def before_fork(self) -> None:
        """Finish what can be finished and stop the threads, so that both processes start from quiet."""
        if not self._closed and self.here.actor is None and threading.current_thread() is not self._loop_thread:
            self.drain(self.config.exit_timeout)
            if not self.pending:
                self._stop_threads(join=1.0)
        self.lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on; actors start again at their next operation."""
        self.lock.release()

    def after_fork_in_child(self) -> None:
        """The child has none of the threads: start anew; what was still pending fails with a reason."""
        if self._loop is not None:  # never to be closed here, which would disturb the parent's
            self._left_behind.append((self._loop, asyncio.all_tasks(self._loop)))
        for actor in self.actors.values():
            actor.reset()
        self._threads = []
        self._room_waiters = []
        self._loop = self._loop_thread = None
        self.here = _Here()
        for scope in self.open_bulks:
            scope.op = None
        self.open_bulks.clear()
        for op in self.pending:
            while op.held:
                self.scheduler.unhold(op)
        self._abandon(list(self.pending), "it was still pending in the parent when that forked")
        self.failures.clear()
        self.lock.release()

    # -- looking ---------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Counts of what the engine has done and holds now."""
        with self.lock:
            return {
                "kind": self.kind,
                "pushed": self.scheduler.serial,
                "completed": self.scheduler.completed,
                "failed": self.failed,
                "pending": len(self.pending),
                "pending_bytes": self.pending_bytes,
                "actors": {
                    name: {"queued": len(actor.mailbox), "executed": actor.executed}
                    for name, actor in self.actors.items()
                },
            }


class SettledArguments(tuple[Any, ...]):
    """The arguments of an operation that has settled the failures of its variables itself (a bulk)."""


def carried(op: Operation) -> Failure | None:
    """The failure that an operation inherits from what it reads, if any."""
    if isinstance(op.arguments, SettledArguments):
        return None
    for variable in op.reads:
        if variable.failure is not None:
            return variable.failure
    return None


class _Check:
    """The content of what an operation only reads, before and after."""

    def __init__(self, reads: tuple[Variable, ...], writes: tuple[Variable, ...]) -> None:
        self._before = {each: each.fingerprint() for each in reads if each not in writes}

    def compare(self) -> None:
        """Raise UndeclaredWriteError where one of them has changed."""
        for variable, old in self._before.items():
            if variable.fingerprint() != old:
                raise UndeclaredWriteError(
                    f"the operation changed {variable!r}, which it declared as read: name it in `writes` "
                    "(an operator's workspace, a generator's state and a running mean are written too)"
                )


def _checked(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    reads: tuple[Variable, ...],
    writes: tuple[Variable, ...],
) -> Any:
    """The checking mode: run an operation and see that what it declared as read has not changed."""
    check = _Check(reads, writes)
    result = function(*arguments)
    check.compare()
    return result


async def _checked_coroutine(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    reads: tuple[Variable, ...],
    writes: tuple[Variable, ...],
) -> Any:
    """As :func:`_checked`, for a coroutine function."""
    check = _Check(reads, writes)
    result = await function(*arguments)
    check.compare()
    return result


def new_event_loop(use_uvloop: bool = True) -> asyncio.AbstractEventLoop:
    """A new event loop: uvloop's where it is installed and wanted, asyncio's elsewhere."""
    if use_uvloop:
        try:
            import uvloop
        except (ImportError, RuntimeError):  # RuntimeError: the interpreter is about to exit
            pass
        else:
            loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
            return loop
    return asyncio.new_event_loop()


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine from plain code to its end, on uvloop where it is there; returns its result."""
    config = settings.get()
    with asyncio.Runner(loop_factory=lambda: new_event_loop(config.uvloop)) as runner:
        return runner.run(coroutine)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    finally:
        loop.close()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def _nothing(*_: Any) -> None:
    """What the function of a completed operation is replaced by, so that nothing is kept alive."""


def _interrupted(op: Operation) -> BaseException:
    return OperationCancelled(f"operation {op.name!r} was interrupted by KeyboardInterrupt")


def _in_notebook() -> bool:
    """True inside an IPython kernel or shell, where a loop always runs and blocking reads are normal."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


engine = Engine()
"""The engine of this process."""

atexit.register(engine.shutdown)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=engine.before_fork,
        after_in_parent=engine.after_fork_in_parent,
        after_in_child=engine.after_fork_in_child,
    )
