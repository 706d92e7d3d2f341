"""The asyncio runtime: drives actors with what the scheduler says may run.

One :class:`Engine` serves the process. Pushing happens on the caller's thread under one lock and never
waits for work (Law 2). Actors are coroutines on the engine's own loop, in its own thread; the CPU's actors
own worker threads.

The lock is re-entrant because a finaliser or a signal handler may push from the middle of anything.
A ``KeyboardInterrupt`` may strike between any two bytecodes of the main thread, in the middle of a push or
a completion too. :meth:`Engine._mend` then fails the operation that the thread was about and resolves what
is pending anew from what operations declare, so that the engine stays usable.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable, Generator, Iterable
from contextvars import ContextVar
from time import monotonic
from typing import Any

from flowmx import settings
from flowmx.engine.actor import Actor, InlineActor, LoopActor, ThreadActor
from flowmx.engine.checking import checked, checked_coroutine
from flowmx.engine.ending import Ending
from flowmx.engine.failure import Failure, failure_of
from flowmx.engine.loops import new_event_loop, run_loop
from flowmx.engine.scheduler import DONE, READY, RUNNING, WAITING, Operation, Variable
from flowmx.errors import EngineError, OperationCancelled

_log = logging.getLogger("flowmx.engine")
_MAX_FAILURES = 64


class Engine(Ending):
    """Schedules operations by the variables they read and write, and runs them on actors.

    Args:
        config: the settings to use (default: those of the process).
    """

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
        elif self._poisoned and not isinstance(op.arguments, SettledArguments):
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
            checking = checked_coroutine if op.is_coroutine else checked
            kind = type(op.arguments)  # those that settle their failures go on doing so
            op.function, op.arguments = checking, kind((op.function, op.arguments, op.reads, op.writes))
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

    def use_watch(self, watch: Callable[[Operation], None] | None, purpose: str = "values") -> None:
        """From now on show each operation to a function before it is pushed; None: to none, which costs nothing.

        Args:
            watch: the function, or None.
            purpose: what it is for; there is one function for each.
        """
        if watch is None:
            self._watches.pop(purpose, None)
        else:
            self._watches[purpose] = watch
        watches = tuple(self._watches.values())
        if not watches:
            self.__dict__.pop("enqueue", None)
            return

        def enqueue(op: Operation) -> None:
            for each in watches:
                each(op)
            Engine.enqueue(self, op)

        self.__dict__["enqueue"] = enqueue

    @property
    def is_watched(self) -> bool:
        """Whether somebody looks at each operation, so that none should stand for several.

        What orders operations of the host behind asynchronous devices, or counts arrays by the lines that made them,
        looks at no more than their variables.
        """
        return bool(self._watches.keys() - {"tokens", "lines"})

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

    def retire(self, actor: Actor) -> None:
        """Stop and forget an actor to which nothing is pushed any more."""
        with self.lock:
            if self.actors.get(actor.name) is actor:
                del self.actors[actor.name]
                actor.stop()

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
            thread = threading.Thread(target=run_loop, args=(loop,), name="flowmx-engine", daemon=True)
            thread.start()
            self._loop, self._loop_thread = loop, thread
            for opened in self.openers:
                opened()
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
        op.began = monotonic()
        try:
            if self._poisoned:
                failure = carried(op)
            if failure is None:
                op.result = op.function(*op.arguments)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                interrupt, error = error, _interrupted(op)
            failure = failure_of(error, op)
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
        op.began = monotonic()
        failure = carried(op) if self._poisoned else None
        if failure is None:
            try:
                op.result = await op.function(*op.arguments)
            except asyncio.CancelledError:
                failure = Failure(OperationCancelled(f"operation {op.name!r} was cancelled while it ran"), op)
            except BaseException as error:
                failure = failure_of(error, op)
        with self.lock:
            if isinstance(op.actor, LoopActor):
                op.actor.forget(op)
            waiters = self._finish(op, failure)
        for waiter in waiters or ():
            waiter()
        op.function = _nothing
        op.arguments = op.reads = op.writes = ()
        self._go_on_naively()

    def end(self, endings: Iterable[tuple[Operation, Failure | None]]) -> None:
        """Complete operations that their actor began, and that ended elsewhere (on any thread)."""
        endings = list(endings)
        waiters: list[Callable[[], None]] = []
        with self.lock:
            for op, failure in endings:
                waiters += self._finish(op, failure) or ()
        for waiter in waiters:
            waiter()
        for op, _ in endings:
            op.function = _nothing
            op.arguments = op.reads = op.writes = ()
        self._go_on_naively()

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
        if self.journal is not None:
            # Not the failure itself: it would hold on to what its frames hold.
            failed = op.failure is not None
            self.journal.append((op.serial, op.name, op.actor.name, op.origin, op.began, monotonic(), failed))
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
        self.report(failure)
        for variable in op.writes:
            variable.failure = failure

    def report(self, failure: Failure) -> None:
        """Have the next ``waitall`` raise a failure that nobody has seen by then (locked)."""
        if not failure.seen and not failure.listed:
            if len(self.failures) >= _MAX_FAILURES:
                self.failures = [each for each in self.failures if not each.seen]
            if len(self.failures) < _MAX_FAILURES:  # the first ones are what tells most
                failure.listed = True
                self.failures.append(failure)

    @property
    def poisoned(self) -> bool:
        """Whether anything has ever failed, so that variables must be looked at."""
        return self._poisoned

    def poison(self, failure: Failure, variables: tuple[Variable, ...], op: Operation) -> None:
        """Law 3 for a part of an operation that settles its failures by itself: these carry its error."""
        part = Operation(_nothing, (), (), variables, op.actor, op.name, op.origin)
        with self.lock:
            self._poison(part, failure)

    def settle(self, op: Operation) -> None:
        """Run one part of a bulk: its own error poisons its own variables, at once."""
        failure = carried(op) if self._poisoned else None
        if failure is None:
            try:
                op.result = op.function(*op.arguments)
            except Exception as error:
                failure = failure_of(error, op)
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

    def _go_on_naively(self) -> None:
        """The naive engine: run what is ready by now; not on the engine's loop, where nothing may wait."""
        if not self._naive:
            return
        with self.lock:
            if not len(self._inline.mailbox):
                return
        if threading.current_thread() is self._loop_thread:
            threading.Thread(target=self._run_naive, name="flowmx-naive", daemon=True).start()
        else:
            self._run_naive()

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


def _nothing(*_: Any) -> None:
    """What the function of a completed operation is replaced by, so that nothing is kept alive."""


def _interrupted(op: Operation) -> BaseException:
    return OperationCancelled(f"operation {op.name!r} was interrupted by KeyboardInterrupt")


engine = Engine()
"""The engine of this process."""

atexit.register(engine.shutdown)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=engine.before_fork,
        after_in_parent=engine.after_fork_in_parent,
        after_in_child=engine.after_fork_in_child,
    )
