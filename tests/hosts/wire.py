"""What links do to packets: a pure model, with the time given, and nothing random that a seed does not fix.

Every host has a link to one switch, with a lane each way. A packet waits until its lane is free, takes as long as its
bytes need at the lane's rate, and arrives a while after; then it does the same on the way down to its receiver.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Link", "Wire"]


@dataclass(frozen=True)
class Link:
    """How the link of a host is, in each direction: between two hosts, both links count.

    Args:
        rate: bits a second.
        latency: seconds.
        loss: the share of packets that are lost.
        queue: seconds of traffic that may wait; packets that would wait longer are lost.
    """

    rate: float = math.inf
    latency: float = 0.0
    loss: float = 0.0
    queue: float = 1.0

    def __post_init__(self) -> None:
        if not (self.rate > 0 and self.latency >= 0 and 0 <= self.loss <= 1 and self.queue >= 0):
            raise ValueError(f"no link can be like this: {self}")


class Event(NamedTuple):
    """A packet at the switch, or (``down``) at its receiver."""

    time: float
    number: int
    down: bool
    target: int
    packet: bytes


class Wire:
    """The links of all hosts, and what is under way on them.

    Args:
        links: of each host.
        seed: of what is lost.
    """

    def __init__(self, links: Sequence[Link], seed: int = 0) -> None:
        self.links = list(links)
        self._free = {(host, down): -math.inf for host in range(len(links)) for down in (False, True)}
        self._cut: set[frozenset[int]] = set()
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self._events: list[Event] = []

    def cut(self, one: Iterable[int], other: Iterable[int]) -> None:
        """Let nothing pass between these hosts and those."""
        self._cut |= {frozenset(pair) for pair in itertools.product(one, other)}

    def heal(self) -> None:
        """Let everything pass again."""
        self._cut.clear()

    def send(self, now: float, source: int, target: int, packet: bytes) -> None:
        """A host sends a packet."""
        if frozenset((source, target)) not in self._cut:
            self._pass(now, source, False, target, packet)

    def due(self, now: float) -> Iterator[tuple[int, bytes]]:
        """What has arrived by now, and where; each packet once."""
        while self._events and self._events[0].time <= now:
            event = heapq.heappop(self._events)
            if event.down:
                yield event.target, event.packet
            else:
                self._pass(event.time, event.target, True, event.target, event.packet)

    @property
    def next(self) -> float | None:
        """When something happens next."""
        return self._events[0].time if self._events else None

    def _pass(self, now: float, host: int, down: bool, target: int, packet: bytes) -> None:
        """A packet comes to a lane."""
        link, lane = self.links[host], (host, down)
        begin = max(now, self._free[lane])
        if begin - now > link.queue or self._random.random() < link.loss:
            return
        self._free[lane] = end = begin + 8 * len(packet) / link.rate
        heapq.heappush(self._events, Event(end + link.latency, next(self._numbers), down, target, packet))
