"""The rolling timeline: operations that have ended, in lanes, few enough to be drawn. Pure.

An actor may run several operations at one time; each goes to the first lane of its actor that is free. Where there are
more than a screen can show, neighbours that are short are drawn as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

__all__ = ["Bar", "Ended", "Lanes", "busy", "gathered"]

MOST = 120
"""Bars of one actor in one sample."""


class Ended(NamedTuple):
    """An operation that has ended.

    Attributes:
        actor: who ran it.
        name: of the operation.
        began, ended: in seconds.
        about: layer and line, for people.
        failed: whether it failed, or what it reads had.
    """

    actor: str
    name: str
    began: float
    ended: float
    about: str = ""
    failed: bool = False


class Bar(NamedTuple):
    """What is drawn: an operation, or ``number`` of them, named as the longest."""

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
            bars.append(Bar(op.actor, lane, op.name, op.began, op.ended, op.about, op.failed))
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
        began=bars[0].began, ended=bars[-1].ended, number=len(bars), failed=any(bar.failed for bar in bars)
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
