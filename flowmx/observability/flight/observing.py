"""Observation of this process over some seconds: time by activity, growth of memory, values that are not finite.

Results stay what they are. While values are looked at, operations cost more; that ends with the observation.
"""

from __future__ import annotations

import time
from collections import Counter
from time import monotonic
from typing import Any

from flowmx.engine.runtime import engine
from flowmx.engine.scheduler import DONE, RUNNING
from flowmx.observability.flight import snapshot, stacks
from flowmx.observability.flight.growth import Growth
from flowmx.observability.flight.loops import Pings
from flowmx.observability.safety import watch

__all__ = ["LONGEST", "observe"]

LONGEST = 30.0
"""Most seconds of one observation."""

_EVERY = 0.02
"""Seconds between samples."""
_BLOCKED = 0.1
"""Seconds from which it is worth a look at what an event loop stands at."""
_COUNTS = 5
"""Number of times that arrays are counted."""
_LOADING = ("gluon/data/", "flowmx/io/", "flowmx/data/")


def observe(seconds: float = 1.0, values: bool = True, pings: Pings | None = None) -> dict[str, Any]:
    """A snapshot of this process, with what was seen in the seconds before it.

    Args:
        seconds: how long to look.
        values: whether to look for values that are not finite, too.
        pings: calls to event loops that are under way already.

    Returns:
        As :func:`flowmx.observability.flight.snapshot.take`, and under ``seen`` what was seen.
    """
    seconds = min(max(seconds, 0.0), LONGEST)
    observation = Observation(pings, counts_every=seconds / _COUNTS)
    try:
        if values and seconds:
            observation.look_at_values()
        while observation.seconds < seconds:
            observation.look()
            time.sleep(_EVERY)
    finally:
        observation.close()
    return observation.found(seconds)


class Observation:
    """Watches this process from when it is made until :meth:`close`; whoever makes it calls :meth:`look` meanwhile.

    Args:
        pings: calls to event loops that are under way already.
        counts_every: seconds between counts of arrays; None: they are not counted.
    """

    def __init__(self, pings: Pings | None = None, counts_every: float | None = 0.4) -> None:
        self._pings = pings or Pings()
        self._growth = None if counts_every is None else Growth()
        self._samples = Samples()
        self._watch: watch.Watch | None = None
        self._looks_at_values = False
        self._begin = monotonic()
        self._every, self._counts = counts_every or 0.0, 0
        self._blocked: dict[str, dict[str, Any]] = {}

    @property
    def seconds(self) -> float:
        """Seconds that it lasts."""
        return monotonic() - self._begin

    def look_at_values(self) -> None:
        """Start to look for values that are not finite, which makes operations cost more."""
        self._watch = watch.Watch(stops=False)
        self._looks_at_values = True
        watch.everywhere(self._watch)

    def leave_values(self) -> None:
        """Stop looking at values."""
        if self._watch is not None and self._looks_at_values:
            self._looks_at_values = False
            watch.no_longer(self._watch)

    def look(self) -> None:
        """Look once, some milliseconds after the last time."""
        self._pings.send()
        self._samples.add()
        if self._pings.slowest() >= _BLOCKED:
            self._keep(self._pings.found())
        if self._growth is not None and self.seconds >= self._every * self._counts:
            self._counts += 1
            self._growth.count()

    def _keep(self, loops: list[dict[str, Any]]) -> None:
        """Remember of each event loop when it was blocked for longest, and at what."""
        for each in loops:
            known = self._blocked.get(each["thread"])
            if known is None or each["blocked"] > known["blocked"]:
                self._blocked[each["thread"]] = each

    def close(self) -> None:
        """End the observation."""
        if self._growth is not None:
            self._growth.count()
            self._growth.stop()
        self.leave_values()

    def found(self, seconds: float | None = None) -> dict[str, Any]:
        """As :func:`observe`; ``seconds`` is how long it was meant to last."""
        found = snapshot.take()
        loops = self._pings.found()
        self._keep(loops)
        found["loops"] = [self._blocked[each["thread"]] for each in loops]
        not_finite = None if self._watch is None or self._watch.found is None else str(self._watch.found)
        found["seen"] = {
            "seconds": round(self.seconds, 1) if seconds is None else seconds, **self._samples.found(),
            "growth": [] if self._growth is None else self._growth.found(), "not_finite": not_finite,
        }  # fmt: skip
        return found


class Samples:
    """Counts of waits, busy actors and loading threads over many samples."""

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
        for ident, stack in stacks.stacks().items():
            name = names.get(ident, "")
            if not name.startswith("flowmx-") and _loads(stack):
                self._loading[name, next(iter(stacks.lines(stack)), "")] += 1

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


def _loads(stack: stacks.Stack) -> bool:
    """Tell whether a thread is making a batch of data itself."""
    return any(part in each.code.co_filename for each in stack for part in _LOADING)
