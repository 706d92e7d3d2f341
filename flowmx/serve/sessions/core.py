"""The calls of sessions: their order, batches, closing, timeouts and limits. This module does no I/O, reads no clock.

A session has a queue of calls, and a slot: the place of its states in an array that all sessions share. At most one
call of a session is in a batch at a time, so the calls of a session take effect in order. A session is ready if a call
waits and none is in a batch; a batch has the first calls of the sessions that have been ready for longest.

A batch is computed in three steps: :meth:`SessionTable.take` forms it, :meth:`SessionTable.commit` decides whose states
are replaced, and :meth:`SessionTable.finish` ends its calls. A call that is dropped or whose session is closed before
``commit`` has no effect. If the model fails, no call of the batch has an effect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import count, islice
from typing import Any, NamedTuple

from flowmx.errors import Overloaded
from flowmx.serve.errors import SessionClosed
from flowmx.serve.inputs import Array, Shape

__all__ = ["Call", "SessionEntry", "SessionLimits", "SessionTable"]

_RETRY, _LONGEST_RETRY = 0.1, 5.0
"""Bounds of the seconds after which a client may try again; sessions may be closed long before they are idle."""
_WAITING, _RUNNING, _COMMITTED, _OVER = range(4)


class SessionLimits(NamedTuple):
    """Limits on the sessions of a model.

    Attributes:
        sessions: the maximum number of open sessions.
        nbytes: the maximum size of all states and waiting inputs in bytes.
        calls: the maximum number of unfinished calls of a session.
        idle: seconds without a call after which a session is closed.
    """

    sessions: int = 16384
    nbytes: int = 1 << 30
    calls: int = 64
    idle: float = 300.0


class SessionEntry:
    """A session in the table.

    Attributes:
        name: its name in messages.
        slot: the place of its states.
        is_new: whether no call has replaced its states yet: they have their initial values.
        reason: why it was closed, as the end of a sentence; None while it is open.
        calls: the calls that wait.
        running: the call that is in a batch.
        steps: the number of calls that took effect.
        idle: seconds without a call after which it is closed.
        since: the time when its last call ended.
        watchers: functions to call when it is closed; the owner of the table calls them.
    """

    __slots__ = ("calls", "idle", "is_new", "name", "reason", "running", "since", "slot", "steps", "watchers")

    def __init__(self, name: Hashable, slot: int, idle: float, now: float) -> None:
        self.name, self.slot, self.idle, self.since = name, slot, idle, now
        self.is_new = True
        self.reason: str | None = None
        self.calls: deque[Call] = deque()
        self.running: Call | None = None
        self.steps = 0
        self.watchers: list[Callable[[], object]] = []

    def closed(self) -> SessionClosed:
        """Return the error of a call after the end of the session."""
        return SessionClosed(f"session {self.name!r} {self.reason}: open a new session")


class Call:
    """A call of a session.

    Args:
        session: the session.
        arrays: one row for each input, with the batch axis.
        shapes: the shape of a row of each input; the calls of a batch have equal shapes.
        arrival: the time of arrival.
        answer: handle for delivering the result; opaque here.
        group: calls of a session with equal groups fail together; None for a single call.
        trace: the trace that it belongs to, if any; opaque here.
    """

    __slots__ = ("answer", "arrays", "arrival", "group", "nbytes", "session", "shapes", "status", "trace")

    def __init__(
        self, session: SessionEntry, arrays: Sequence[Array], shapes: tuple[Shape, ...], arrival: float,
        answer: Any = None, group: object = None, trace: Any = None,
    ) -> None:  # fmt: skip
        self.session, self.arrays, self.shapes, self.arrival = session, arrays, shapes, arrival
        self.answer, self.group, self.trace = answer, group, trace
        self.nbytes = arrays[0].nbytes if len(arrays) == 1 else sum(array.nbytes for array in arrays)
        self.status = _WAITING

    @property
    def row_count(self) -> int:
        """The number of its rows in a batch."""
        return 1


class SessionTable:
    """The sessions of a model.

    Args:
        row_bytes: the size of the states of a session in bytes.
        limits: the limits.

    Attributes:
        slots: the number of slots that the states need; all slots in use are below it.
        nbytes: the size of the states and the waiting inputs in bytes.
        waiting: the number of calls that wait.
        running: the number of calls in batches.
    """

    def __init__(self, row_bytes: int, limits: SessionLimits) -> None:
        self.row_bytes, self.limits = row_bytes, limits
        self.slots = self.nbytes = self.waiting = self.running = 0
        self._sessions: dict[Hashable, SessionEntry] = {}
        self._closing: dict[SessionEntry, None] = {}
        self._ready: dict[tuple[Shape, ...], dict[SessionEntry, None]] = {}
        self._free: list[int] = []
        self._expiries: list[tuple[float, int, SessionEntry]] = []
        self._numbers = count(1)
        """The names of sessions without a given name."""
        self._order = count()

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[SessionEntry]:
        return iter(list(self._sessions.values()))

    def find(self, name: Hashable) -> SessionEntry | None:
        """Return the open session of a name, or None."""
        return self._sessions.get(name)

    # -- sessions --------------------------------------------------------------------------------------

    def open(self, now: float, name: Hashable = None, idle: float | None = None) -> SessionEntry:
        """Open a session.

        Args:
            now: the current time.
            name: its name (default: a number).
            idle: seconds without a call after which it is closed (default: that of the limits).

        Raises:
            Overloaded: the limits on sessions or bytes are reached.
            ValueError: an open session has the same name.
        """
        if name is not None and name in self._sessions:
            raise ValueError(f"session {name!r} is already open: close it first, or choose another name")
        limits, size = self.limits, len(self._sessions) + len(self._closing)
        if size >= limits.sessions:
            raise self._overloaded(f"{size} sessions are open, at most {limits.sessions} may be", now)
        if self.nbytes + self.row_bytes > limits.nbytes:
            raise self._overloaded(
                f"the states and inputs of {size} sessions have {self.nbytes} bytes, at most {limits.nbytes} may be "
                "used", now,
            )  # fmt: skip
        while name is None or name in self._sessions:
            name = next(self._numbers)
        entry = SessionEntry(name, self._new_slot(), limits.idle if idle is None else idle, now)
        self._sessions[name] = entry
        self.nbytes += self.row_bytes
        self._push_expiry(now + entry.idle, entry)
        return entry

    def close(self, session: SessionEntry, reason: str = "is closed") -> list[Call]:
        """Close a session; return its unfinished calls, which have no effect.

        Its slot is free at once, or when the batch of its running call ends. Nothing happens if it is closed already.
        """
        if session.reason is not None:
            return []
        session.reason = reason
        del self._sessions[session.name]
        calls = list(session.calls)
        for call in calls:
            self.drop(call)
        if session.running is None:
            self._release(session)
            return calls
        self._closing[session] = None
        if session.running.status == _RUNNING:
            session.running.status = _OVER
            calls.insert(0, session.running)
        return calls

    def expire(self, now: float) -> list[SessionEntry]:
        """Close the sessions that have had no call for too long, and return them."""
        expired = []
        while self._expiries and self._expiries[0][0] <= now:
            _, _, session = heappop(self._expiries)
            if session.reason is not None:
                continue
            is_busy = session.running is not None or session.calls
            end = (now if is_busy else session.since) + session.idle
            if end > now:
                self._push_expiry(end, session)
            else:
                self.close(session, f"was closed after {session.idle:g} s without a call")
                expired.append(session)
        self._forget_closed()
        return expired

    def next_expiry(self) -> float | None:
        """Return the time at which :meth:`expire` has to be called next, at the earliest; None if never."""
        return self._expiries[0][0] if self._expiries else None

    def _push_expiry(self, time: float, session: SessionEntry) -> None:
        heappush(self._expiries, (time, next(self._order), session))

    def _forget_closed(self) -> None:
        """Remove the entries of closed sessions if they are most of the heap, so that it stays small."""
        if len(self._expiries) > 2 * len(self._sessions) + 64:
            self._expiries = [entry for entry in self._expiries if entry[2].reason is None]
            heapify(self._expiries)

    def _overloaded(self, text: str, now: float) -> Overloaded:
        soonest = self.next_expiry()
        return Overloaded(
            f"{text}: close sessions, or try again later",
            min(max(_RETRY, (soonest or now + 1.0) - now), _LONGEST_RETRY),
        )

    def _new_slot(self) -> int:
        if self._free:
            return heappop(self._free)
        self.slots += 1
        return self.slots - 1

    def _release(self, session: SessionEntry) -> None:
        self.nbytes -= self.row_bytes
        heappush(self._free, session.slot)
        self._forget_closed()

    def compact(self) -> list[tuple[int, int]]:
        """Move sessions to the lowest slots; return the moves (from, to) of their states, to make in this order.

        No batch may be running.
        """
        used = sorted(self._sessions.values(), key=_slot_of)
        moves = []
        free = sorted(set(range(len(used))) - {session.slot for session in used})
        for session, slot in zip([each for each in used if each.slot >= len(used)], free, strict=True):
            moves.append((session.slot, slot))
            session.slot = slot
        self._free, self.slots = [], len(used)
        return moves

    # -- calls -----------------------------------------------------------------------------------------

    def put(self, call: Call, now: float) -> int:
        """Queue a call.

        Returns:
            the number of ready sessions with calls of the same shapes, if its session is one of them now, else 0.

        Raises:
            SessionClosed: the session is closed.
            Overloaded: the session has too many unfinished calls, or the limit on bytes is reached.
        """
        session, limits = call.session, self.limits
        if session.reason is not None:
            raise session.closed()
        if len(session.calls) + (session.running is not None) >= limits.calls:
            raise Overloaded(
                f"session {session.name!r} has {limits.calls} unfinished calls, the maximum: await their results first",
                _RETRY,
            )
        if self.nbytes + call.nbytes > limits.nbytes:
            raise self._overloaded(
                f"session {session.name!r}: the states and inputs of all sessions have {self.nbytes} bytes, at most "
                f"{limits.nbytes} may be used", now,
            )  # fmt: skip
        self.nbytes += call.nbytes
        self.waiting += 1
        session.calls.append(call)
        if session.running is not None or len(session.calls) > 1:
            return 0
        return self._make_ready(session)

    def drop(self, call: Call) -> bool:
        """Remove a call that is not committed, so that it has no effect; return whether it was not committed."""
        if call.status == _WAITING:
            session = call.session
            was_first = session.calls[0] is call
            if was_first and session.running is None:
                self._unmake_ready(session)
            session.calls.remove(call)
            if was_first and session.running is None and session.calls:
                self._make_ready(session)
            self.nbytes -= call.nbytes
            self.waiting -= 1
        elif call.status != _RUNNING:
            return False
        call.status = _OVER
        return True

    def oldest(self) -> Call | None:
        """Return the call that has waited for longest among the first of each shape; None if no session is ready."""
        heads = (next(iter(sessions)).calls[0] for sessions in self._ready.values())
        return min(heads, key=_arrival_of, default=None)

    def longest_waiting(self, limit: int) -> list[tuple[SessionEntry, float]]:
        """Return the ready sessions that have waited for longest, and the arrival of their first call.

        Any thread may call this, also without the owner's lock: the result is approximate while the table changes.
        """
        heads = [
            (session, session.calls[0].arrival)
            for sessions in list(self._ready.values())
            for session in list(sessions)[:limit]
            if session.calls
        ]
        return sorted(heads, key=lambda head: head[1])[:limit]

    def ready(self, shapes: tuple[Shape, ...]) -> int:
        """Return the number of sessions whose next call has these shapes and may run."""
        return len(self._ready.get(shapes, ()))

    def take(self, shapes: tuple[Shape, ...], limit: int) -> list[Call]:
        """Form a batch: remove and return the first calls of at most ``limit`` ready sessions."""
        calls = []
        sessions = self._ready.get(shapes, {})
        for session in list(islice(sessions, limit)):
            del sessions[session]
            call = session.calls.popleft()
            call.status = _RUNNING
            session.running = call
            calls.append(call)
        if not sessions:
            self._ready.pop(shapes, None)
        self.waiting -= len(calls)
        self.running += len(calls)
        return calls

    def commit(self, calls: Sequence[Call]) -> list[int]:
        """Return the positions of the calls of a batch that take effect: their states are replaced now."""
        positions = []
        for position, call in enumerate(calls):
            if call.status == _RUNNING:
                call.status = _COMMITTED
                positions.append(position)
        return positions

    def finish(self, calls: Sequence[Call], now: float) -> None:
        """End the calls of a batch, whose states have been replaced if they were committed."""
        for call in calls:
            session = call.session
            if call.status == _COMMITTED:
                session.steps += 1
                session.is_new = False
            call.status = _OVER
            session.running = None
            session.since = now
            self.nbytes -= call.nbytes
            if session.reason is not None:
                del self._closing[session]
                self._release(session)
            elif session.calls:
                self._make_ready(session)
        self.running -= len(calls)

    def fail(self, calls: Sequence[Call], now: float) -> list[Call]:
        """End the calls of a batch that failed, without an effect, and drop the waiting calls of their groups.

        Returns:
            the calls that get the error of the batch.
        """
        failed = []
        for call in calls:
            if call.status in (_RUNNING, _COMMITTED):
                failed.append(call)
                group = [] if call.group is None else [each for each in call.session.calls if each.group is call.group]
                for other in group:
                    self.drop(other)
                failed += group
            call.status = _OVER
        self.finish(calls, now)
        return failed

    def _make_ready(self, session: SessionEntry) -> int:
        """Add a session to the ready ones; return the number of those with equal shapes."""
        shapes = session.calls[0].shapes
        sessions = self._ready.get(shapes)
        if sessions is None:
            sessions = self._ready[shapes] = {}
        sessions[session] = None
        return len(sessions)

    def _unmake_ready(self, session: SessionEntry) -> None:
        shapes = session.calls[0].shapes
        del self._ready[shapes][session]
        if not self._ready[shapes]:
            del self._ready[shapes]


def _slot_of(session: SessionEntry) -> int:
    return session.slot


def _arrival_of(call: Call) -> float:
    return call.arrival
