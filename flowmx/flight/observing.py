"""Watching this process for a little while: what takes its time, what grows, where values are not finite.

Results stay what they are. While values are looked at, operations cost more; that ends with the observation.
"""

from __future__ import annotations

import time
from collections import Counter
from time import monotonic
from typing import Any

from flowmx.engine.runtime import engine
from flowmx.engine.scheduler import DONE, RUNNING
from flowmx.flight import snapshot, stacks
from flowmx.flight.growth import Growth
from flowmx.flight.loops import Pings
from flowmx.safety import watch

__all__ = ["LONGEST", "observe"]

LONGEST = 30.0
"""Most seconds of one observation."""

_EVERY = 0.02
"""Seconds between samples."""
_COUNTS = 5
"""How often arrays are counted."""
_LOADING = ("gluon/data/", "flowmx/io/")


def observe(seconds: float = 1.0, values: bool = True, pings: Pings | None = None) -> dict[str, Any]:
    """A snapshot of this process, with what was seen in the seconds before it.

    Args:
        seconds: how long to look.
        values: whether to look for values that are not finite, too.
        pings: calls to event loops that are under way already.

    Returns:
        As :func:`flowmx.flight.snapshot.take`, and under ``seen`` what was seen.
    """
    seconds = min(max(seconds, 0.0), LONGEST)
    pings = pings or Pings()
    look = watch.Watch(stops=False) if values and seconds else None
    growth, samples = Growth(), Samples()
    if look is not None:
        watch.everywhere(look)
    try:
        _sample(seconds, pings, growth, samples)
    finally:
        growth.stop()
        if look is not None:
            watch.no_longer(look)
    found = snapshot.take()
    found["loops"] = pings.found()
    found["seen"] = {
        "seconds": seconds, **samples.found(), "growth": growth.found(),
        "not_finite": None if look is None or look.found is None else str(look.found),
    }  # fmt: skip
    return found


def _sample(seconds: float, pings: Pings, growth: Growth, samples: Samples) -> None:
    begin = monotonic()
    counts = 0
    while (gone := monotonic() - begin) < seconds:
        pings.send()
        samples.add()
        if gone >= seconds * counts / _COUNTS:
            counts += 1
            growth.count()
        time.sleep(_EVERY)
    growth.count()


class Samples:
    """How often what was the case."""

    def __init__(self) -> None:
        self._count = 0
        self._waits: Counter[tuple[str, str]] = Counter()
        self._busy: Counter[str] = Counter()
        self._loading: Counter[tuple[str, str]] = Counter()
        self._begun = engine.scheduler.serial
        self._ended = engine.scheduler.completed

    def add(self) -> None:
        """Look once."""
        self._count += 1
        names = stacks.names()
        for wait in list(engine.waits.values()):
            if wait.op.state != DONE:
                who = names.get(wait.thread, "") if wait.task is None else f"task {wait.task.get_name()}"
                self._waits[who, wait.op.name] += 1
        for actor in {op.actor.name for op in engine.pending.copy() if op.state == RUNNING}:
            self._busy[actor] += 1
        for ident, frame in stacks.frames().items():
            name = names.get(ident, "")
            if not name.startswith("flowmx-") and _loads(frame):
                self._loading[name, next(iter(stacks.lines(frame)), "")] += 1

    def found(self) -> dict[str, Any]:
        """Shares of the samples, from 0 to 1, and how much was done meanwhile."""
        count = max(self._count, 1)
        return {
            "waits": [{"who": who, "for": name, "share": n / count} for (who, name), n in self._waits.most_common(8)],
            "busy": {name: n / count for name, n in self._busy.items()},
            "loading": [
                {"who": who, "line": line, "share": n / count} for (who, line), n in self._loading.most_common(8)
            ],
            "pushed": engine.scheduler.serial - self._begun,
            "ended": engine.scheduler.completed - self._ended,
        }


def _loads(frame: Any) -> bool:
    """Whether a thread is making a batch of data itself."""
    return any(part in each.f_code.co_filename for each in stacks.walk(frame) for part in _LOADING)
