"""Pushing and cancelling operations.

A push happens on the caller's thread, under one lock, and never waits for operations (law 2 of the engine, see
``docs/architecture.md``).
"""

from __future__ import annotations

import logging
import threading
import weakref
from asyncio import _get_running_loop as _running_loop  # bound here: called at each push of a short operation
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from flowmx.engine.actor import Actor
from flowmx.engine.bookkeeping import Books, release
from flowmx.engine.checking_mode import check_reads
from flowmx.engine.failure import Failure
from flowmx.engine.hosting import Host, NoThread
from flowmx.engine.running import Runner, retry
from flowmx.engine.scheduler import DONE, READY, RUNNING, Operation, Variable
from flowmx.engine.waiting import Waiter
from flowmx.engine.workers import InlineActor, ThreadActor
from flowmx.errors import OperationCancelled
from flowmx.settings import Settings

_log = logging.getLogger("flowmx.engine")
_VARIABLE_WATCHES = frozenset({"deleted", "lines", "tokens"})
"""The purposes of watches that look only at an operation's variables, so that operations may still be combined."""


class Pusher:
    """Pushes operations and assigns them to actors.

    Attributes:
        kind: the engine's kind.
        watches: functions that see each operation before it is pushed, by purpose.
        bulk_scope: the context variable that holds the open bulk; None while no bulk scope is in use.
        open_bulks: bulk scopes with an operation that is not pushed yet; any wait flushes them all.
        apply_environment: applies the settings of the environment.
    """

    def __init__(self, books: Books, runner: Runner, waiting: Waiter, hosting: Host) -> None:
        self.books = books
        self.runner = runner
        self.waiting = waiting
        self.hosting = hosting
        self.kind = ""
        self.bulk_scope: ContextVar[Any] | None = None
        self._bulks: dict[int, weakref.ref[Any]] = {}
        self.open_bulks: dict[Any, None] = {}
        self.watches: dict[str, Callable[[Operation], None]] = {}
        self._watch_functions: tuple[Callable[[Operation], None], ...] = ()
        self._inline = InlineActor("naive")
        self._pool = ThreadActor("pool")
        self._route: Actor | None = None
        self._checking = self._is_running_directly = False
        # _is_special: whether pushes need more than the scheduler. The environment is read at the first push, not at
        # import, so that an invalid setting cannot break the import.
        self._is_special = self._is_configured = False
        self.apply_environment: Callable[[], None] = _do_nothing
        self.configure(Settings())
        self._is_configured, self._is_special = False, True  # the first push applies the environment
        waiting.flush = self.flush_bulks
        runner.on_operation_end = self._run_inline

    def configure(self, config: Settings) -> None:
        """Apply new settings; wait for pending operations if the engine's kind changes."""
        kind = {"ThreadedEnginePooled": "ThreadedEngine"}.get(config.engine_type, config.engine_type)
        if self.kind not in ("", kind):
            self.waiting.wait_all(throw=False)
        self.kind = kind
        self._checking = config.engine_check
        self._pool.slots = max(2, config.cpu_worker_nthreads)
        self._route = {"NaiveEngine": self._inline, "ThreadedEngine": self._pool}.get(kind)
        self._is_configured = True
        self._update_special()

    def _update_special(self) -> None:
        self._is_special = (
            not self._is_configured or self._route is not None or self._checking or self.bulk_scope is not None
        )

    # -- pushing ---------------------------------------------------------------------------------------

    def enqueue(self, op: Operation) -> None:
        """Push an operation, which runs once its dependencies are complete; return immediately.

        It uses the cheapest way that applies:

        1. A light operation without pending dependencies runs here, under the lock.
        2. Other engine kinds, the checking mode and bulks replace the steps below (:meth:`_enqueue_specially`).
        3. The first use of an actor starts the actor; without threads, the operation runs here.
        4. A short operation may run on this thread, without the lock.
        5. Otherwise the scheduler records it, and its actor runs it.
        """
        for watch in self._watch_functions:
            watch(op)
        books = self.books
        if op.light and not self._is_special and op.actor.engine is not None and not self._is_running_directly:
            try:
                with books.lock:
                    if op.actor.is_idle() and books.scheduler.enter(op):
                        self.runner.run_at_push(op)
                        return
            except BaseException:  # an interrupt must not lose the operation
                retry(self.runner.finish_interrupted, op)
                raise
        waiting = self.waiting
        if len(books.pending) >= waiting.ops_limit or books.scheduler.pending_bytes + op.nbytes > waiting.bytes_limit:
            waiting.make_room(op.nbytes, op.runs_user_code)
        try:
            if self._is_special and self._enqueue_specially(op):
                return
            if op.actor.engine is None:
                self._start_actor(op)
                if op.actor is self._inline:
                    self._push_inline(op)
                    return
            if op.short and self._may_work_for(op.actor):
                self._push_and_run(op)
                return
            with books.lock:
                books.recover()
                books.push(op)
        except BaseException:  # an interrupt must not lose the operation
            retry(self.runner.finish_interrupted, op)
            raise

    def run_light(
        self, actor: Actor, reads: tuple[Variable, ...], function: Callable[..., object], *arguments: object
    ) -> bool:
        """Call a light function that computes new outputs, without creating an operation for it.

        Return False if a dependency is pending or has failed, if the engine or a watch needs an operation, or if the
        call fails or pushes another operation. The caller then discards the outputs and pushes an operation instead.

        Args:
            actor: the actor of the device.
            reads: the variables that the function reads.
            function: the function, which may be called a second time.
            *arguments: its arguments.
        """
        books = self.books
        if self._is_special or self._watch_functions or actor.engine is None:
            return False
        scheduler = books.scheduler
        with books.lock:
            serial = scheduler.serial
            if scheduler.inside is not None or scheduler.step is not None or not actor.is_idle():
                return False
            for variable in reads:
                writer = variable.writer
                if variable.failure is not None or (writer is not None and writer.state != DONE):
                    return False
            if self._is_running_directly:
                return False
            self._is_running_directly = True
            try:
                self.runner.inline(function, *arguments)
            except Exception:  # the operation that is pushed instead raises it again
                return False
            finally:
                self._is_running_directly = False
            if scheduler.serial != serial:
                return False
            scheduler.serial = serial + 1
            actor.executed += 1
            return True

    def _may_work_for(self, actor: Actor) -> bool:
        """Return whether this thread may run short operations of an actor.

        It may not if it runs an event loop or an operation, or if the actor has several threads.
        """
        return (
            isinstance(actor, ThreadActor)
            and actor.slots == 1
            and self.runner.local.turn is None
            and not self._is_running_directly
            and self.books.scheduler.inside is None
            and _running_loop() is None
        )

    def _push_and_run(self, op: Operation) -> None:
        """Push a short operation, and run it on this thread if its actor is idle.

        Waking a worker would make two threads compete for the GIL, although this thread will soon wait anyway.
        """
        books, actor = self.books, op.actor
        try:
            with books.lock:
                books.recover()
                actor.reserved = op if actor.is_idle() else None
                books.push(op)
                is_reserved, actor.reserved = actor.reserved is op and op.state == READY, None
            if is_reserved:
                self.runner.help(actor, op)
                if op.state == READY:
                    self._wake_worker(actor)
        except BaseException:  # an interrupt must not lose the operation
            retry(self._wake_worker, actor)
            raise

    def _wake_worker(self, actor: ThreadActor) -> None:
        with self.books.lock:
            self.books.recover()
            actor.reserved = None
            actor.wake_worker()

    def _enqueue_specially(self, op: Operation) -> bool:
        """Apply other engine kinds, the checking mode and bulks; return whether the push is then complete."""
        if not self._is_configured:
            self.apply_environment()
        if self._route is not None and op.actor.accepts_help:
            op.actor = self._route
        if self._checking:
            op.wrap(check_reads)
        if op.actor.engine is None:
            self._start_actor(op)
        if self._route is self._inline:
            self._push_inline(op)
            return True
        bulks = self.bulk_scope  # read once: another thread may close the last scope
        scope = bulks.get().value if bulks is not None and op.bulkable else None
        if scope is not None and not scope.closed:
            scope.add(op)
            return True
        # An interrupt may have come while a scope was being closed.
        if bulks is not None:
            self.leave_bulks()
        else:
            self._update_special()
        return False

    def _start_actor(self, op: Operation) -> None:
        """Start the actor of an operation; if no thread can be started, run operations when they are pushed."""
        try:
            self.hosting.start_actor(op.actor)
        except NoThread as error:
            if not op.actor.accepts_help:
                raise
            if threading.main_thread().is_alive():
                _log.warning("%s: from now on, operations run on the threads that push them", error)
            op.actor = self._route = self._inline
            self._inline.engine = self.hosting.engine
            self._update_special()

    # -- watching --------------------------------------------------------------------------------------

    def use_watch(self, watch: Callable[[Operation], None] | None, purpose: str = "values") -> None:
        """Set the function that sees each operation before it is pushed.

        Args:
            watch: the function, which may wrap the operation, or reject it by raising; None removes it.
            purpose: identifies the watch; each purpose has one function.
        """
        if watch is None:
            self.watches.pop(purpose, None)
        else:
            self.watches[purpose] = watch
        self._watch_functions = tuple(self.watches.values())

    @property
    def is_watched(self) -> bool:
        """Whether a watch inspects each operation, so that operations must not be combined."""
        return bool(self.watches.keys() - _VARIABLE_WATCHES)

    # -- bulks -----------------------------------------------------------------------------------------

    def use_bulks(self, variable: ContextVar[Any], scope: object) -> None:
        """Check for an open bulk at each push, until this scope and all others are closed."""
        with self.books.lock:
            self._bulks[id(scope)] = weakref.ref(scope)
            self.bulk_scope = variable
            self._update_special()

    def leave_bulks(self) -> None:
        """Stop checking for open bulks if all scopes are closed, so that pushes are fast again."""
        with self.books.lock:
            scopes = [reference() for reference in list(self._bulks.values())]  # list(): scopes may be added meanwhile
            if all(scope is None or scope.closed for scope in scopes):
                self._bulks.clear()
                self.bulk_scope = None
                self._update_special()

    def flush_bulks(self) -> None:
        """Push every open bulk: a waiter may depend on a bulk of another task or thread."""
        for scope in list(self.open_bulks):
            scope.flush()

    # -- the naive engine ------------------------------------------------------------------------------

    def _push_inline(self, op: Operation) -> None:
        """Push an operation, run ready operations on this thread, then wait until it is complete."""
        with self.books.lock:
            self.books.recover()
            self.books.push(op)
        self.runner.help(self._inline)
        is_loop_thread = threading.current_thread() is self.hosting.loop_thread
        if op.state != DONE and self.runner.local.turn is None and not is_loop_thread:
            self.waiting._block(op)

    def _run_inline(self) -> None:
        """Run ready operations, but not on the engine's loop, which must not block."""
        if self._route is not self._inline:
            return
        with self.books.lock:
            if self._inline.mailbox.first() is None:
                return
        if threading.current_thread() is self.hosting.loop_thread:
            threading.Thread(target=self.runner.help, args=(self._inline,), name="flowmx-naive", daemon=True).start()
        else:
            self.runner.help(self._inline)

    # -- cancelling ------------------------------------------------------------------------------------

    def cancel(self, op: Operation) -> bool:
        """Cancel an operation that has not started, or a running coroutine; return whether it will not succeed.

        A cancelled operation stays in the queue until its dependencies are complete, then poisons the variables that it
        writes.
        """
        with self.books.lock:
            self.books.recover()
            if op.state == RUNNING:
                return bool(op.actor.cancel_running(op))
            if op.state == DONE or op.failure is not None:
                return False
            failure = Failure(OperationCancelled(f"operation {op.name!r} was cancelled before it ran"), op)
        return retry(self._cancel, op, failure)

    def _cancel(self, op: Operation, failure: Failure) -> bool:
        waiters: list[Callable[[], None]] = []
        with self.books.lock:
            self.books.recover()
            if op.state == RUNNING:  # it started in the meantime
                return bool(op.actor.cancel_running(op))
            if op.state == DONE and op.failure is not failure:
                return False
            if op.blockers:
                op.failure = failure
                waiters += (op.waiters or {}).values()
            else:
                self.books.finish(op, failure, waiters)
        for waiter in waiters:
            waiter()
        if op.state == DONE:
            release(op)
        else:
            op.function, op.arguments, op.layers, op.context = _do_nothing, (), (), None
        return True


def _do_nothing(*_: object) -> None:
    """The function of a cancelled operation, and the default of hooks."""
