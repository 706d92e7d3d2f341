"""The profile in Chrome's trace-event format, for https://ui.perfetto.dev. This module does no I/O.

An actor has one track per thread that ran its operations. Activities that may overlap on one thread (coroutines,
requests) are spread over several tracks, *lanes*. Arrows lead from an operation to those that read its results.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from flowmx.profiler.names import LineCache, of_node
from flowmx.profiler.records import Change, Mark, Record, Span

__all__ = ["document"]

Event = dict[str, Any]


def document(
    records: Collection[Record], spans: Iterable[Span], marks: Iterable[Mark], changes: Iterable[Change], process: int,
    about: str = "flowmx",
) -> dict[str, object]:  # fmt: skip
    """Return the content of the trace file.

    Args:
        records: the recorded operations.
        spans: other timed activities.
        marks: instants marked by the user.
        changes: the values of counters.
        process: the process id.
        about: name of the process.
    """
    trace = _Trace(process)
    trace.add_operations(records)
    trace.add_spans(spans)
    for mark in marks:
        trace.add(name=mark.name, cat=mark.category, ph="i", ts=mark.at, s=mark.scope, tid=trace.track(mark.thread))
    for change in changes:
        trace.add(name=change.name, cat=change.category, ph="C", ts=change.at, tid=0, args={"value": change.value})
    return {"traceEvents": [*trace.metadata(about), *trace.events], "displayTimeUnit": "ms"}


_EVENTS_PER_CALL = 500
"""Events that are serialized in one call, which holds the GIL."""


def text(trace: dict[str, Any]) -> bytes:
    """Return the trace as JSON, in chunks so that other threads can run."""
    events = trace["traceEvents"]
    groups = [
        json.dumps(events[start : start + _EVENTS_PER_CALL])[1:-1] for start in range(0, len(events), _EVENTS_PER_CALL)
    ]
    rest = json.dumps({**{key: value for key, value in trace.items() if key != "traceEvents"}, "traceEvents": []})
    return f"{rest.removesuffix(']}')}{', '.join(groups)}]}}".encode()


class _Trace:
    def __init__(self, process: int) -> None:
        self.events: list[Event] = []
        self._process = process
        self._tracks: dict[str, int] = {}
        self._line = LineCache()

    def track(self, name: str) -> int:
        """Return the number of a track."""
        return self._tracks.setdefault(name, len(self._tracks) + 1)

    def add(self, **event: Any) -> None:
        """Add an event; its times are in seconds."""
        for key in ("ts", "dur"):
            if key in event:
                event[key] = round(event[key] * 1e6, 3)
        self.events.append({"pid": self._process, **event})

    def metadata(self, about: str) -> list[Event]:
        """Return the events that name the process and its tracks."""
        names = [("process_name", 0, about), *(("thread_name", tid, name) for name, tid in self._tracks.items())]
        return [
            {"name": kind, "ph": "M", "pid": self._process, "tid": tid, "args": {"name": name}}
            for kind, tid, name in names
        ]

    def add_operations(self, records: Collection[Record]) -> None:
        """Add operations, their steps, and the arrows between them."""
        free = [record for record in records if not record.thread]
        lanes = dict(zip(map(id, free), _lanes([(record.start, record.end) for record in free]), strict=True))
        places: dict[int, tuple[int, Record]] = {}
        for record in records:
            thread = record.thread or f"#{lanes[id(record)] + 1}"
            tid = self.track(f"{record.actor} · {thread}")
            places[record.id] = (tid, record)
            self._add_operation(record, tid)
        for tid, record in list(places.values()):
            for number in record.after:
                if number in places and number != record.id:
                    self._add_arrow(*places[number], tid, record)

    def _add_operation(self, record: Record, tid: int) -> None:
        layer = record.origin[2] if record.origin is not None else None
        facts = {
            "actor": record.actor, "layer": layer, "line": self._line(record.origin), "scope": record.scope,
            "waited_us": round(max(0.0, record.start - record.pushed) * 1e6, 3),
        }  # fmt: skip
        self._add_slice(record.name, "operation", tid, record.start, record.end, facts)
        for step in record.steps:
            operator, layer, node, place = of_node(step.node)
            facts = {"actor": record.actor, "layer": layer, "node": node, "line": place}
            self._add_slice(operator, "operator", tid, step.start, step.end, facts)

    def _add_slice(
        self, name: str, category: str, tid: int, start: float, end: float, facts: Mapping[str, object]
    ) -> None:
        facts = {key: value for key, value in facts.items() if value not in (None, "")}
        self.add(name=name, cat=category, ph="X", ts=start, dur=end - start, tid=tid, args=facts)

    def _add_arrow(self, from_tid: int, earlier: Record, to_tid: int, later: Record) -> None:
        number = earlier.id << 32 | later.id & 0xFFFFFFFF
        common = {"name": "dependency", "cat": "dependency", "id": f"{number:x}"}
        leaves = earlier.end - min(1e-7, (earlier.end - earlier.start) / 2)  # must lie inside the slice to bind to it
        self.add(**common, ph="s", ts=leaves, tid=from_tid)
        self.add(**common, ph="f", bp="e", ts=max(later.start, leaves), tid=to_tid)

    def add_spans(self, spans: Iterable[Span]) -> None:
        """Add activities that are not operations, by track."""
        tracks: dict[str, list[Span]] = {}
        for span in spans:
            tracks.setdefault(span.track, []).append(span)
        for name, members in tracks.items():
            for span, lane in zip(members, _lanes([(span.start, span.end) for span in members]), strict=True):
                tid = self.track(f"{name} #{lane + 1}" if lane else name)
                self._add_slice(span.name, span.category, tid, span.start, span.end, span.facts)


def _lanes(times: Sequence[tuple[float, float]]) -> list[int]:
    """Return the first free lane of each interval."""
    result = [0] * len(times)
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    lanes = 0
    for index in sorted(range(len(times)), key=times.__getitem__):
        start, end = times[index]
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, lanes = lanes, lanes + 1
        result[index] = lane
        heapq.heappush(busy, (end, lane))
    return result
