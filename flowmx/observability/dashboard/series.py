"""From readings of a process to what is shown: series, rates, tables, and what is new since the last time. Pure.

A reading is what :class:`~flowmx.observability.dashboard.reader.Reader` takes; times come with it. What is
kept has a fixed size.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flowmx.observability.dashboard.sample import Reading
from flowmx.observability.dashboard.tables import nodes, peers, quantile, service_rows, services
from flowmx.observability.dashboard.timeline import Bar, Lanes, busy, gathered

__all__ = ["CAPACITY", "Frame", "Sampler"]

CAPACITY = 600
"""Samples that are kept: five minutes of two each second."""
_BARS = 2048
"""Bars that are kept: half a minute of one actor that is always busy."""
_GAP = 5.0
"""Seconds without a reading after which there are no rates: nobody looked meanwhile."""
_RECENT = 10.0
"""Seconds over which a service's latency is measured."""


class Frame(NamedTuple):
    """An update for viewers: ``seq`` is its number; ``content`` is JSON-compatible."""

    seq: int
    content: dict[str, Any]


class Sampler:
    """Time series of a process, made from its readings.

    Args:
        capacity: samples that are kept.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.seq = 0
        self._points: deque[tuple[float, dict[str, float]]] = deque(maxlen=capacity)
        self._bars: deque[Bar] = deque(maxlen=_BARS)
        self._lanes = Lanes()
        self._last: Reading | None = None
        self._peaks: dict[str, int] = {}
        self._sent: dict[str, tuple[int, int]] = {}
        self._latencies: dict[str, deque[tuple[float, list[int]]]] = {}
        self._now: dict[str, Any] = {}

    def add(self, reading: Reading) -> Frame:
        """Take a reading; returns what is new by it."""
        last = self._last
        seconds = reading.at - last.at if last is not None else 0.0
        before = last if last is not None and 0 < seconds <= _GAP else None
        bars = gathered(self._lanes.place(reading.ended))
        values = self._values(reading, before, seconds)
        self._now = _finite(self._tables(reading, values))
        self._bars.extend(bars)
        self._points.append((reading.at, values))
        self._last = reading
        self.seq += 1
        return Frame(self.seq, {
            "seq": self.seq, "at": round(reading.at, 3), "values": values, "bars": [_shown(each) for each in bars],
            "curves": _finite(self._new_points(reading)), "now": self._now,
        })  # fmt: skip

    def whole(self) -> Frame:
        """The whole state, for a viewer without the previous frame."""
        names = dict.fromkeys(name for _, values in self._points for name in values)
        curves = {} if self._last is None else self._last.curves
        return Frame(self.seq, {
            "seq": self.seq, "whole": True, "times": [round(at, 3) for at, _ in self._points],
            "series": {name: [values.get(name) for _, values in self._points] for name in names},
            "bars": [_shown(each) for each in self._bars],
            "curves": _finite({name: _curve(curve, 0) for name, curve in curves.items()}), "now": self._now,
        })  # fmt: skip

    # -- series ----------------------------------------------------------------------------------------

    def _values(self, reading: Reading, before: Reading | None, seconds: float) -> dict[str, float]:
        values: dict[str, float] = {
            "pending": reading.pending, "lag": reading.lag, "resident": reading.resident,
            **{f"queued.{actor}": count for actor, count in reading.queued.items()},
            **{f"memory.{device}": used for device, (used, _) in reading.memory.items()},
        }  # fmt: skip
        if before is not None:
            values |= _rates(reading, before, seconds)
            values |= _busy(reading, before)
        for model, said in services(reading).items():
            values |= self._service(model, said, reading, before, seconds)
        return {name: _rounded(value) for name, value in values.items() if math.isfinite(value)}

    def _service(
        self, model: str, said: Mapping[str, Any], reading: Reading, before: Reading | None, seconds: float
    ) -> dict[str, float]:
        counts = list(said["latency"]["counts"])
        kept = self._latencies.setdefault(model, deque())
        kept.append((reading.at, counts))
        while len(kept) > 1 and reading.at - kept[0][0] > _RECENT:
            kept.popleft()
        new = [a - b for a, b in zip(counts, kept[0][1] or [0] * len(counts), strict=False)]
        earlier = None if before is None else services(before).get(model)
        values = {f"served.{model}.queued": float(said["queued"])}
        if any(new):
            values[f"served.{model}.p99"] = quantile(said["latency"]["bounds"], new, 0.99)
        if earlier is not None:
            values[f"served.{model}.rate"] = (
                said["requests"]["answered"] - earlier["requests"]["answered"]
            ) / seconds  # fmt: skip
        return values

    # -- tables ----------------------------------------------------------------------------------------

    def _tables(self, reading: Reading, values: Mapping[str, float]) -> dict[str, Any]:
        return {
            **reading.about, "pending": reading.pending, "pending_bytes": reading.pending_bytes,
            "steps": reading.steps, "samples": reading.samples,
            "actors": self._actors(reading, values), "memory": self._memory(reading),
            "peers": peers(reading), "nodes": nodes(reading), "services": service_rows(reading, values),
            "curves": {name: curve[2] for name, curve in reading.curves.items()},
        }  # fmt: skip

    def _actors(self, reading: Reading, values: Mapping[str, float]) -> list[dict[str, Any]]:
        running = {actor: {"name": name, "began": round(began, 4)} for actor, name, began in reversed(reading.running)}
        return [
            {
                "name": actor, "busy": values.get(f"busy.{actor}"), "queued": reading.queued.get(actor, 0),
                "executed": executed, "rate": values.get(f"executed.{actor}"),
                "launches": actor in reading.launches, "running": running.get(actor),
            }
            for actor, executed in sorted(reading.executed.items())
        ]  # fmt: skip

    def _memory(self, reading: Reading) -> list[dict[str, Any]]:
        for device, (used, _) in reading.memory.items():
            self._peaks[device] = max(self._peaks.get(device, 0), used)
        return [
            {"device": device, "used": used, "total": total, "peak": self._peaks[device]}
            for device, (used, total) in reading.memory.items()
        ]

    def _new_points(self, reading: Reading) -> dict[str, Any]:
        """The points of curves that were not sent yet."""
        found = {}
        for name, curve in reading.curves.items():
            generation, points, _ = curve
            known, count = self._sent.get(name, (-1, 0))
            if generation != known:
                count = 0
            if count < len(points) or generation != known:
                found[name] = _curve(curve, count)
            self._sent[name] = (generation, len(points))
        return found


def _rates(reading: Reading, before: Reading, seconds: float) -> dict[str, float]:
    executed = {actor: (count - before.executed.get(actor, 0)) / seconds for actor, count in reading.executed.items()}
    values = {f"executed.{actor}": max(rate, 0.0) for actor, rate in executed.items()}
    values["operations"] = sum(values.values())
    values["steps"] = max(reading.steps - before.steps, 0) / seconds
    values["samples"] = max(reading.samples - before.samples, 0) / seconds
    if reading.exchanges or "kvstore" in reading.said:
        values["traffic"] = sum(nbytes for _, nbytes, _ in reading.exchanges) / seconds
    return values


def _busy(reading: Reading, before: Reading) -> dict[str, float]:
    spans: dict[str, list[tuple[float, float]]] = {actor: [] for actor in reading.executed}
    for op in reading.ended:
        spans.setdefault(op.actor, []).append(op.span)
    for actor, _, began in reading.running:
        spans.setdefault(actor, []).append((began, reading.at))
    return {f"busy.{actor}": busy(found, before.at, reading.at) for actor, found in spans.items()}


# -- for JSON ------------------------------------------------------------------------------------------------


def _shown(bar: Bar) -> list[Any]:
    began, ended = round(bar.began, 5), round(bar.ended, 5)
    return [bar.actor, bar.lane, bar.name, began, ended, bar.about, int(bar.failed), bar.number]


def _curve(curve: tuple[int, Sequence[tuple[float, float]], float], begin: int) -> dict[str, Any]:
    _, points, last = curve
    return {"from": begin, "points": [[step, value] for step, value in points[begin:]], "last": last}


def _rounded(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.6g}")


def _finite(value: Any) -> Any:
    """The value with the names of numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
