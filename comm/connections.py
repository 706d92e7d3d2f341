"""Limits on the connections of a service: admission, eviction when there are too many, and timeouts.

A connection is unauthenticated until one of its requests is accepted. The number of unauthenticated connections is
limited. When a new one exceeds the limit, the longest-waiting connection of the address with the most connections is
closed. A client that opens thousands of silent connections therefore evicts its other ones. The connection of a member
is not evicted, since the member sends a request immediately.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, Protocol

from flowmx.comm.limits import Limits
from flowmx.comm.rate_limits import Throttle

__all__ = ["ConnectionLimiter", "ConnectionRecord", "ConnectionTable", "PendingConnection", "Phase"]

CHECK_INTERVAL = 1.0
"""Seconds between two checks for connections that have timed out."""
MAX_REFUSAL_DELAY = 5.0
"""Maximum delay of a refusal in seconds."""
DISCARD_BUFFER = 256 << 10
"""Bytes of the buffer for input that is discarded."""


class Phase(IntEnum):
    """The state of a connection."""

    WAITING, RECEIVING, WORKING = range(3)


class ConnectionRecord:
    """The state of a connection.

    Attributes:
        address: the peer's address; connections of one address are counted together.
        phase: the current phase.
        idle_since: the time since which the connection has been waiting for a request.
        head_started: the time when the first bytes of a request's head arrived; None before that.
        is_authenticated: whether a request was accepted.
    """

    __slots__ = ("address", "close", "head_started", "idle_since", "is_authenticated", "phase")

    def __init__(self, address: str, idle_since: float, close: Callable[[], None]) -> None:
        self.address = address
        self.phase = Phase.WAITING
        self.idle_since = idle_since
        self.head_started: float | None = None
        self.is_authenticated = False
        self.close = close


class ConnectionTable:
    """The records of all connections. It does no I/O and reads no clock.

    Args:
        max_connections: maximum number of connections.
        max_unauthenticated: maximum number of unauthenticated connections.
        head_timeout: timeout for the head of a request, in seconds.
    """

    def __init__(self, max_connections: int, max_unauthenticated: int, head_timeout: float) -> None:
        self.max_connections, self.head_timeout = max_connections, head_timeout
        self.max_unauthenticated = min(max_unauthenticated, max_connections)
        self._unauthenticated: dict[ConnectionRecord, None] = {}  # oldest first
        self._authenticated: dict[ConnectionRecord, None] = {}
        self._by_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._unauthenticated) + len(self._authenticated)

    @property
    def unauthenticated(self) -> int:
        """The number of unauthenticated connections."""
        return len(self._unauthenticated)

    def add(self, record: ConnectionRecord) -> bool:
        """Add a connection, closing another one if necessary; return False if there is no room."""
        if len(self._unauthenticated) >= self.max_unauthenticated or len(self) >= self.max_connections:
            victim = self._victim()
            if victim is None:
                return False
            self.remove(victim)
            victim.close()
        self._unauthenticated[record] = None
        self._by_address[record.address] += 1
        return True

    def _victim(self) -> ConnectionRecord | None:
        """Return the connection to close for a new one: a waiting one if possible, else a receiving one."""
        if not self._unauthenticated:
            # Idle members are closed last, starting with the one that has been idle for the longest time.
            waiting = (record for record in self._authenticated if record.phase is Phase.WAITING)
            return min(waiting, key=lambda record: record.idle_since, default=None)
        largest = max(self._by_address.values())
        for phase in (Phase.WAITING, Phase.RECEIVING):
            for record in self._unauthenticated:
                if record.phase is phase and self._by_address[record.address] == largest:
                    return record
        return next((record for record in self._unauthenticated if record.phase is not Phase.WORKING), None)

    def remove(self, record: ConnectionRecord) -> None:
        """Remove a connection that was closed."""
        self._authenticated.pop(record, None)
        if record in self._unauthenticated:
            self._remove_unauthenticated(record)

    def mark_authenticated(self, record: ConnectionRecord) -> None:
        """Record that a request of this connection was accepted."""
        if record in self._unauthenticated:
            self._remove_unauthenticated(record)
            self._authenticated[record] = None
            record.is_authenticated = True

    def _remove_unauthenticated(self, record: ConnectionRecord) -> None:
        del self._unauthenticated[record]
        self._by_address[record.address] -= 1
        if not self._by_address[record.address]:
            del self._by_address[record.address]

    def overdue(self, now: float) -> list[ConnectionRecord]:
        """Return the connections whose request head did not arrive in time."""
        return [
            record
            for record in (*self._unauthenticated, *self._authenticated)
            if record.phase is Phase.WAITING and now - _head_start(record, now) > self.head_timeout
        ]


def _head_start(record: ConnectionRecord, now: float) -> float:
    """Return the start of the head's timeout; members may be idle between requests."""
    if record.head_started is not None:
        return record.head_started
    return now if record.is_authenticated else record.idle_since


class PendingConnection(Protocol):
    """A connection's protocol until one of its requests is accepted."""

    def close(self) -> None: ...


class ConnectionLimiter:
    """Accepts the connections of a service within its limits, and closes those that time out.

    Args:
        limits: the service's limits.
    """

    def __init__(self, limits: Limits) -> None:
        self.table = ConnectionTable(limits.open_connections, limits.unauthenticated, limits.head)
        self.refusals = Throttle(limits.refusals, MAX_REFUSAL_DELAY)
        self.discard_buffer = memoryview(bytearray(DISCARD_BUFFER))
        self._by_transport: dict[Any, ConnectionRecord] = {}
        self._pending: set[PendingConnection] = set()
        self._timer: asyncio.TimerHandle | None = None

    def refusal_delay(self, transport: object) -> float:
        """Return the delay of a refusal in seconds; only refusals to unauthenticated clients are delayed."""
        record = self._by_transport.get(transport)
        if record is None or record.is_authenticated:
            return 0.0
        return self.refusals.delay(asyncio.get_running_loop().time())

    @contextmanager
    def track_request(self, transport: object) -> Iterator[Callable[[Phase], None]]:
        """Record that a request's head has arrived; yield a function that sets the connection's later phases."""
        record = self._by_transport.get(transport)
        if record is None:  # the service is mounted in the user's application, which owns the connections
            yield lambda _: None
            return

        def set_phase(phase: Phase) -> None:
            record.phase, record.idle_since = phase, asyncio.get_running_loop().time()

        record.phase, record.head_started = Phase.RECEIVING, None
        try:
            yield set_phase
        finally:
            record.phase, record.idle_since = Phase.WAITING, asyncio.get_running_loop().time()

    def mark_authenticated(self, transport: object) -> None:
        """Record that a request of this connection was accepted."""
        record = self._by_transport.get(transport)
        if record is not None and not record.is_authenticated:
            self.table.mark_authenticated(record)

    def add(self, pending: PendingConnection, transport: Any) -> ConnectionRecord | None:
        """Add a connection; return its record, or None if there is no room.

        Args:
            pending: the connection's protocol until a request is accepted.
            transport: the connection's transport.
        """
        loop = asyncio.get_running_loop()
        record = ConnectionRecord(_address(transport), loop.time(), transport.abort)
        if not self.table.add(record):
            return None
        self._by_transport[transport] = record
        self._pending.add(pending)
        if self._timer is None:
            self._timer = loop.call_later(CHECK_INTERVAL, self._close_overdue, loop)
        return record

    def remove_pending(self, pending: PendingConnection) -> None:
        """Record that a connection is no longer pending."""
        self._pending.discard(pending)

    def close(self) -> None:
        """Close the pending connections."""
        for pending in list(self._pending):
            pending.close()

    def remove(self, transport: object, record: ConnectionRecord) -> None:
        """Remove a connection that was closed."""
        del self._by_transport[transport]
        self.table.remove(record)

    def _close_overdue(self, loop: asyncio.AbstractEventLoop) -> None:
        for record in self.table.overdue(loop.time()):
            record.close()
        self._timer = loop.call_later(CHECK_INTERVAL, self._close_overdue, loop) if self._by_transport else None


def _address(transport: Any) -> str:
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) and peer else ""
