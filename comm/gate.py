"""The gate of a service: which connections are let in, which one goes where there are too many, how long each may take.

A connection is a stranger's until a request of it was let in. Strangers have a bounded number of places; where one more
comes and all are taken, the one that has waited for longest is closed, of the address that has most of them. So who
opens thousands of connections and says nothing closes its own; a member, which speaks at once, gets in and stays.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, Protocol

from flowmx.comm.limits import Limits
from flowmx.comm.rates import Turns

__all__ = ["Gate", "Phase", "Place", "Places"]

LOOK = 1.0  # seconds between two looks for connections whose time is over
LONGEST_WAIT = 5.0
"""Seconds that a refusal waits for its turn at most."""
WASTE = 256 << 10
"""Bytes of memory for what is thrown away."""


class Phase(IntEnum):
    """The state of a connection."""

    WAITING, RECEIVING, WORKING = range(3)


class Place:
    """The place of a connection.

    Attributes:
        address: of the peer; connections of one address share a count.
        phase: what it is doing.
        since: the time since when it waits for a request.
        begun: the time at which the first bytes of a request's head came; None before.
        is_proven: whether a request of it was let in.
    """

    __slots__ = ("address", "begun", "close", "is_proven", "phase", "since")

    def __init__(self, address: str, since: float, close: Callable[[], None]) -> None:
        self.address = address
        self.phase = Phase.WAITING
        self.since = since
        self.begun: float | None = None
        self.is_proven = False
        self.close = close


class Places:
    """The places of all connections. Pure: no I/O, no clock.

    Args:
        most: of all connections.
        strangers: most of them that are not proven.
        head: seconds that the head of a request may take.
    """

    def __init__(self, most: int, strangers: int, head: float) -> None:
        self.most, self.head = most, head
        self.most_strangers = min(strangers, most)
        self._strangers: dict[Place, None] = {}  # the longest there first
        self._proven: dict[Place, None] = {}
        self._by_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._strangers) + len(self._proven)

    @property
    def strangers(self) -> int:
        """The number of connections that are not proven."""
        return len(self._strangers)

    def take(self, place: Place) -> bool:
        """Give a connection its place, where need be by closing another; False where there is none."""
        if len(self._strangers) >= self.most_strangers or len(self) >= self.most:
            loser = self._loser()
            if loser is None:
                return False
            self.leave(loser)
            loser.close()
        self._strangers[place] = None
        self._by_address[place.address] += 1
        return True

    def _loser(self) -> Place | None:
        """The connection that goes for another: one that waits before one that sends, and none that is worked for."""
        if not self._strangers:
            # Members that wait for nothing go last, the one that was idle for longest first.
            waiting = (each for each in self._proven if each.phase is Phase.WAITING)
            return min(waiting, key=lambda each: each.since, default=None)
        heaviest = max(self._by_address.values())
        for phase in (Phase.WAITING, Phase.RECEIVING):
            for each in self._strangers:
                if each.phase is phase and self._by_address[each.address] == heaviest:
                    return each
        return next((each for each in self._strangers if each.phase is not Phase.WORKING), None)

    def leave(self, place: Place) -> None:
        """Free the place of a connection that is closed."""
        self._proven.pop(place, None)
        if place in self._strangers:
            self._forget(place)

    def prove(self, place: Place) -> None:
        """Note that a request of this connection was let in."""
        if place in self._strangers:
            self._forget(place)
            self._proven[place] = None
            place.is_proven = True

    def _forget(self, place: Place) -> None:
        del self._strangers[place]
        self._by_address[place.address] -= 1
        if not self._by_address[place.address]:
            del self._by_address[place.address]

    def overdue(self, now: float) -> list[Place]:
        """The connections whose head of a request takes too long."""
        return [
            each
            for each in (*self._strangers, *self._proven)
            if each.phase is Phase.WAITING
            and now - (each.begun if each.begun is not None else now if each.is_proven else each.since) > self.head
        ]


class Doorkeeper(Protocol):
    """A connection's protocol until a request of it is let in."""

    def close(self) -> None: ...


class Gate:
    """Lets connections in to a service.

    Args:
        limits: what is allowed.
    """

    def __init__(self, limits: Limits) -> None:
        self.places = Places(limits.open_connections, limits.strangers, limits.head)
        self.turns = Turns(limits.refusals, LONGEST_WAIT)
        self.waste = memoryview(bytearray(WASTE))
        self._by_transport: dict[Any, Place] = {}
        self._at_door: set[Doorkeeper] = set()
        self._timer: asyncio.TimerHandle | None = None

    def wait_of(self, transport: Any) -> float:
        """Seconds after which a refusal is to be sent: those of strangers are sent at a bounded rate."""
        place = self._by_transport.get(transport)
        return 0.0 if place is None or place.is_proven else self.turns.take(asyncio.get_running_loop().time())

    @contextmanager
    def request(self, transport: Any) -> Iterator[Callable[[Phase], None]]:
        """Note that a request has a head; yields what notes the phases from then on."""
        place = self._by_transport.get(transport)
        if place is None:  # the service is mounted in somebody's application, who has the connections
            yield lambda _: None
            return

        def note(phase: Phase) -> None:
            place.phase, place.since = phase, asyncio.get_running_loop().time()

        place.phase, place.begun = Phase.RECEIVING, None
        try:
            yield note
        finally:
            place.phase, place.since = Phase.WAITING, asyncio.get_running_loop().time()

    def prove(self, transport: Any) -> None:
        """Note that a request of this connection was let in."""
        place = self._by_transport.get(transport)
        if place is not None and not place.is_proven:
            self.places.prove(place)

    def enter(self, keeper: Doorkeeper, transport: Any) -> Place | None:
        """The place of a new connection, if there is one.

        Args:
            keeper: has it, until a request of it is let in.
            transport: its transport.
        """
        loop = asyncio.get_running_loop()
        place = Place(_address(transport), loop.time(), transport.abort)
        if not self.places.take(place):
            return None
        self._by_transport[transport] = place
        self._at_door.add(keeper)
        if self._timer is None:
            self._timer = loop.call_later(LOOK, self._look, loop)
        return place

    def pass_on(self, keeper: Doorkeeper) -> None:
        """Note that a connection is no longer at the door."""
        self._at_door.discard(keeper)

    def close(self) -> None:
        """Close the connections of which no request was let in."""
        for each in list(self._at_door):
            each.close()

    def leave(self, transport: Any, place: Place) -> None:
        """Note that a connection is closed."""
        del self._by_transport[transport]
        self.places.leave(place)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        for place in self.places.overdue(loop.time()):
            place.close()
        self._timer = loop.call_later(LOOK, self._look, loop) if self._by_transport else None


def _address(transport: Any) -> str:
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) and peer else ""
