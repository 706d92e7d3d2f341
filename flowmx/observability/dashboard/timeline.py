"""The rolling timeline: completed operations in lanes, few enough to draw. This module does no I/O.

A sample may hold thousands of operations, and work per operation takes the GIL from the program. Consecutive short
operations of an actor are therefore merged immediately. An actor may run several operations in parallel; each is drawn
in the actor's first free lane. If there are more bars than a screen can show, short neighbors are merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

__all__ = ["Bar", "Lanes", "OpSpan", "Run", "busy", "limit_bars", "merge_runs"]

JournalEntry = tuple[int, str, str, Any, float, float, bool]
"""An entry of the journal: number, name, actor, origin, start time, end time, whether the operation failed."""
MAX_BARS = 120
"""Maximum number of bars per lane in one sample."""


class OpSpan(NamedTuple):
    """A completed operation, or ``number`` merged ones with the name of the longest.

    Attributes:
        actor: the actor that ran it.
        name: name of the operation.
        began, ended: start and end time in seconds.
        about: layer and source line, for display.
        failed: whether it or one of its inputs failed.
        number: number of merged operations.
        worked: total running time in seconds if operations were merged; None: the whole time.
    """

    actor: str
    name: str
    began: float
    ended: float
    about: str = ""
    failed: bool = False
    number: int = 1
    worked: float | None = None

    @property
    def span(self) -> tuple[float, float]:
        """Start and end of its work; merged operations count as if there were no gaps."""
        return self.began, self.ended if self.worked is None else self.began + self.worked


class Run:
    """Consecutive operations of one actor.

    Attributes:
        name, origin: name and origin of the longest operation.
        longest: duration of the longest operation in seconds.
    """

    __slots__ = ("actor", "began", "ended", "failed", "longest", "name", "number", "origin", "worked")

    def __init__(self, name: str, actor: str, origin: Any, began: float, ended: float, failed: bool) -> None:
        self.name, self.actor, self.origin, self.failed = name, actor, origin, failed
        self.began, self.ended, self.number = began, ended, 1
        self.longest = self.worked = ended - began

    def add(self, name: str, origin: Any, duration: float, ended: float, failed: bool) -> None:
        """Add the next operation, which began after the last one ended."""
        if duration > self.longest:
            self.longest, self.name, self.origin = duration, name, origin
        self.ended = ended
        self.number += 1
        self.worked += duration
        self.failed = self.failed or failed


def merge_runs(entries: Iterable[JournalEntry], max_seconds: float) -> list[Run]:
    """Merge consecutive operations of an actor, in the order in which they ended.

    Args:
        entries: entries of the journal.
        max_seconds: the maximum duration of merged operations.
    """
    result: list[Run] = []
    latest: dict[str, Run] = {}
    for _, name, actor, origin, began, ended, failed in entries:
        run = latest.get(actor)
        if run is not None and run.ended <= began and ended - run.began < max_seconds:
            run.add(name, origin, ended - began, ended, failed)
        else:
            run = latest[actor] = Run(name, actor, origin, began, ended, failed)
            result.append(run)
    return result


class Bar(NamedTuple):
    """A bar of the timeline: an operation, or ``number`` merged ones with the name of the longest."""

    actor: str
    lane: int
    name: str
    began: float
    ended: float
    about: str
    failed: bool
    number: int = 1


class Lanes:
    """The lanes of all actors, and the times until which they are occupied."""

    def __init__(self) -> None:
        self._until: dict[str, list[float]] = {}

    def place(self, ended: Iterable[OpSpan]) -> list[Bar]:
        """Return the bars of operations, in the first lane of their actor that is free when they begin."""
        bars = []
        for op in sorted(ended, key=lambda op: op.began):
            end_times = self._until.setdefault(op.actor, [])
            lane = next((at for at, free in enumerate(end_times) if free <= op.began), len(end_times))
            end_times[lane : lane + 1] = [op.ended]
            bars.append(Bar(op.actor, lane, op.name, op.began, op.ended, op.about, op.failed, op.number))
        return bars


def limit_bars(bars: Sequence[Bar], max_bars: int = MAX_BARS) -> list[Bar]:
    """Merge short neighboring bars until every lane has at most ``max_bars`` bars."""
    by_lane: dict[tuple[str, int], list[Bar]] = {}
    for bar in bars:
        by_lane.setdefault((bar.actor, bar.lane), []).append(bar)
    return [bar for lane in by_lane.values() for bar in _limit_lane(lane, max_bars)]


def _limit_lane(bars: list[Bar], max_bars: int) -> list[Bar]:
    if len(bars) <= max_bars:
        return bars
    slot = (bars[-1].ended - bars[0].began) / max_bars
    while len(groups := _groups(bars, slot)) > max_bars:
        slot *= 2
    return [_merge(group) for group in groups]


def _groups(bars: Sequence[Bar], slot: float) -> list[list[Bar]]:
    """Group consecutive bars that are shorter than a time slot and begin in the same one; other bars stay alone."""
    groups: list[list[Bar]] = []
    last_slot = -1
    for bar in bars:
        index = int(bar.began / slot) if bar.ended - bar.began < slot else -1
        if index >= 0 and index == last_slot:
            groups[-1].append(bar)
        else:
            groups.append([bar])
        last_slot = index
    return groups


def _merge(bars: Sequence[Bar]) -> Bar:
    if len(bars) == 1:
        return bars[0]
    longest = max(bars, key=lambda bar: bar.ended - bar.began)
    return longest._replace(
        began=bars[0].began,
        ended=bars[-1].ended,
        number=sum(bar.number for bar in bars),
        failed=any(bar.failed for bar in bars),
    )


def busy(spans: Iterable[tuple[float, float]], begin: float, end: float) -> float:
    """Return the fraction of the time from ``begin`` to ``end`` that is covered by spans."""
    if end <= begin:
        return 0.0
    total, at = 0.0, begin
    for start, stop in sorted(spans):
        start, stop = max(start, at), min(stop, end)
        if stop > start:
            total += stop - start
            at = stop
    return min(total / (end - begin), 1.0)
