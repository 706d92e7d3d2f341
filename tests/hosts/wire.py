"""A model of a network's links: pure, with the time given, and nothing random that a seed does not fix.

Every host has a link to one switch, with a lane each way. A packet waits for its turn on the lane, takes as long as its
bytes need at the lane's rate, and arrives a while after; then it does the same on the way down to its receiver. What
waits for a lane from or to different hosts takes turns, as with the fair queues that most systems have.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Link", "Wire"]


@dataclass(frozen=True)
class Link:
    """The link of a host, in each direction: between two hosts, both links count.

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


class Packet(NamedTuple):
    """A packet on its way."""

    source: int
    target: int
    content: bytes


class Lane:
    """One direction of a host's link.

    Args:
        host: whose.
        down: whether it leads to the host.
    """

    def __init__(self, host: int, down: bool) -> None:
        self.host = host
        self.down = down
        self.busy = False
        self.nbytes = 0
        """Of what waits, and of what travels."""
        self._queues: dict[int, deque[Packet]] = {}

    def put(self, packet: Packet) -> None:
        """Let a packet wait for its turn."""
        self.nbytes += len(packet.content)
        self._queues.setdefault(packet.source if self.down else packet.target, deque()).append(packet)

    def take(self) -> Packet | None:
        """Remove and return whose turn it is."""
        for peer, queue in self._queues.items():
            packet = queue.popleft()
            del self._queues[peer]
            if queue:
                self._queues[peer] = queue  # the last in the round now
            return packet
        return None


class Event(NamedTuple):
    """A packet has left a lane, or comes to one or (without a lane) to its receiver."""

    time: float
    number: int
    packet: Packet
    left: Lane | None
    into: Lane | None


class Wire:
    """The links of all hosts, and what is under way on them.

    Args:
        links: of each host.
        seed: of what is lost.

    Attributes:
        stopped: how many packets did not pass a cut.
    """

    def __init__(self, links: Sequence[Link], seed: int = 0) -> None:
        self.links = list(links)
        self.stopped = 0
        self._up, self._down = ([Lane(host, down) for host in range(len(links))] for down in (False, True))
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

    def send(self, now: float, source: int, target: int, content: bytes) -> None:
        """A host sends a packet."""
        if frozenset((source, target)) in self._cut:
            self.stopped += 1
        else:
            self._enter(now, self._up[source], Packet(source, target, content))

    def due(self, now: float) -> Iterator[tuple[int, bytes]]:
        """Take the packets that have arrived by now: (receiver, content)."""
        while self._events and self._events[0].time <= now:
            time, _, packet, left, into = heapq.heappop(self._events)
            if left is not None:
                self._leave(time, left, packet)
            elif into is not None:
                self._enter(time, into, packet)
            else:
                yield packet.target, packet.content

    @property
    def next(self) -> float | None:
        """The time of the next event; None where nothing is on its way."""
        return self._events[0].time if self._events else None

    def _enter(self, now: float, lane: Lane, packet: Packet) -> None:
        link = self.links[lane.host]
        if 8 * lane.nbytes / link.rate > link.queue or self._random.random() < link.loss:
            return
        lane.put(packet)
        if not lane.busy:
            self._go(now, lane)

    def _go(self, now: float, lane: Lane) -> None:
        """Let the next packet of a lane travel."""
        packet = lane.take()
        lane.busy = packet is not None
        if packet is not None:
            self._plan(now + 8 * len(packet.content) / self.links[lane.host].rate, packet, left=lane)

    def _leave(self, now: float, lane: Lane, packet: Packet) -> None:
        lane.nbytes -= len(packet.content)
        into = None if lane.down else self._down[packet.target]
        self._plan(now + self.links[lane.host].latency, packet, into=into)
        self._go(now, lane)

    def _plan(self, time: float, packet: Packet, left: Lane | None = None, into: Lane | None = None) -> None:
        heapq.heappush(self._events, Event(time, next(self._numbers), packet, left, into))
