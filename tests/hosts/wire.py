"""A model of a network's links. It does no I/O; callers pass the time, and a seed makes it deterministic.

Every host has a link to one switch, with a lane in each direction. A packet waits for its turn on the sender's lane, is
transmitted at the lane's rate, and arrives at the switch after the latency. The same happens on the receiver's lane.
Packets that wait for a lane take turns by their other host, as in the fair queues of most systems.
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
    """The link of a host to the switch; a packet between two hosts passes both their links.

    Args:
        rate: the bandwidth in each direction, in bits per second.
        latency: the latency in seconds.
        loss: the fraction of packets that are lost.
        queue: the longest wait of a packet in seconds; packets that would wait longer are lost.
    """

    rate: float = math.inf
    latency: float = 0.0
    loss: float = 0.0
    queue: float = 1.0

    def __post_init__(self) -> None:
        if not (self.rate > 0 and self.latency >= 0 and 0 <= self.loss <= 1 and self.queue >= 0):
            raise ValueError(f"invalid link: {self}")


class Packet(NamedTuple):
    """A packet in transit."""

    source: int
    target: int
    content: bytes


class Lane:
    """One direction of a host's link.

    Args:
        host: the number of the host.
        down: whether it leads from the switch to the host.
    """

    def __init__(self, host: int, down: bool) -> None:
        self.host = host
        self.down = down
        self.busy = False
        self.nbytes = 0
        """The size of the packets that wait or are being transmitted."""
        self._queues: dict[int, deque[Packet]] = {}

    def put(self, packet: Packet) -> None:
        """Append a packet to its queue."""
        self.nbytes += len(packet.content)
        self._queues.setdefault(packet.source if self.down else packet.target, deque()).append(packet)

    def take(self) -> Packet | None:
        """Remove and return the packet whose turn it is."""
        for peer, queue in self._queues.items():
            packet = queue.popleft()
            del self._queues[peer]
            if queue:
                self._queues[peer] = queue  # it has its next turn after all others
            return packet
        return None


class Event(NamedTuple):
    """A packet leaves a lane, enters one, or (without a lane) reaches its receiver."""

    time: float
    number: int
    packet: Packet
    leaves: Lane | None
    enters: Lane | None


class Wire:
    """The links of all hosts, and the packets in transit.

    Args:
        links: the link of each host.
        seed: the seed of the losses.

    Attributes:
        dropped: the number of packets that cuts have dropped.
    """

    def __init__(self, links: Sequence[Link], seed: int = 0) -> None:
        self.links = list(links)
        self.dropped = 0
        self._up, self._down = ([Lane(host, down) for host in range(len(links))] for down in (False, True))
        self._cut: set[frozenset[int]] = set()
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self._events: list[Event] = []

    def cut(self, one: Iterable[int], other: Iterable[int]) -> None:
        """Drop all packets between two groups of hosts."""
        self._cut |= {frozenset(pair) for pair in itertools.product(one, other)}

    def heal(self) -> None:
        """Undo all cuts."""
        self._cut.clear()

    def send(self, now: float, source: int, target: int, content: bytes) -> None:
        """Send a packet from one host to another."""
        if frozenset((source, target)) in self._cut:
            self.dropped += 1
        else:
            self._enter(now, self._up[source], Packet(source, target, content))

    def due(self, now: float) -> Iterator[tuple[int, bytes]]:
        """Yield the packets that have arrived by now, as (receiver, content)."""
        while self._events and self._events[0].time <= now:
            time, _, packet, leaves, enters = heapq.heappop(self._events)
            if leaves is not None:
                self._leave(time, leaves, packet)
            elif enters is not None:
                self._enter(time, enters, packet)
            else:
                yield packet.target, packet.content

    @property
    def next(self) -> float | None:
        """The time of the next event; None if no packet is in transit."""
        return self._events[0].time if self._events else None

    def _enter(self, now: float, lane: Lane, packet: Packet) -> None:
        link = self.links[lane.host]
        if 8 * lane.nbytes / link.rate > link.queue or self._random.random() < link.loss:
            return
        lane.put(packet)
        if not lane.busy:
            self._transmit(now, lane)

    def _transmit(self, now: float, lane: Lane) -> None:
        """Start to transmit the next packet of a lane."""
        packet = lane.take()
        lane.busy = packet is not None
        if packet is not None:
            self._schedule(now + 8 * len(packet.content) / self.links[lane.host].rate, packet, leaves=lane)

    def _leave(self, now: float, lane: Lane, packet: Packet) -> None:
        lane.nbytes -= len(packet.content)
        enters = None if lane.down else self._down[packet.target]
        self._schedule(now + self.links[lane.host].latency, packet, enters=enters)
        self._transmit(now, lane)

    def _schedule(self, time: float, packet: Packet, leaves: Lane | None = None, enters: Lane | None = None) -> None:
        heapq.heappush(self._events, Event(time, next(self._numbers), packet, leaves, enters))
