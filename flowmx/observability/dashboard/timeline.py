"""The rolling timeline: operations that have ended, in lanes, few enough to be drawn. Pure.

There may be thousands in a sample, and what is done for each of them keeps the interpreter from the program. So short
ones of an actor that follow each other become one at once. An actor may run several operations at one time; each goes
to the first lane of its actor that is free. Where there are more than a screen can show, neighbours that are short are
drawn as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

__all__ = ["Bar", "Ended", "Lanes", "Run", "busy", "gathered", "runs"]

Note = tuple[int, str, str, Any, float, float, bool]
"""Of the journal: number, name, actor, origin, when it began and ended, whether it failed."""
MOST = 120
"""Bars of one actor in one sample."""


class Ended(NamedTuple):
    """An operation that has ended, or ``number`` of them, named as the longest.

    Attributes:
        actor: who ran it.
        name: of the operation.
        began, ended: in seconds.
        about: layer and line, for people.
        failed: whether it failed, or what it reads had.
        number: how many they are.
        worked: seconds in which one of several ran; None: all the time.
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
        """From when to when it worked; of several as if there was nothing between them."""
        return self.began, self.ended if self.worked is None else self.began + self.worked


class Run:
    """Operations of one actor that followed each other.

    Attributes:
        name, origin: those of the longest.
        longest: its seconds.
    """

    __slots__ = ("actor", "began", "ended", "failed", "longest", "name", "number", "origin", "worked")

    def __init__(self, name: str, actor: str, origin: Any, began: float, ended: float, failed: bool) -> None:
        self.name, self.actor, self.origin, self.failed = name, actor, origin, failed
        self.began, self.ended, self.number = began, ended, 1
        self.longest = self.worked = ended - began

    def add(self, name: str, origin: Any, took: float, ended: float, failed: bool) -> None:
        """One more, which began when the last one had ended, or later."""
        if took > self.longest:
            self.longest, self.name, self.origin = took, name, origin
        self.ended = ended
        self.number += 1
        self.worked += took
        self.failed = self.failed or failed


def runs(notes: Iterable[Note], most: float) -> list[Run]:
    """Operations as they ended; those of an actor that follow each other within some time are one.

    Args:
        notes: of the journal.
        most: seconds that several may take together.
    """
    found: list[Run] = []
    last: dict[str, Run] = {}
    for _, name, actor, origin, began, ended, failed in notes:
        run = last.get(actor)
        if run is not None and run.ended <= began and ended - run.began < most:
            run.add(name, origin, ended - began, ended, failed)
        else:
            run = last[actor] = Run(name, actor, origin, began, ended, failed)
            found.append(run)
    return found


class Bar(NamedTuple):
    """A bar of the timeline: an operation, or ``number`` of them, named as the longest."""

    actor: str
    lane: int
    name: str
    began: float
    ended: float
    about: str
    failed: bool
    number: int = 1


class Lanes:
    """The lanes of all actors, and until when each is taken."""

    def __init__(self) -> None:
        self._until: dict[str, list[float]] = {}

    def place(self, ended: Iterable[Ended]) -> list[Bar]:
        """Bars of operations, each in the first lane of its actor that is free when it begins."""
        bars = []
        for op in sorted(ended, key=lambda each: each.began):
            until = self._until.setdefault(op.actor, [])
            lane = next((at for at, free in enumerate(until) if free <= op.began), len(until))
            until[lane : lane + 1] = [op.ended]
            bars.append(Bar(op.actor, lane, op.name, op.began, op.ended, op.about, op.failed, op.number))
        return bars


def gathered(bars: Sequence[Bar], most: int = MOST) -> list[Bar]:
    """At most so many bars for each lane of each actor: short ones that are near each other become one."""
    by_lane: dict[tuple[str, int], list[Bar]] = {}
    for bar in bars:
        by_lane.setdefault((bar.actor, bar.lane), []).append(bar)
    return [bar for lane in by_lane.values() for bar in _few(lane, most)]


def _few(bars: list[Bar], most: int) -> list[Bar]:
    if len(bars) <= most:
        return bars
    slot = (bars[-1].ended - bars[0].began) / most
    while len(groups := _groups(bars, slot)) > most:
        slot *= 2
    return [_joined(group) for group in groups]


def _groups(bars: Sequence[Bar], slot: float) -> list[list[Bar]]:
    """Runs of bars that are shorter than a slot of time and begin in the same one; each other bar alone."""
    groups: list[list[Bar]] = []
    known = -1
    for bar in bars:
        at = int(bar.began / slot) if bar.ended - bar.began < slot else -1
        if at >= 0 and at == known:
            groups[-1].append(bar)
        else:
            groups.append([bar])
        known = at
    return groups


def _joined(bars: Sequence[Bar]) -> Bar:
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
    """The share of a time in which at least one of these spans lasted, from 0 to 1."""
    if end <= begin:
        return 0.0
    total, at = 0.0, begin
    for start, stop in sorted(spans):
        start, stop = max(start, at), min(stop, end)
        if stop > start:
            total += stop - start
            at = stop
    return min(total / (end - begin), 1.0)
