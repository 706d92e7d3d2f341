"""Converts readings of a process into frames for viewers: series, rates and tables. This module does no I/O.

:class:`~flowmx.observability.dashboard.reader.Reader` takes the readings. The memory of a :class:`Sampler` is bounded.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flowmx.observability.dashboard.process_state import Reading
from flowmx.observability.dashboard.tables import (
    generator_rows,
    generators,
    nodes,
    peers,
    quantile,
    service_rows,
    services,
)
from flowmx.observability.dashboard.timeline import Bar, Lanes, busy, limit_bars

__all__ = ["CAPACITY", "Frame", "Sampler"]

CAPACITY = 600
"""Number of samples in memory: five minutes at two per second."""
_MAX_BARS = 2048
"""Number of timeline bars in memory: half a minute of one busy actor."""
_GAP = 5.0
"""Seconds without a reading after which rates are not computed."""
_RECENT = 10.0
"""Seconds over which a service's latency is measured."""


class Frame(NamedTuple):
    """An update for viewers: ``seq`` is its number; ``content`` is JSON-compatible."""

    seq: int
    content: dict[str, Any]


class Sampler:
    """Time series of a process, computed from its readings.

    Args:
        capacity: number of samples in memory.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.seq = 0
        self._points: deque[tuple[float, dict[str, float]]] = deque(maxlen=capacity)
        self._bars: deque[Bar] = deque(maxlen=_MAX_BARS)
        self._lanes = Lanes()
        self._last: Reading | None = None
        self._peaks: dict[str, int] = {}
        self._sent: dict[str, tuple[int, int]] = {}
        self._latencies: dict[str, deque[tuple[float, list[int]]]] = {}
        self._now: dict[str, Any] = {}

    def add(self, reading: Reading) -> Frame:
        """Add a reading; return the frame with the changes."""
        last = self._last
        seconds = reading.at - last.at if last is not None else 0.0
        previous = last if last is not None and 0 < seconds <= _GAP else None
        bars = limit_bars(self._lanes.place(reading.ended))
        values = self._values(reading, previous, seconds)
        self._now = _finite(self._tables(reading, values))
        self._bars.extend(bars)
        self._points.append((reading.at, values))
        self._last = reading
        self.seq += 1
        return Frame(self.seq, {
            "seq": self.seq, "at": round(reading.at, 3), "values": values, "bars": [_bar_fields(bar) for bar in bars],
            "curves": _finite(self._new_points(reading)), "now": self._now,
        })  # fmt: skip

    def whole(self) -> Frame:
        """Return the frame with the whole state, for a viewer that missed frames."""
        names = dict.fromkeys(name for _, values in self._points for name in values)
        curves = {} if self._last is None else self._last.curves
        return Frame(self.seq, {
            "seq": self.seq, "whole": True, "times": [round(at, 3) for at, _ in self._points],
            "series": {name: [values.get(name) for _, values in self._points] for name in names},
            "bars": [_bar_fields(bar) for bar in self._bars],
            "curves": _finite({name: _curve(curve, 0) for name, curve in curves.items()}), "now": self._now,
        })  # fmt: skip

    # -- series ----------------------------------------------------------------------------------------

    def _values(self, reading: Reading, previous: Reading | None, seconds: float) -> dict[str, float]:
        values: dict[str, float] = {
            "pending": reading.pending, "lag": reading.lag, "resident": reading.resident,
            **{f"queued.{actor}": count for actor, count in reading.queued.items()},
            **{f"memory.{device}": used for device, (used, _) in reading.memory.items()},
        }  # fmt: skip
        if previous is not None:
            values |= _rates(reading, previous, seconds)
            values |= _busy(reading, previous)
        for model, report in services(reading).items():
            values |= self._service(model, report, reading, previous, seconds)
        for model, report in generators(reading).items():
            values |= self._generator(model, report, reading, previous, seconds)
        return {name: _rounded(value) for name, value in values.items() if math.isfinite(value)}

    def _service(
        self, model: str, report: Mapping[str, Any], reading: Reading, previous: Reading | None, seconds: float
    ) -> dict[str, float]:
        earlier = None if previous is None else services(previous).get(model)
        values = {f"served.{model}.queued": float(report["queued"])}
        if "sessions" in report:
            values[f"served.{model}.sessions"] = float(report["sessions"]["open"])
        p99 = self._recent_p99(f"served.{model}", report["latency"], reading.at)
        if p99 is not None:
            values[f"served.{model}.p99"] = p99
        if earlier is not None:
            values[f"served.{model}.rate"] = (
                report["requests"]["answered"] - earlier["requests"]["answered"]
            ) / seconds  # fmt: skip
        return values

    def _generator(
        self, model: str, report: Mapping[str, Any], reading: Reading, previous: Reading | None, seconds: float
    ) -> dict[str, float]:
        earlier = None if previous is None else generators(previous).get(model)
        values = {
            f"generated.{model}.waiting": float(report["waiting"]),
            f"generated.{model}.cache": report["pages"] / report["page_count"],
        }
        first = self._recent_p99(f"generated.{model}", report["first_token"], reading.at)
        if first is not None:
            values[f"generated.{model}.first"] = first
        if earlier is not None:
            values[f"generated.{model}.rate"] = (report["tokens"] - earlier["tokens"]) / seconds
            values[f"generated.{model}.prompts"] = (report["prompt_tokens"] - earlier["prompt_tokens"]) / seconds
        return values

    def _recent_p99(self, name: str, histogram: Mapping[str, Any], at: float) -> float | None:
        """Return the 99th percentile of the values that a histogram got recently; None without such values."""
        counts = list(histogram["counts"])
        history = self._latencies.setdefault(name, deque())
        history.append((at, counts))
        while len(history) > 1 and at - history[0][0] > _RECENT:
            history.popleft()
        new = [a - b for a, b in zip(counts, history[0][1] or [0] * len(counts), strict=False)]
        return quantile(histogram["bounds"], new, 0.99) if any(new) else None

    # -- tables ----------------------------------------------------------------------------------------

    def _tables(self, reading: Reading, values: Mapping[str, float]) -> dict[str, object]:
        return {
            **reading.about, "pending": reading.pending, "pending_bytes": reading.pending_bytes,
            "steps": reading.steps, "samples": reading.samples,
            "actors": self._actors(reading, values), "memory": self._memory(reading),
            "peers": peers(reading), "nodes": nodes(reading), "services": service_rows(reading, values),
            "generators": generator_rows(reading, values),
            "curves": {name: curve[2] for name, curve in reading.curves.items()},
        }  # fmt: skip

    def _actors(self, reading: Reading, values: Mapping[str, float]) -> list[dict[str, object]]:
        running = {actor: {"name": name, "began": round(began, 4)} for actor, name, began in reversed(reading.running)}
        return [
            {
                "name": actor, "busy": values.get(f"busy.{actor}"), "queued": reading.queued.get(actor, 0),
                "executed": executed, "rate": values.get(f"executed.{actor}"),
                "launches": actor in reading.launches, "running": running.get(actor),
            }
            for actor, executed in sorted(reading.executed.items())
        ]  # fmt: skip

    def _memory(self, reading: Reading) -> list[dict[str, object]]:
        for device, (used, _) in reading.memory.items():
            self._peaks[device] = max(self._peaks.get(device, 0), used)
        return [
            {"device": device, "used": used, "total": total, "peak": self._peaks[device]}
            for device, (used, total) in reading.memory.items()
        ]

    def _new_points(self, reading: Reading) -> dict[str, Any]:
        """Return the points of curves that were not sent yet."""
        new = {}
        for name, curve in reading.curves.items():
            generation, points, _ = curve
            sent, count = self._sent.get(name, (-1, 0))
            if generation != sent:
                count = 0
            if count < len(points) or generation != sent:
                new[name] = _curve(curve, count)
            self._sent[name] = (generation, len(points))
        return new


def _rates(reading: Reading, previous: Reading, seconds: float) -> dict[str, float]:
    executed = {actor: (count - previous.executed.get(actor, 0)) / seconds for actor, count in reading.executed.items()}
    values = {f"executed.{actor}": max(rate, 0.0) for actor, rate in executed.items()}
    values["operations"] = sum(values.values())
    values["steps"] = max(reading.steps - previous.steps, 0) / seconds
    values["samples"] = max(reading.samples - previous.samples, 0) / seconds
    if reading.exchanges or "kvstore" in reading.reports:
        values["traffic"] = sum(nbytes for _, nbytes, _ in reading.exchanges) / seconds
    return values


def _busy(reading: Reading, previous: Reading) -> dict[str, float]:
    spans: dict[str, list[tuple[float, float]]] = {actor: [] for actor in reading.executed}
    for op in reading.ended:
        spans.setdefault(op.actor, []).append(op.span)
    for actor, _, began in reading.running:
        spans.setdefault(actor, []).append((began, reading.at))
    return {f"busy.{actor}": busy(intervals, previous.at, reading.at) for actor, intervals in spans.items()}


# -- for JSON ------------------------------------------------------------------------------------------------


def _bar_fields(bar: Bar) -> list[Any]:
    began, ended = round(bar.began, 5), round(bar.ended, 5)
    return [bar.actor, bar.lane, bar.name, began, ended, bar.about, int(bar.failed), bar.number]


def _curve(curve: tuple[int, Sequence[tuple[float, float]], float], begin: int) -> dict[str, Any]:
    _, points, last = curve
    return {"from": begin, "points": [[step, value] for step, value in points[begin:]], "last": last}


def _rounded(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.6g}")


def _finite(value: object) -> Any:
    """Return the value with NaN and infinities, which JSON lacks, as strings."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
