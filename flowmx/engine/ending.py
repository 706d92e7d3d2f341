"""Endings: exit finishes or gives up what is pending, and both sides of a fork start from quiet (Law 5)."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flowmx import program, tracebacks
from flowmx.engine.bookkeeping import Books
from flowmx.engine.hosting import Hosting
from flowmx.engine.pushing import Pushing
from flowmx.engine.running import Runner
from flowmx.errors import OperationCancelled
from flowmx.settings import Settings

_log = logging.getLogger("flowmx.engine")
_AFTER_AN_INTERRUPT = 0.5
"""Seconds that pending operations get where the program ends by Ctrl-C."""
_WORK_OUTSIDE = 10.0
"""Seconds that a fork waits for compilations."""


class Gate:
    """Keeps forks apart from work outside of operations: a child would wait for locks that another thread had."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._working = 0

    @contextmanager
    def working(self) -> Iterator[None]:
        """Let no fork in."""
        with self._free:
            self._working += 1
        try:
            yield
        finally:
            with self._free:
                self._working -= 1
                self._free.notify_all()

    def close(self) -> None:
        """Wait until nobody works, some seconds at most, and let nobody begin."""
        self._free.acquire()
        self._free.wait_for(lambda: not self._working, _WORK_OUTSIDE)

    def open(self) -> None:
        """Let work begin again."""
        self._free.release()


class Ending:
    """Ends and forks an engine."""

    def __init__(self, books: Books, runner: Runner, hosting: Hosting, pushing: Pushing) -> None:
        self.books = books
        self.runner = runner
        self.hosting = hosting
        self.pushing = pushing
        self._stopped_for_fork = False
        self.gate = Gate()
        self.configure(Settings())

    def configure(self, config: Settings) -> None:
        """Use other settings."""
        self._timeout = config.exit_timeout
        self._fails = config.exit_fails

    def drain(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds for all pending work; True when nothing is left."""
        self.pushing.flush_bulks()
        idle = threading.Event()
        key = object()
        with self.books.lock:
            self.books.settle()
            last = dict(self.books.pending)

            def one_less(op: object) -> Callable[[], None]:
                def tell() -> None:
                    last.pop(op, None)  # type: ignore[call-overload]
                    if not last:
                        idle.set()

                return tell

            for op in list(last):
                op.tell(key, one_less(op))
        return not last or idle.wait(timeout)

    def shutdown(self, timeout: float | None = None) -> None:
        """Finish pending work (at most ``timeout`` seconds), then stop every thread. Used at exit."""
        if self.hosting.is_closed:
            return
        timeout = self._timeout if timeout is None else timeout
        if _was_interrupted():
            timeout = min(timeout, _AFTER_AN_INTERRUPT)
            for op in list(self.books.pending):
                self.pushing.cancel(op)
        if self.books.pending and not self.drain(timeout):
            _log.warning(
                "exit: %d operations were still pending after %g s and are given up, the oldest %r "
                "(FLOWMX_EXIT_TIMEOUT sets how long to wait)",
                len(self.books.pending), timeout, self.books.oldest(),
            )  # fmt: skip
        self._tell_of_failures()
        self.hosting.is_closed = True
        self.hosting.stop(join=1.0)

    def _tell_of_failures(self) -> None:
        """Show the first error that nobody waited for in full, and have the program end as any other error would."""
        unseen = [
            failure for failure in self.books.failures
            if not failure.seen and not isinstance(failure.exception, OperationCancelled)  # that is what was asked for
        ]  # fmt: skip
        if unseen:
            first = unseen[0]
            what = "an operation failed and nobody waited for it:"
            if len(unseen) > 1:
                what = f"{len(unseen)} operations failed and nobody waited for them; the first:"
            _log.error("exit: %s\n%s", what, tracebacks.folded(first.exception, first.traceback).rstrip())
            if self._fails and not hasattr(sys, "ps1"):
                program.fail()

    # -- forks -----------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Finish what can be finished and stop the threads, so that both processes start from quiet."""
        inside = self.runner.local.turn is not None or threading.current_thread() is self.hosting.loop_thread
        if not self.hosting.is_closed and not inside:
            self.drain(self._timeout)
            if not self.books.pending:
                self.hosting.stop(join=1.0)
                self.hosting.start_again()
        self.books.lock.acquire()
        self.gate.close()

    def after_fork_in_parent(self) -> None:
        """Continue after a fork; actors start again at their next operation."""
        self.gate.open()
        self.books.lock.release()

    def after_fork_in_child(self) -> None:
        """The child has none of the threads: start anew; what was still pending fails with a reason."""
        self.gate = Gate()
        self.hosting.forget()
        self.runner.local.turn = None
        for scope in self.pushing.open_bulks:
            scope.open.clear()
        self.pushing.open_bulks.clear()
        for op in list(self.books.pending):
            if self.books.scheduler.is_held(op):
                self.books.scheduler.unhold(op)
        self.runner.abandon(list(self.books.pending), "it was still pending in the parent when that forked")
        self.books.failures.clear()
        self.books.lock.release()


def _was_interrupted() -> bool:
    """Tell whether the program ends because nobody has caught a KeyboardInterrupt."""
    last: object = getattr(sys, "last_type", None)  # in an interactive session it may have been long ago
    return not hasattr(sys, "ps1") and isinstance(last, type) and issubclass(last, KeyboardInterrupt)
