"""The recorder of operations. It has no overhead while it is off."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping
from contextvars import ContextVar

from flowmx import devices
from flowmx.engine import Operation, origin
from flowmx.engine.runtime import engine
from flowmx.observability import flight
from flowmx.ops.control import custom
from flowmx.profiler.records import CUSTOM, Change, Mark, Record, Span, local
from flowmx.profiler.timing import time_operation
from flowmx.scopes import Value

__all__ = ["MAX_RECORDS", "Recorder", "recorder", "scope_name"]

MAX_RECORDS = 1_000_000
"""Maximum number of records; older ones are dropped."""

_MEMORY_INTERVAL = 1e-3
"""Minimum seconds between samples of the memory in use."""

scope_name: ContextVar[Value[str]] = ContextVar("flowmx_profiler_scope", default=Value(""))  # noqa: B039


class Recorder:
    """The profiler's records, and its state.

    Attributes:
        records, spans, marks, changes: the records.
        running: whether the recorder is on.
        symbolic, imperative, memory: whether to record graphs, other operations, the memory in use.
    """

    def __init__(self) -> None:
        self.symbolic = self.imperative = self.memory = True
        self.running = False
        self._ids = itertools.count(1)
        self._last_memory_sample = 0.0
        self.clear()

    def clear(self) -> None:
        """Discard all records."""
        self.records: deque[Record] = deque(maxlen=MAX_RECORDS)
        self.spans: deque[Span] = deque(maxlen=MAX_RECORDS)
        self.marks: deque[Mark] = deque(maxlen=MAX_RECORDS)
        self.changes: deque[Change] = deque(maxlen=MAX_RECORDS)

    def start(self) -> None:
        """Start recording operations that are pushed."""
        if not self.running:
            self.running = True
            origin.layer_name_users += 1
            engine.use_watch(self._watch, "times")
            flight.messages.listeners.append(self._record_request)
            custom.on_call = self._record_call

    def stop(self) -> None:
        """Stop recording."""
        if self.running:
            self.running = False
            origin.layer_name_users -= 1
            engine.use_watch(None, "times")
            flight.messages.listeners.remove(self._record_request)
            custom.on_call = None

    # -- operations ------------------------------------------------------------------------------------

    def _watch(self, op: Operation) -> None:
        """Time an operation that is about to be pushed."""
        operator = custom.current_operator.get()
        record = Record(next(self._ids), op.name, op.actor.name, op.origin, scope_name.get().value, operator)
        if op.reads:
            record.after = tuple({variable.recorded for variable in op.reads if variable.recorded})
        for variable in op.writes:
            variable.recorded = record.id
        time_operation(op, record, self._end)

    def _end(self, record: Record) -> None:
        if self.symbolic if record.steps else self.imperative:
            self.records.append(record)
        if self.memory and record.end - self._last_memory_sample > _MEMORY_INTERVAL:
            self._sample_memory(record.end)

    def _sample_memory(self, now: float) -> None:
        self._last_memory_sample = now
        for name, nbytes in devices.memory_in_use().items():
            self.changes.append(Change(f"memory of {name}", "memory", now, nbytes))

    # -- other spans -----------------------------------------------------------------------------------

    def _record_call(self, name: str, start: float, end: float) -> None:
        """Record a call of a method of a custom operator."""
        track = f"{CUSTOM} · {local.thread}"
        self.spans.append(Span(f"{name}::pure_python", CUSTOM, track, start, end, {}))

    def _record_request(self, peer: str, operation: str, start: float, end: float, facts: Mapping[str, object]) -> None:
        """Record an answered request to a server."""
        self.spans.append(Span(operation, "kvstore", f"kvstore {peer}", start, end, {"peer": peer, **facts}))


recorder = Recorder()
