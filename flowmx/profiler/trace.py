"""The trace, in Chrome's trace-event format, which https://ui.perfetto.dev opens. Pure.

Each actor has a track for each thread that ran its operations. What may overlap on one thread (coroutines, requests)
has as many tracks, *lanes*, as were needed at one time. An arrow goes from an operation to each that reads its results.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from flowmx.profiler.names import Lines, of_node
from flowmx.profiler.records import Change, Mark, Record, Span

__all__ = ["document"]

Event = dict[str, Any]


def document(
    records: Collection[Record], spans: Iterable[Span], marks: Iterable[Mark], changes: Iterable[Change], process: int,
    about: str = "flowmx",
) -> dict[str, Any]:  # fmt: skip
    """The whole file.

    Args:
        records: the operations that were recorded.
        spans: what else took time.
        marks: what the user marked.
        changes: the values of counters.
        process: the number of the process.
        about: what the process is called.
    """
    made = _Trace(process)
    made.add_operations(records)
    made.add_spans(spans)
    for mark in marks:
        made.add(name=mark.name, cat=mark.category, ph="i", ts=mark.at, s=mark.reach, tid=made.track(mark.thread))
    for change in changes:
        made.add(name=change.name, cat=change.category, ph="C", ts=change.at, tid=0, args={"value": change.value})
    return {"traceEvents": [*made.metadata(about), *made.events], "displayTimeUnit": "ms"}


class _Trace:
    def __init__(self, process: int) -> None:
        self.events: list[Event] = []
        self._process = process
        self._tracks: dict[str, int] = {}
        self._line = Lines()

    def track(self, name: str) -> int:
        """The number of a track."""
        return self._tracks.setdefault(name, len(self._tracks) + 1)

    def add(self, **event: Any) -> None:
        """Add an event; its times are in seconds."""
        for key in ("ts", "dur"):
            if key in event:
                event[key] = round(event[key] * 1e6, 3)
        self.events.append({"pid": self._process, **event})

    def metadata(self, about: str) -> list[Event]:
        """The names of the process and of its tracks."""
        names = [("process_name", 0, about), *(("thread_name", tid, name) for name, tid in self._tracks.items())]
        return [
            {"name": kind, "ph": "M", "pid": self._process, "tid": tid, "args": {"name": name}}
            for kind, tid, name in names
        ]

    def add_operations(self, records: Collection[Record]) -> None:
        """Operations, their steps, and arrows between them."""
        free = [record for record in records if not record.thread]
        lanes = dict(zip(map(id, free), _lanes([(each.start, each.end) for each in free]), strict=True))
        places: dict[int, tuple[int, Record]] = {}
        for record in records:
            where = record.thread or f"#{lanes[id(record)] + 1}"
            tid = self.track(f"{record.actor} · {where}")
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

    def _add_slice(self, name: str, category: str, tid: int, start: float, end: float, facts: dict[str, Any]) -> None:
        facts = {key: value for key, value in facts.items() if value not in (None, "")}
        self.add(name=name, cat=category, ph="X", ts=start, dur=end - start, tid=tid, args=facts)

    def _add_arrow(self, from_tid: int, earlier: Record, to_tid: int, later: Record) -> None:
        number = earlier.id << 32 | later.id & 0xFFFFFFFF
        common = {"name": "dependency", "cat": "dependency", "id": f"{number:x}"}
        leaves = earlier.end - min(1e-7, (earlier.end - earlier.start) / 2)  # inside of it: that is what it binds to
        self.add(**common, ph="s", ts=leaves, tid=from_tid)
        self.add(**common, ph="f", bp="e", ts=max(later.start, leaves), tid=to_tid)

    def add_spans(self, spans: Iterable[Span]) -> None:
        """Add spans that are not operations, by track."""
        tracks: dict[str, list[Span]] = {}
        for span in spans:
            tracks.setdefault(span.track, []).append(span)
        for name, found in tracks.items():
            for span, lane in zip(found, _lanes([(each.start, each.end) for each in found]), strict=True):
                tid = self.track(f"{name} #{lane + 1}" if lane else name)
                self._add_slice(span.name, span.category, tid, span.start, span.end, span.facts)


def _lanes(times: Sequence[tuple[float, float]]) -> list[int]:
    """For each span of time the first lane that is free then."""
    found = [0] * len(times)
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
        found[index] = lane
        heapq.heappush(busy, (end, lane))
    return found
