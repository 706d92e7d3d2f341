"""Exit and fork: an exit finishes or abandons pending operations; both processes of a fork continue.

This is law 5 of the engine, see ``docs/architecture.md``.

A fork cannot wait for all pending operations: many children only call ``exec``, and uvloop forks on its event loop. So
it waits for running operations (only briefly on an event loop), and starts no others. When the child first uses the
engine, it runs the operations that had not started. Operations that had started, user code and coroutines fail in the
child, which cannot run them.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from time import monotonic

from flowmx import event_loops, program, tracebacks
from flowmx.engine.bookkeeping import Books
from flowmx.engine.hosting import Host
from flowmx.engine.pushing import Pusher
from flowmx.engine.running import Runner
from flowmx.engine.scheduler import RUNNING, Operation
from flowmx.errors import OperationCancelled
from flowmx.settings import Settings

_log = logging.getLogger("flowmx.engine")
_INTERRUPT_TIMEOUT = 0.5
"""Seconds that exit waits for pending operations after Ctrl-C."""
_COMPUTE_TIMEOUT = 1.0
"""Seconds that exit waits for operations that only compute, so that cheap ones finish and report their errors."""
_COMPILATION_TIMEOUT = 10.0
"""Seconds that a fork waits for compilations."""
_FORK_TIMEOUT = 0.1
"""Seconds that a fork waits for all pending operations."""
_SHORT_FORK_TIMEOUT = 0.005
"""Seconds that a fork waits if it blocks an event loop or starts another program."""
_EXEC_MODULES = frozenset({"subprocess", "pty"})
"""Modules that fork in order to ``exec``."""


class Gate:
    """Delays forks while a thread works outside operations: the locks that it holds would stay locked in the child.

    Attributes:
        interrupted: whether the parent was doing such work at the fork, so that the child cannot do any.
    """

    def __init__(self, interrupted: bool = False) -> None:
        self.interrupted = interrupted
        self._free = threading.Condition()
        self._working = 0

    @contextmanager
    def working(self) -> Iterator[None]:
        """Delay forks during the ``with`` block."""
        with self._free:
            self._working += 1
        try:
            yield
        finally:
            with self._free:
                self._working -= 1
                self._free.notify_all()

    def close(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds until no work is in progress, and block new work."""
        self._free.acquire()
        self._free.wait_for(lambda: not self._working, timeout)

    def open(self) -> None:
        """Allow work again."""
        self._free.release()

    def copy_for_child(self) -> Gate:
        """Return the gate for a child that was forked while this one was closed."""
        return Gate(self.interrupted or self._working > 0)


class Lifecycle:
    """Ends and forks an engine."""

    def __init__(self, books: Books, runner: Runner, hosting: Host, pushing: Pusher) -> None:
        self.books = books
        self.runner = runner
        self.hosting = hosting
        self.pushing = pushing
        self.gate = Gate()
        self._inherited = False
        hosting.start_callbacks.append(self._resume)
        self.configure(Settings())

    def configure(self, config: Settings) -> None:
        """Use other settings."""
        self._timeout = config.exit_timeout
        self._exit_fails = config.exit_fails

    def drain(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds for all pending operations; return whether all have ended."""
        self.pushing.waiting.flush()
        with self.books.lock:
            self.books.recover()
            ops = list(self.books.pending)
        return self._wait_for(ops, timeout)

    def _wait_for(self, ops: Collection[Operation], timeout: float) -> bool:
        """Wait at most ``timeout`` seconds for operations; return whether all have ended."""
        idle = threading.Event()
        key = object()
        with self.books.lock:
            remaining = {op: None for op in ops if op in self.books.pending}

            def complete(op: Operation) -> None:
                remaining.pop(op, None)
                if not remaining:
                    idle.set()

            for op in list(remaining):
                op.add_waiter(key, partial(complete, op))
        return not remaining or idle.wait(timeout)

    def shutdown(self, timeout: float | None = None) -> None:
        """Finish pending operations, then stop every thread. Called at exit.

        It waits at most one second for operations that only compute values, because nothing can read these any more,
        and at most ``timeout`` seconds for all others.
        """
        if self.hosting.is_closed:
            return
        timeout = self._timeout if timeout is None else timeout
        if _was_interrupted():
            timeout = min(timeout, _INTERRUPT_TIMEOUT)
            for op in list(self.books.pending):
                self.pushing.cancel(op)
        if self.books.pending and not self._inherited:
            self._finish(timeout)
        self._report_failures()
        self.hosting.is_closed = True
        self.hosting.stop(join=1.0)

    def _finish(self, timeout: float) -> None:
        self.pushing.waiting.flush()
        begin = monotonic()
        with self.books.lock:
            self.books.recover()
            ops, effects = list(self.books.pending), self._effects()
        if not self._wait_for(effects, timeout):
            abandoned = [op for op in effects if op in self.books.pending]
            _log.warning(
                "exit: %d operations were still pending after %g s and were abandoned, the oldest %r "
                "(FLOWMX_EXIT_TIMEOUT sets how long to wait)",
                len(abandoned), timeout, next(iter(abandoned), None),
            )  # fmt: skip
        self._wait_for(ops, min(timeout, begin + _COMPUTE_TIMEOUT - monotonic()))

    def _effects(self) -> dict[Operation, None]:
        """Return the pending operations with side effects, and all their dependencies (locked)."""
        effects = {op: None for op in self.books.pending if not _only_computes(op)}
        queue = list(effects)
        while queue:
            for op in queue.pop().blockers or ():
                if isinstance(op, Operation) and op not in effects:
                    effects[op] = None
                    queue.append(op)
        return effects

    def _report_failures(self) -> None:
        """Log, in full, the first error that no wait has raised, and make the program exit as for any other error."""
        unraised = [
            failure for failure in self.books.failures
            if not failure.raised and not isinstance(failure.exception, OperationCancelled)  # cancelled on purpose
        ]  # fmt: skip
        if unraised:
            first = unraised[0]
            summary = "an operation failed and nothing waited for it:"
            if len(unraised) > 1:
                summary = f"{len(unraised)} operations failed and nothing waited for them; the first:"
            _log.error("exit: %s\n%s", summary, tracebacks.format_folded(first.exception, first.traceback).rstrip())
            if self._exit_fails and not hasattr(sys, "ps1"):
                program.fail()

    # -- forks -----------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Stop the threads if all work ends soon; else wait for running operations, which would fail in the child."""
        inside = self.runner.local.turn is not None or threading.current_thread() is self.hosting.loop_thread
        is_short = _must_be_short(sys._getframe(1).f_globals.get("__name__"))
        if not self.hosting.is_closed and not inside and not self._inherited:
            if not is_short:
                self.drain(_FORK_TIMEOUT)
            if self.books.pending:
                self._pause(_SHORT_FORK_TIMEOUT if is_short else self._timeout)
            else:
                self.hosting.stop(join=1.0)
                self.hosting.restart()
        self.books.lock.acquire()
        self.gate.close(_SHORT_FORK_TIMEOUT if is_short else _COMPILATION_TIMEOUT)

    def _pause(self, timeout: float) -> None:
        """Start no further operation that only computes, and wait for those that run."""
        with self.books.lock:
            self.books.recover()
            for actor in self.hosting.actors.values():
                actor.pause()
            running = [op for op in self.books.pending if op.state == RUNNING and _only_computes(op)]
        self._wait_for(running, timeout)

    def after_fork_in_parent(self) -> None:
        """Continue after a fork; actors start again at their next operation."""
        self.gate.open()
        for actor in self.hosting.actors.values():
            actor.unpause()
        self.books.lock.release()

    def after_fork_in_child(self) -> None:
        """Restart in the child, which has none of the threads; fail the operations that it cannot run."""
        self.gate = self.gate.copy_for_child()
        self.hosting.reset_after_fork()
        self.runner.local.turn = None
        for scope in self.pushing.open_bulks:
            scope.open.clear()
        self.pushing.open_bulks.clear()
        lost = [op for op in self.books.pending if op.state == RUNNING or not _only_computes(op)]
        for op in list(self.books.pending):
            if self.books.scheduler.is_held(op):
                self.books.scheduler.unhold(op)
                lost.append(op)
        self.runner.abandon(lost, "it was still pending in the parent process at the fork")
        self._inherited = bool(self.books.pending)
        if self._inherited:
            self.pushing.waiting.flush = self._flush_in_child
        self.books.failures.clear()
        self.books.lock.release()

    def _resume(self) -> None:
        """Start the operations that had not started in the parent; called at the child's first push or wait."""
        if self._inherited:
            self._inherited = False
            self.pushing.waiting.flush = self.pushing.flush_bulks
            self.hosting.restart()

    def _flush_in_child(self) -> None:
        self._resume()
        self.pushing.flush_bulks()


def _only_computes(op: Operation) -> bool:
    """Return whether an operation only computes values, so that a forked child may run it and exit may skip it."""
    return bool(op.actor.accepts_help) and not op.runs_user_code and not op.is_coroutine


def _must_be_short(caller: str | None) -> bool:
    """Return whether a fork by this module blocks an event loop, or only calls ``exec``."""
    return caller in _EXEC_MODULES or asyncio._get_running_loop() is not None or event_loops.library() is not None


def _was_interrupted() -> bool:
    """Return whether the program ends because of an uncaught KeyboardInterrupt."""
    last: object = getattr(sys, "last_type", None)  # in an interactive session it may be old
    return not hasattr(sys, "ps1") and isinstance(last, type) and issubclass(last, KeyboardInterrupt)
