"""Sampling of this process: its engine, devices, loops and reports at one moment. Read-only."""

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
from flowmx.observability.dashboard.sample import Reading
from flowmx.observability.dashboard.timeline import Ended, runs
from flowmx.observability.flight import curves, facts, messages
from flowmx.observability.flight.loops import Pings
from flowmx.observability.safety import steps

__all__ = ["Reader"]

_FIRST = 10.0
"""Seconds of the past that the first reading covers."""
_SHORT = 0.004
"""Seconds that operations may take together which are shown as one."""
_PLACES = 10_000
"""Lines that are remembered: some programs make code as they go."""


class Reader:
    """Takes readings; remembers what it has reported.

    Args:
        pings: calls to event loops.
    """

    def __init__(self, pings: Pings) -> None:
        self._pings = pings
        self._since = monotonic() - _FIRST
        self._last: Any = None  # of the journal's notes
        self._places: dict[Any, tuple[str, Any]] = {}

    def read(self, about: Mapping[str, Any]) -> Reading:
        """Take one.

        Args:
            about: what else is to be shown.
        """
        now, since = monotonic(), self._since
        self._since = now
        actors = engine.actors.copy()
        done, samples = steps.counted()
        return Reading(
            at=now,
            executed={name: actor.executed for name, actor in actors.items()},
            queued={name: len(actor.mailbox) for name, actor in actors.items()},
            launches=[name for name, actor in actors.items() if actor.launches],
            running=_running(now),
            ended=self._ended(since),
            pending=len(engine.pending), pending_bytes=engine.scheduler.pending_bytes,
            memory=_memory(), resident=_resident(),
            steps=done, samples=samples,
            lag=self._pings.slowest(),
            exchanges=_exchanges(since, now), waiting=_waiting(),
            said=facts.said(), curves=_curves(), about={**_process(), **about},
        )  # fmt: skip

    def _ended(self, since: float) -> list[Ended]:
        """Operations that the flight recorder's journal has noted since the previous reading."""
        journal = list(engine.books.journal or ())
        first = next((at + 1 for at in range(len(journal) - 1, -1, -1) if journal[at] is self._last), 0)
        self._last = journal[-1] if journal else None
        notes = [note for note in journal[first:] if note[4] and note[5] >= since]  # those that began
        return [
            Ended(
                each.actor, each.name, each.began, each.ended, self._place(each.origin), each.failed, each.number,
                each.worked,
            )
            for each in runs(notes, _SHORT)
        ]  # fmt: skip

    def _place(self, origin: Any) -> str:
        """Layer, file and line; each is looked up once."""
        if origin is None:
            return ""
        code, position, layer = origin
        key = (id(code), position, layer)  # the hash of code goes through all of it
        if key not in self._places:
            place = lookup(origin)
            line = f"{Path(place[0]).name}:{place[1]}" if place is not None else ""
            if len(self._places) > _PLACES:
                self._places.clear()
            text = ", ".join(part for part in (f"layer {layer}" if layer else "", line) if part)
            self._places[key] = (text, code)  # which must stay, or another takes its identity
        return self._places[key][0]


def _running(now: float) -> list[tuple[str, str, float]]:
    return [(op.actor.name, op.name, op.began or now) for op in engine.pending.copy() if op.state == RUNNING]


def _memory() -> dict[str, tuple[int, int]]:
    """Bytes in use by device, and in all; CPU devices share one memory."""
    used, totals = devices.memory_in_use(), {}
    for device in devices.in_use():
        name = device.context.device_type if device.context.device_type.startswith("cpu") else repr(device)
        totals[name.partition("_")[0]] = device.memory_info()[1]
    return {name: (nbytes, totals.get(name, 0)) for name, nbytes in used.items()}


def _resident() -> int:
    """Bytes of memory that the process takes; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _exchanges(since: float, now: float) -> list[tuple[str, int, float]]:
    return [
        (each.peer, int(each.facts.get("bytes", 0)), each.seconds)
        for each in list(messages.last)
        if each.seconds is not None and since < each.since + each.seconds <= now
    ]


def _waiting() -> dict[str, int]:
    found: dict[str, int] = {}
    for each in list(messages.under_way.values()):
        found[each.peer] = found.get(each.peer, 0) + 1
    return found


def _curves() -> dict[str, tuple[int, list[tuple[float, float]], float]]:
    with curves.lock:
        found = sorted(curves.curves.items())
        return {name: (curve.generation, curve.points.copy(), curve.last) for name, curve in found}


def _process() -> dict[str, Any]:
    return {
        "pid": os.getpid(), "program": Path(sys.argv[0]).name or "python", "host": platform.node(),
        "epoch": time() - monotonic(),
        "engine": engine.kind, "recorder": engine.books.journal is not None,
    }  # fmt: skip
