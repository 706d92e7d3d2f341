"""Samples this process: its engine, devices, event loops and reports. Read-only."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from time import monotonic, time
from typing import Any

from flowmx import devices
from flowmx.engine.origin import lookup
from flowmx.engine.runtime import engine
from flowmx.engine.scheduler import RUNNING
from flowmx.observability.dashboard.process_state import Reading
from flowmx.observability.dashboard.timeline import OpSpan, merge_runs
from flowmx.observability.flight import curves, messages, report_registry
from flowmx.observability.flight.event_loop_pings import Pings
from flowmx.observability.safety import step_counter

__all__ = ["Reader"]

_FIRST = 10.0
"""The first reading covers so many seconds before the reader was created."""
_SHORT = 0.004
"""Maximum duration in seconds of consecutive operations that are merged into one."""
_MAX_PLACES = 10_000
"""Maximum size of the cache of source lines; some programs generate code continuously."""


class Reader:
    """Takes readings, and remembers which operations it has reported.

    Args:
        pings: measures the lag of event loops.
    """

    def __init__(self, pings: Pings) -> None:
        self._pings = pings
        self._since = monotonic() - _FIRST
        self._last: Any = None  # the last entry of the journal
        self._places: dict[Any, tuple[str, Any]] = {}

    def read(self, about: Mapping[str, object]) -> Reading:
        """Take a reading.

        Args:
            about: further values to show.
        """
        now, start = monotonic(), self._since
        self._since = now
        actors = engine.actors.copy()
        steps, samples = step_counter.step_counts()
        return Reading(
            at=now,
            executed={name: actor.executed for name, actor in actors.items()},
            queued={name: len(actor.mailbox) for name, actor in actors.items()},
            launches=[name for name, actor in actors.items() if actor.launches],
            running=_running(now),
            ended=self._ended(start),
            pending=len(engine.pending), pending_bytes=engine.scheduler.pending_bytes,
            memory=_memory(), resident=_resident(),
            steps=steps, samples=samples,
            lag=self._pings.slowest(),
            exchanges=_exchanges(start, now), waiting=_waiting(),
            reports=report_registry.reports(), curves=_curves(), about={**_process(), **about},
        )  # fmt: skip

    def _ended(self, start: float) -> list[OpSpan]:
        """Return the operations that the flight recorder's journal has recorded since the previous reading."""
        journal = list(engine.books.journal or ())
        first = next((at + 1 for at in range(len(journal) - 1, -1, -1) if journal[at] is self._last), 0)
        self._last = journal[-1] if journal else None
        entries = [entry for entry in journal[first:] if entry[4] and entry[5] >= start]  # operations that have begun
        return [
            OpSpan(
                run.actor, run.name, run.began, run.ended, self._place(run.origin), run.failed, run.number, run.worked,
            )
            for run in merge_runs(entries, _SHORT)
        ]  # fmt: skip

    def _place(self, origin: Any) -> str:
        """Return the layer, file and line of an origin, cached."""
        if origin is None:
            return ""
        code, position, layer = origin
        key = (id(code), position, layer)  # hashing code objects is slow
        if key not in self._places:
            place = lookup(origin)
            line = f"{Path(place[0]).name}:{place[1]}" if place is not None else ""
            if len(self._places) > _MAX_PLACES:
                self._places.clear()
            text = ", ".join(part for part in (f"layer {layer}" if layer else "", line) if part)
            self._places[key] = (text, code)  # keep the code alive, so that its id is not reused
        return self._places[key][0]


def _running(now: float) -> list[tuple[str, str, float]]:
    return [(op.actor.name, op.name, op.began or now) for op in engine.pending.copy() if op.state == RUNNING]


def _memory() -> dict[str, tuple[int, int]]:
    """Return the used and total bytes by device; CPU devices share one memory."""
    used, totals = devices.memory_in_use(), {}
    for device in devices.in_use():
        name = device.context.device_type if device.context.device_type.startswith("cpu") else repr(device)
        totals[name.partition("_")[0]] = device.memory_info()[1]
    return {name: (nbytes, totals.get(name, 0)) for name, nbytes in used.items()}


def _resident() -> int:
    """Return the resident bytes of the process; 0 if unknown."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _exchanges(start: float, now: float) -> list[tuple[str, int, float]]:
    return [
        (exchange.peer, int(exchange.facts.get("bytes", 0)), exchange.seconds)
        for exchange in list(messages.last)
        if exchange.seconds is not None and start < exchange.since + exchange.seconds <= now
    ]


def _waiting() -> dict[str, int]:
    counts: dict[str, int] = {}
    for exchange in list(messages.under_way.values()):
        counts[exchange.peer] = counts.get(exchange.peer, 0) + 1
    return counts


def _curves() -> dict[str, tuple[int, list[tuple[float, float]], float]]:
    with curves.lock:
        items = sorted(curves.curves.items())
        return {name: (curve.generation, curve.points.copy(), curve.last) for name, curve in items}


def _process() -> dict[str, object]:
    return {
        "pid": os.getpid(), "program": Path(sys.argv[0]).name or "python", "host": platform.node(),
        "epoch": time() - monotonic(),
        "engine": engine.kind, "recorder": engine.books.journal is not None,
    }  # fmt: skip
