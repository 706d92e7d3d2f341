"""Computes the calls of sessions in shared batches, on threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from typing import Any

import numpy as np

from flowmx import forks
from flowmx.serve.batching import Pace
from flowmx.serve.inputs import Array
from flowmx.serve.runner import Runner
from flowmx.serve.sessions.core import Call, SessionEntry, SessionLimits, SessionTable
from flowmx.serve.sessions.stateful_model import StatefulModel
from flowmx.serve.sessions.states import StateRows, StateSpec

__all__ = ["SessionRunner"]

_LOOK = 1.0
"""Seconds after which a thread looks for sessions that were deleted without being closed."""
_SPARE = 32
"""The number of rows of states that are not worth releasing while sessions are open."""
_NAMES = 4
"""The number of sessions that an error or a report names."""
Results = list[Array] | list[list[Array]]


class SessionRunner:
    """Computes the calls of the sessions of a predictor.

    Args:
        runner: the predictor's runner; it has the model, and computes calls without a session.
        states: the states of the model.
        limits: the limits on sessions.
    """

    def __init__(self, runner: Runner, states: Sequence[StateSpec], limits: SessionLimits) -> None:
        self._runner, self._states, self.limits = runner, states, limits
        self._row_bytes = sum(spec.nbytes for spec in states)
        self._pace = Pace(runner.pace.sizes, runner.pace.max_latency)
        self._clear()
        forks.in_child(self, SessionRunner._restart)

    def _clear(self) -> None:
        """Reset to no sessions and no threads."""
        most = min(self.limits.sessions, max(1, self.limits.nbytes // max(1, self._row_bytes)))
        self._table, self._rows = SessionTable(self._row_bytes, self.limits), StateRows(self._states, most)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._deleted: deque[SessionEntry] = deque()
        self._idle_futures: list[Future[None]] = []
        self._threads: list[threading.Thread] | None = None

    def _restart(self) -> None:
        """Discard the parent's threads and sessions in the child of a fork."""
        for session in self._table:
            session.reason = "belongs to the process that was forked"
        self._clear()

    # -- for any thread --------------------------------------------------------------------------------

    @property
    def sessions(self) -> int:
        """The number of open sessions."""
        return len(self._table)

    @property
    def nbytes(self) -> int:
        """The size of the states and the waiting inputs in bytes, with the room for further sessions."""
        return self._rows.nbytes + self._table.nbytes - self._row_bytes * len(self._table)

    def report(self) -> dict[str, Any]:
        """Return the numbers of sessions and calls, and the names of the sessions that have waited for longest."""
        table, limits, now = self._table, self.limits, time.perf_counter()
        waiting = [
            {"name": str(session.name), "calls": len(session.calls), "steps": session.steps, "seconds": now - arrival}
            for session, arrival in table.longest_waiting(_NAMES)
        ]
        return {
            "open": self.sessions, "limit": limits.sessions, "nbytes": self.nbytes, "nbytes_limit": limits.nbytes,
            "waiting": table.waiting, "running": table.running, "longest": waiting,
        }  # fmt: skip

    def open(self, name: Hashable = None, idle: float | None = None) -> SessionEntry:
        """Open a session; see :meth:`SessionTable.open`.

        Raises:
            Unavailable: no requests are accepted.
        """
        with self._changed:
            self._runner.check_accepting()
            session = self._table.open(time.perf_counter(), name, idle)
            self._changed.notify()  # a thread waits until its time without calls is over
        self._begin()
        self._measure_sessions()
        return session

    def find(self, name: Hashable) -> SessionEntry | None:
        """Return the open session of a name, or None."""
        with self._lock:
            return self._table.find(name)

    def watch(self, session: SessionEntry, function: Callable[[], object]) -> None:
        """Call a function, on any thread, when a session is closed; at once if it is."""
        with self._lock:
            session.watchers.append(function)
            is_closed = session.reason is not None
        if is_closed:
            function()

    def submit(self, call: Call) -> None:
        """Queue a call; see :meth:`SessionTable.put`.

        Raises:
            Unavailable: no requests are accepted.
        """
        with self._lock:
            if not self._runner.accepting:
                self._runner.check_accepting()
            ready = self._table.put(call, call.arrival)
            self._pace.record_arrival(call.arrival, 1)
            if ready == 1 or ready == self._pace.sizes[-1]:
                self._changed.notify()
        if self._threads is None:
            self._begin()

    def drop(self, call: Call) -> None:
        """Withdraw an abandoned call. It has no effect, unless its batch is complete."""
        with self._changed:
            self._table.drop(call)
            self._complete_idle()

    def close(self, session: SessionEntry, reason: str = "is closed", kind: str = "closed") -> None:
        """Close a session; its unfinished calls fail.

        Args:
            session: the session.
            reason: why, as the end of a sentence.
            kind: the reason in the metrics.
        """
        with self._changed:
            if session.reason is not None:
                return
            calls = self._table.close(session, reason)
            self._complete_idle()
            self._changed.notify()  # a thread releases memory
        self._record_closed(session, kind)
        self._fail(calls, session.closed())

    def delete(self, session: SessionEntry) -> None:
        """Close a session whose object was deleted. This may be called by a finalizer, at any point of the program."""
        self._deleted.append(session)

    def close_all(self, reason: str, kind: str) -> None:
        """Close all sessions."""
        for session in self._table:
            self.close(session, reason, kind)

    def when_idle(self) -> Future[None]:
        """Return a future that completes when no call is unfinished."""
        future: Future[None] = Future()
        with self._changed:
            self._idle_futures.append(future)
            self._complete_idle()
        return future

    def stop(self) -> list[threading.Thread]:
        """Close all sessions and stop the threads; return these."""
        self.close_all(f"was closed because {self._runner.name} was stopped", "drained")
        with self._changed:
            threads, self._threads = self._threads, None
            if not self._table.running:
                self._rows.trim([], 0)
            self._changed.notify_all()
        self._measure_sessions()
        return threads or []

    # -- threads ---------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Start the threads, if they do not run."""
        self._runner.begin()
        with self._changed:
            if self._threads is not None or not len(self._table):
                return
            threads: list[threading.Thread] = []
            self._threads = threads
            for number in range(self._runner.workers):
                name = f"flowmx-sessions-{self._runner.name}-{number}"
                threads.append(threading.Thread(target=self._serve, args=(threads,), name=name, daemon=True))
            for thread in threads:
                thread.start()

    def _serve(self, threads: list[threading.Thread]) -> None:
        try:
            self._runner.warm.result()
        except BaseException as error:  # user code: the callers get the error
            self._abandon(threads, error)
            return
        while self._wait(threads):
            with self._runner.turn():
                batch = self._take(threads)  # now, because calls have arrived while it waited for its turn
                if batch is not None:
                    self._compute(*batch)
            del batch

    def _abandon(self, threads: list[threading.Thread], error: BaseException) -> None:
        """Fail all calls because the model cannot run."""
        with self._changed:
            if self._threads is threads:
                self._threads = None
            sessions = list(self._table)
            calls = [call for session in sessions for call in self._table.close(session, f"has failed: {error}")]
            self._complete_idle()
        for session in sessions:
            self._record_closed(session, "failed")
        self._fail(calls, error)

    def _wait(self, threads: list[threading.Thread]) -> bool:
        """Wait until a batch is to start; return False if these threads have to stop."""
        with self._changed:
            while self._threads is threads:
                now = time.perf_counter()
                self._close_unused(now)
                oldest = self._table.oldest()
                if oldest is None:
                    self._release_memory()
                    self._changed.wait(self._seconds_to_look(now))
                    continue
                begin = self._pace.start_time(self._table.ready(oldest.shapes), oldest.arrival, now)
                if begin <= now:
                    return True
                self._changed.wait(begin - now)
        return False

    def _seconds_to_look(self, now: float) -> float | None:
        """Return the seconds until sessions may have to be closed, or None without sessions (locked)."""
        expiry = self._table.next_expiry()
        return None if expiry is None else max(0.0, min(expiry - now, _LOOK))

    def _close_unused(self, now: float) -> None:
        """Close the sessions that were deleted, or had no call for too long (locked)."""
        deleted: list[Call] = []
        while self._deleted:
            session = self._deleted.popleft()
            if session.reason is None:
                deleted += self._table.close(session, "was deleted")
                self._record_closed(session, "deleted")
        for session in self._table.expire(now):
            self._record_closed(session, "idle")
        if deleted:
            self._complete_idle()

    def _release_memory(self) -> None:
        """Make the arrays of states smaller if most sessions have been closed (locked)."""
        table, rows = self._table, self._rows
        excess = rows.capacity > _SPARE + 4 * len(table) or (rows.capacity and not len(table))
        if excess and not table.running:
            rows.trim(table.compact(), len(table))
            self._measure_sessions()

    def _take(self, threads: list[threading.Thread]) -> tuple[list[Call], int] | None:
        """Return the calls and the size of the next batch; None if other threads took all calls, or these stop."""
        with self._changed:
            oldest = self._table.oldest()
            if self._threads is not threads or oldest is None:
                return None
            self._pace.seconds = self._runner.pace.seconds
            size = self._pace.size(self._table.ready(oldest.shapes))
            calls = self._table.take(oldest.shapes, size)
            self._rows.reserve(self._table.slots)
            if self._table.oldest() is not None:
                self._changed.notify()
            return calls, size

    def _compute(self, calls: list[Call], size: int) -> None:
        runner = self._runner
        start, model, sessions = time.perf_counter(), runner.model, [call.session for call in calls]
        assert isinstance(model, StatefulModel)
        slots = [session.slot for session in sessions]
        try:
            with runner.tracing.batch(runner.name, calls, len(calls), size) if runner.tracing else nullcontext():
                new = [place for place, session in enumerate(sessions) if session.is_new]
                states = self._rows.gather(slots, new, size)
                outputs, after = model.step(_stack(calls, size), states)
        except BaseException as error:  # user code
            self._recover(calls, error)
            return
        with self._changed:
            places = self._table.commit(calls)
        try:
            self._rows.scatter([slots[place] for place in places], places, after)
        except Exception as error:  # such as a lack of memory
            self._end_failed(calls, error)
            return
        with self._changed:
            end = time.perf_counter()
            self._table.finish(calls, end)
            self._pace.record_batch(len(calls), end - start)
            self._complete_idle()
        runner.measure(len(calls), size, end - start)
        runner.instruments.latency.observe_all([end - calls[place].arrival for place in places], runner.name)
        runner.instruments.requests.add(runner.name, "answered", by=len(places))
        self._answer([calls[place] for place in places], _results(outputs, places))

    def _recover(self, calls: Sequence[Call], error: BaseException) -> None:
        """Compute the calls of a failed batch one by one, so that only those fail that cause the error."""
        size = self._pace.sizes[0]
        if len(calls) > 1 and isinstance(error, Exception):
            for call in calls:
                self._compute([call], size)
        else:
            self._end_failed(calls, error)

    def _end_failed(self, calls: Sequence[Call], error: BaseException) -> None:
        """End the calls of a failed batch, and fail those that are still wanted."""
        with self._changed:
            failed = self._table.fail(calls, time.perf_counter())
            self._complete_idle()
        for name in dict.fromkeys(repr(call.session.name) for call in failed[:_NAMES]):
            error.add_note(f"the call was of session {name}, whose states are those before the call")
        self._fail(failed, error)

    # -- results ---------------------------------------------------------------------------------------

    def _fail(self, calls: Sequence[Call], error: BaseException) -> None:
        if calls:
            self._runner.instruments.requests.add(self._runner.name, "failed", by=len(calls))
            self._answer(calls, None, error)

    def _answer(self, calls: Sequence[Call], results: Results | None, error: BaseException | None = None) -> None:
        """Complete the futures of calls, with one call per event loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Call, Any]]] = {}
        for place, call in enumerate(calls):
            by_loop.setdefault(call.answer[0], []).append((call, None if results is None else results[place]))
        for loop, batch in by_loop.items():
            try:
                loop.call_soon_threadsafe(_resolve, batch, error)
            except RuntimeError:  # the loop is closed, so nothing waits
                pass

    def _complete_idle(self) -> None:
        """Complete the futures of :meth:`when_idle` (locked)."""
        if self._idle_futures and not (self._table.waiting or self._table.running):
            for future in self._idle_futures:
                future.set_result(None)
            self._idle_futures = []

    def _record_closed(self, session: SessionEntry, kind: str) -> None:
        """Count a closed session, and call its watchers."""
        while session.watchers:
            session.watchers.pop()()
        self._runner.instruments.closed_sessions.add(self._runner.name, kind)
        self._measure_sessions()

    def _measure_sessions(self) -> None:
        instruments, name = self._runner.instruments, self._runner.name
        instruments.sessions.set(len(self._table), name)
        instruments.session_bytes.set(self.nbytes, name)


def _stack(calls: Sequence[Call], size: int) -> list[Array]:
    """Return one array per input with the rows of all calls, padded with zeros."""
    batch = []
    for place, first in enumerate(calls[0].arrays):
        array = np.empty((size, *first.shape[1:]), first.dtype)
        np.concatenate([call.arrays[place] for call in calls], out=array[: len(calls)])
        array[len(calls) :] = 0
        batch.append(array)
    return batch


def _results(outputs: Sequence[Array], places: Sequence[int]) -> Results:
    """Return the result of each call: an array, or a list of arrays for several outputs."""
    if len(outputs) == 1:
        (output,) = outputs
        return [output[place].copy() for place in places]  # a view would keep the whole batch alive
    return [[output[place].copy() for output in outputs] for place in places]


def _resolve(batch: Sequence[tuple[Call, Any]], error: BaseException | None) -> None:
    for call, result in batch:
        future: asyncio.Future[Any] = call.answer[1]
        if future.done():
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
