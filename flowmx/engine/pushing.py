"""Pushing and cancelling of operations.

Pushing happens on the caller's thread under one lock and never waits for work (Law 2).
"""

from __future__ import annotations

import logging
import threading
import weakref
from asyncio import _get_running_loop as _running_loop  # bound: it is asked at each such push
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from flowmx.engine.actor import Actor
from flowmx.engine.bookkeeping import Books, release
from flowmx.engine.checking import checked
from flowmx.engine.failure import Failure
from flowmx.engine.hosting import Hosting, NoThread
from flowmx.engine.running import Runner, again
from flowmx.engine.scheduler import DONE, READY, RUNNING, Operation, Variable
from flowmx.engine.waiting import Waiting
from flowmx.engine.workers import InlineActor, ThreadActor
from flowmx.errors import OperationCancelled
from flowmx.settings import Settings

_log = logging.getLogger("flowmx.engine")
_NOT_LOOKING = frozenset({"deleted", "lines", "tokens"})
"""Watches that look at no more of an operation than its variables."""


class Pushing:
    """Takes operations and assigns them to actors.

    Attributes:
        kind: the engine's kind.
        watches: who is shown each operation before it is pushed, by what for.
        bulk_scope: the variable that holds the open bulk of a context; None while nobody uses any.
        open_bulks: the bulk scopes that hold an operation back; any wait lets them all go.
        read_settings: puts the settings of the environment in force.
    """

    def __init__(self, books: Books, runner: Runner, waiting: Waiting, hosting: Hosting) -> None:
        self.books = books
        self.runner = runner
        self.waiting = waiting
        self.hosting = hosting
        self.kind = ""
        self.bulk_scope: ContextVar[Any] | None = None
        self._bulks: dict[int, weakref.ref[Any]] = {}
        self.open_bulks: dict[Any, None] = {}
        self.watches: dict[str, Callable[[Operation], None]] = {}
        self._each_watch: tuple[Callable[[Operation], None], ...] = ()
        self._inline = InlineActor("naive")
        self._pool = ThreadActor("pool")
        self._route: Actor | None = None
        self._checking = self._is_at_work = False
        # Whether there is more to a push than to hand it over. The environment is read at the first push, not at the
        # import, which a bad setting must not break.
        self._is_special = self._is_configured = False
        self.read_settings: Callable[[], None] = _nothing
        self.configure(Settings())
        self._is_configured, self._is_special = False, True
        waiting.flush = self.flush_bulks
        runner.after = self._go_on_naively

    def configure(self, config: Settings) -> None:
        """Use other settings from here on; waits for what is pending where the engine's kind changes."""
        kind = {"ThreadedEnginePooled": "ThreadedEngine"}.get(config.engine_type, config.engine_type)
        if self.kind not in ("", kind):
            self.waiting.wait_all(throw=False)
        self.kind = kind
        self._checking = config.engine_check
        self._pool.slots = max(2, config.cpu_worker_nthreads)
        self._route = {"NaiveEngine": self._inline, "ThreadedEngine": self._pool}.get(kind)
        self._is_configured = True
        self._find_out()

    def _find_out(self) -> None:
        self._is_special = (
            not self._is_configured or self._route is not None or self._checking or self.bulk_scope is not None
        )

    # -- pushing ---------------------------------------------------------------------------------------

    def enqueue(self, op: Operation) -> None:
        """Push an operation: it runs when its dependencies are met. Returns at once."""
        for watch in self._each_watch:
            watch(op)
        books = self.books
        if op.light and not self._is_special and op.actor.engine is not None and not self._is_at_work:
            try:
                with books.lock:
                    if op.actor.is_idle() and books.scheduler.enter(op):
                        self.runner.run_at_push(op)
                        return
            except BaseException:
                again(self.runner.break_off, op)
                raise
        waiting = self.waiting
        if len(books.pending) >= waiting.most_ops or books.scheduler.pending_bytes + op.nbytes > waiting.most_bytes:
            waiting.make_room(op.nbytes)
        try:
            if self._is_special and self._enqueue_specially(op):
                return
            if op.actor.engine is None:
                self._adopt(op)
                if op.actor is self._inline:
                    self._push_inline(op)
                    return
            if op.short and self._may_work_for(op.actor):
                self._push_and_run(op)
                return
            with books.lock:
                books.settle()
                books.push(op)
        except BaseException:
            again(self.runner.break_off, op)
            raise

    def at_once(self, actor: Actor, reads: tuple[Variable, ...], function: Callable[..., Any], *arguments: Any) -> bool:
        """Run light work that reads variables and makes what nobody else has seen yet: no operation stands for it.

        Where anything is to be waited for or to be told, where it fails, or where something was pushed in between, this
        returns False: the same work is then to be pushed as an operation, and what it has made does not count.

        Args:
            actor: where it belongs.
            reads: what it reads.
            function: what does it; it may be called again.
            *arguments: of the function.
        """
        books = self.books
        if self._is_special or self._each_watch or actor.engine is None:
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
            if self._is_at_work:
                return False
            self._is_at_work = True
            try:
                self.runner.inline(function, *arguments)
            except Exception:
                return False
            finally:
                self._is_at_work = False
            if scheduler.serial != serial:
                return False
            scheduler.serial = serial + 1
            actor.executed += 1
            return True

    def _may_work_for(self, actor: Actor) -> bool:
        """Tell whether this thread may run short operations of an actor itself.

        Not one that runs an event loop, or an operation; nor for an actor that several threads work for.
        """
        return (
            isinstance(actor, ThreadActor)
            and actor.slots == 1
            and self.runner.local.turn is None
            and not self._is_at_work
            and self.books.scheduler.inside is None
            and _running_loop() is None
        )

    def _push_and_run(self, op: Operation) -> None:
        """Push a short operation, and run it on this thread if its actor has nothing else to do.

        A worker would have to be woken for it, and would take the interpreter from this thread, which has little to do
        before it waits.
        """
        books, actor = self.books, op.actor
        try:
            with books.lock:
                books.settle()
                actor.kept = op if actor.is_idle() else None
                books.push(op)
                is_kept, actor.kept = actor.kept is op and op.state == READY, None
            if is_kept:
                self.runner.lend(actor, op)
                if op.state == READY:
                    self._call_for(actor)
        except BaseException:
            again(self._call_for, actor)
            raise

    def _call_for(self, actor: ThreadActor) -> None:
        with self.books.lock:
            self.books.settle()
            actor.kept = None
            actor.tend()

    def _enqueue_specially(self, op: Operation) -> bool:
        """Do what other engine kinds, the checking mode and bulks change; True when that was all of the push."""
        if not self._is_configured:
            self.read_settings()
        if self._route is not None and op.actor.may_lend:
            op.actor = self._route
        if self._checking:
            op.wrap(checked)
        if op.actor.engine is None:
            self._adopt(op)
        if self._route is self._inline:
            self._push_inline(op)
            return True
        bulks = self.bulk_scope  # another thread may leave the last one meanwhile
        scope = bulks.get() if bulks is not None and op.bulkable else None
        if scope is not None and not scope.closed:
            scope.add(op)
            return True
        # The end of a scope may have been broken off by an interrupt, at any line of it.
        if bulks is not None:
            self.leave_bulks()
        else:
            self._find_out()
        return False

    def _adopt(self, op: Operation) -> None:
        """Start an operation's actor at its first use; where no thread can be started, the one that pushes works."""
        try:
            self.hosting.adopt(op.actor)
        except NoThread as error:
            if not op.actor.may_lend:
                raise
            if threading.main_thread().is_alive():
                _log.warning("%s: operations run on the threads that push them from now on", error)
            op.actor = self._route = self._inline
            self._inline.engine = self.hosting.engine
            self._find_out()

    # -- watching --------------------------------------------------------------------------------------

    def use_watch(self, watch: Callable[[Operation], None] | None, purpose: str = "values") -> None:
        """Set the function that is shown each operation before it is pushed (None: none).

        Args:
            watch: the function, or None. It may wrap the operation, or refuse it by raising.
            purpose: what it is for; there is one function for each.
        """
        if watch is None:
            self.watches.pop(purpose, None)
        else:
            self.watches[purpose] = watch
        self._each_watch = tuple(self.watches.values())

    @property
    def is_watched(self) -> bool:
        """True while a watch looks at each operation, so that none may stand for several."""
        return bool(self.watches.keys() - _NOT_LOOKING)

    # -- bulks -----------------------------------------------------------------------------------------

    def use_bulks(self, variable: ContextVar[Any], scope: Any) -> None:
        """Look for an open bulk at each push, until this scope and all others are closed."""
        with self.books.lock:
            self._bulks[id(scope)] = weakref.ref(scope)
            self.bulk_scope = variable
            self._find_out()

    def leave_bulks(self) -> None:
        """Look for open bulks no longer if all scopes are closed: pushes are as quick as before."""
        with self.books.lock:
            scopes = [reference() for reference in list(self._bulks.values())]  # in one step: more may come meanwhile
            if all(scope is None or scope.closed for scope in scopes):
                self._bulks.clear()
                self.bulk_scope = None
                self._find_out()

    def flush_bulks(self) -> None:
        """Push every open bulk: a waiter may depend on one that another task or thread holds open."""
        for scope in list(self.open_bulks):
            scope.flush()

    # -- the naive engine ------------------------------------------------------------------------------

    def _push_inline(self, op: Operation) -> None:
        """Push an operation, run what is ready here and now, then see it complete."""
        with self.books.lock:
            self.books.settle()
            self.books.push(op)
        self.runner.lend(self._inline)
        on_the_loop = threading.current_thread() is self.hosting.loop_thread
        if op.state != DONE and self.runner.local.turn is None and not on_the_loop:
            self.waiting._block(op)

    def _go_on_naively(self) -> None:
        """Run what is ready by now; not on the engine's loop, where nothing may wait."""
        if self._route is not self._inline:
            return
        with self.books.lock:
            if self._inline.mailbox.first() is None:
                return
        if threading.current_thread() is self.hosting.loop_thread:
            threading.Thread(target=self.runner.lend, args=(self._inline,), name="flowmx-naive", daemon=True).start()
        else:
            self.runner.lend(self._inline)

    # -- cancelling ------------------------------------------------------------------------------------

    def cancel(self, op: Operation) -> bool:
        """Cancel an operation that has not started (or a coroutine that runs); True when it will not end well.

        One that waits keeps its place: it ends, and poisons what it writes, when its turn comes.
        """
        with self.books.lock:
            self.books.settle()
            if op.state == RUNNING:
                return bool(op.actor.cancel_running(op))
            if op.state == DONE or op.failure is not None:
                return False
            failure = Failure(OperationCancelled(f"operation {op.name!r} was cancelled before it ran"), op)
        return again(self._cancel, op, failure)

    def _cancel(self, op: Operation, failure: Failure) -> bool:
        waiters: list[Callable[[], None]] = []
        with self.books.lock:
            self.books.settle()
            if op.state == RUNNING or (op.state == DONE and op.failure is not failure):
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
            op.function, op.arguments, op.layers, op.context = _nothing, (), (), None
        return True


def _nothing(*_: Any) -> None:
    """The function of an operation that was cancelled, and what is not set yet."""
