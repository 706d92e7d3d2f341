"""Endings: exit finishes or gives up what is pending, and both sides of a fork start from quiet (Law 5)."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

from flowmx.engine.scheduler import READY
from flowmx.engine.state import Here
from flowmx.engine.waiting import Waiting

_log = logging.getLogger("flowmx.engine")


class Ending(Waiting):
    """What ends or forks an engine."""

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
        self.here = Here()
        for scope in self.open_bulks:
            scope.op = None
        self.open_bulks.clear()
        for op in self.pending:
            while op.held:
                self.scheduler.unhold(op)
        self._abandon(list(self.pending), "it was still pending in the parent when that forked")
        self.failures.clear()
        self.lock.release()
