"""The recorder: notes when each operation ran that is pushed while it is on. While it is off, nothing is asked."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from flowmx import devices
from flowmx.engine import Operation, origin
from flowmx.engine.runtime import engine
from flowmx.observability import flight
from flowmx.ops.control import custom
from flowmx.profiler.records import CUSTOM, Change, Mark, Record, Span, local
from flowmx.profiler.timing import time_operation

__all__ = ["MOST", "Recorder", "recorder", "scope_name"]

MOST = 1_000_000
"""Operations that are kept: of a longer run the last ones."""

_MEMORY_EVERY = 1e-3
"""Seconds between looks at the memory in use."""

scope_name: ContextVar[str] = ContextVar("flowmx_profiler_scope", default="")


class Recorder:
    """The profiler's records, and its state.

    Attributes:
        records, spans, marks, changes: what was recorded.
        running: whether operations are recorded now.
        symbolic, imperative, memory: what is kept: graphs, other operations, the memory in use.
    """

    def __init__(self) -> None:
        self.symbolic = self.imperative = self.memory = True
        self.running = False
        self._ids = itertools.count(1)
        self._looked = 0.0
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self.records: deque[Record] = deque(maxlen=MOST)
        self.spans: deque[Span] = deque(maxlen=MOST)
        self.marks: deque[Mark] = deque(maxlen=MOST)
        self.changes: deque[Change] = deque(maxlen=MOST)

    def start(self) -> None:
        """Record what is pushed from now on."""
        if not self.running:
            self.running = True
            origin.names_layers += 1
            engine.use_watch(self._watch, "times")
            flight.messages.listeners.append(self._exchanged)
            custom.when_called = self._called

    def stop(self) -> None:
        """Record no more."""
        if self.running:
            self.running = False
            origin.names_layers -= 1
            engine.use_watch(None, "times")
            flight.messages.listeners.remove(self._exchanged)
            custom.when_called = None

    # -- operations ------------------------------------------------------------------------------------

    def _watch(self, op: Operation) -> None:
        """Let an operation that is about to be pushed be timed when it runs, wherever that is."""
        within = custom.inside.get()
        record = Record(next(self._ids), op.name, op.actor.name, op.origin, scope_name.get(), within)
        if op.reads:
            record.after = tuple({variable.recorded for variable in op.reads if variable.recorded})
        for variable in op.writes:
            variable.recorded = record.id
        time_operation(op, record, self._end)

    def _end(self, record: Record) -> None:
        if self.symbolic if record.steps else self.imperative:
            self.records.append(record)
        if self.memory and record.end - self._looked > _MEMORY_EVERY:
            self._look_at_memory(record.end)

    def _look_at_memory(self, now: float) -> None:
        self._looked = now
        for name, nbytes in devices.memory_in_use().items():
            self.changes.append(Change(f"memory of {name}", "memory", now, nbytes))

    # -- what else there is ----------------------------------------------------------------------------

    def _called(self, name: str, start: float, end: float) -> None:
        """A method of a user's operator has run."""
        track = f"{CUSTOM} · {local.thread}"
        self.spans.append(Span(f"{name}::pure_python", CUSTOM, track, start, end, {}))

    def _exchanged(self, peer: str, operation: str, start: float, end: float, facts: Mapping[str, Any]) -> None:
        """A request to a server was answered."""
        self.spans.append(Span(operation, "kvstore", f"kvstore {peer}", start, end, {"peer": peer, **facts}))


recorder = Recorder()
