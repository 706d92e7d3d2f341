"""Observation of this process over some seconds: time by activity, growth of memory, values that are not finite.

The results of operations do not change. Operations take longer while their values are checked.
"""

from __future__ import annotations

import time
from collections import Counter
from time import monotonic
from typing import Any

from flowmx.engine.runtime import engine
from flowmx.engine.scheduler import DONE, RUNNING
from flowmx.observability.flight import snapshot, stacks
from flowmx.observability.flight.event_loop_pings import Pings
from flowmx.observability.flight.memory_growth import Growth
from flowmx.observability.safety import nan_watch

__all__ = ["LONGEST", "observe"]

LONGEST = 30.0
"""Maximum duration of an observation in seconds."""

_INTERVAL = 0.02
"""Interval between samples in seconds."""
_MIN_LAG = 0.1
"""Lag in seconds from which the stacks of event loops are recorded."""
_COUNTS = 5
"""Number of counts of arrays in one observation."""
_LOADING = ("gluon/data/", "flowmx/io/", "flowmx/data/")


def observe(seconds: float = 1.0, values: bool = True, pings: Pings | None = None) -> dict[str, Any]:
    """Observe this process for some seconds, and take a snapshot of it.

    Args:
        seconds: duration of the observation.
        values: whether to check results for values that are not finite.
        pings: measures the lag of event loops (default: a new one).

    Returns:
        The result of :func:`flowmx.observability.flight.snapshot.take`, with the observations under ``seen``.
    """
    seconds = min(max(seconds, 0.0), LONGEST)
    observation = Observation(pings, counts_every=seconds / _COUNTS)
    try:
        if values and seconds:
            observation.check_values()
        while observation.seconds < seconds:
            observation.look()
            time.sleep(_INTERVAL)
    finally:
        observation.close()
    return observation.result(seconds)


class Observation:
    """Observes this process from its construction until :meth:`close`; the caller calls :meth:`look` repeatedly.

    Args:
        pings: measures the lag of event loops (default: a new one).
        counts_every: interval between counts of arrays in seconds; None: they are not counted.
    """

    def __init__(self, pings: Pings | None = None, counts_every: float | None = 0.4) -> None:
        self._pings = pings or Pings()
        self._growth = None if counts_every is None else Growth()
        self._samples = Samples()
        self._watch: nan_watch.Watch | None = None
        self._is_checking_values = False
        self._begin = monotonic()
        self._count_interval, self._counts = counts_every or 0.0, 0
        self._blocked: dict[str, dict[str, Any]] = {}

    @property
    def seconds(self) -> float:
        """Seconds since the observation began."""
        return monotonic() - self._begin

    def check_values(self) -> None:
        """Begin to check results for values that are not finite; operations take longer from now on."""
        self._watch = nan_watch.Watch(stops=False)
        self._is_checking_values = True
        nan_watch.watch_all(self._watch)

    def stop_checking_values(self) -> None:
        """Stop checking values."""
        if self._watch is not None and self._is_checking_values:
            self._is_checking_values = False
            nan_watch.unwatch_all(self._watch)

    def look(self) -> None:
        """Take a sample; to be called every few milliseconds."""
        self._pings.send()
        self._samples.add()
        if self._pings.slowest() >= _MIN_LAG:
            self._update_blocked(self._pings.loop_states())
        if self._growth is not None and self.seconds >= self._count_interval * self._counts:
            self._counts += 1
            self._growth.count()

    def _update_blocked(self, loops: list[dict[str, Any]]) -> None:
        """Keep the state of each event loop in which it was blocked for longest."""
        for loop in loops:
            longest = self._blocked.get(loop["thread"])
            if longest is None or loop["blocked"] > longest["blocked"]:
                self._blocked[loop["thread"]] = loop

    def close(self) -> None:
        """End the observation."""
        if self._growth is not None:
            self._growth.count()
            self._growth.stop()
        self.stop_checking_values()

    def result(self, seconds: float | None = None) -> dict[str, Any]:
        """Return a snapshot with the observations; see :func:`observe`.

        Args:
            seconds: duration to state (default: the actual one).
        """
        result = snapshot.take()
        loops = self._pings.loop_states()
        self._update_blocked(loops)
        result["loops"] = [self._blocked[loop["thread"]] for loop in loops]
        not_finite = None if self._watch is None or self._watch.finding is None else str(self._watch.finding)
        result["seen"] = {
            "seconds": round(self.seconds, 1) if seconds is None else seconds, **self._samples.shares(),
            "growth": [] if self._growth is None else self._growth.growing_lines(), "not_finite": not_finite,
        }  # fmt: skip
        return result


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
        """Take a sample."""
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
            if not name.startswith("flowmx-") and _is_loading(stack):
                self._loading[name, next(iter(stacks.lines(stack)), "")] += 1

    def shares(self) -> dict[str, Any]:
        """Return each activity's share of the samples, from 0 to 1, and the numbers of operations pushed and ended."""
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


def _is_loading(stack: stacks.Stack) -> bool:
    """Return whether a thread is loading data itself."""
    return any(part in level.code.co_filename for level in stack for part in _LOADING)
