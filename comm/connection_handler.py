"""Protocols of a service's connections, from the first byte to the first accepted request.

aiohttp's objects for a connection (with a task and a timer) are created only when the head of its first request has
arrived and was accepted. A refusal is sent as prepared bytes, at a limited rate. Nothing is read from the
client until then, which slows down clients that reconnect immediately.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flowmx.comm.connections import ConnectionRecord, Phase
from flowmx.comm.logs import http_log
from flowmx.comm.request_head import HeadState, classify

if TYPE_CHECKING:
    from flowmx.comm.connections import ConnectionLimiter

__all__ = ["UNAVAILABLE", "ConnectionHandler", "http_response"]

READ_SIZE = 16 << 10
"""Size of a read from an unauthenticated client, in bytes."""
LINGER = 2.0
"""Seconds of reading from a refused client, so that it can receive the refusal."""
MAX_DISCARDED = 256 << 10
"""Maximum number of bytes to read and discard in that time."""

MakeProtocol = Callable[[], asyncio.Protocol | None]
CheckHead = Callable[[bytes], bytes | None]


def http_response(status: str, body: bytes = b"", **headers: str) -> bytes:
    """Return an HTTP response that closes its connection.

    Args:
        status: such as ``"503 Service Unavailable"``.
        body: the response's body.
        headers: further headers; underscores in their names become dashes.
    """
    fields = {"Connection": "close", "Content-Length": str(len(body)), **headers}
    lines = (f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status}\r\n{''.join(lines)}\r\n".encode() + body


UNAVAILABLE = http_response("503 Service Unavailable", Retry_After="1")
_BAD_REQUEST = http_response(
    "400 Bad Request",
    b"This is not a valid HTTP/1.1 request, or its head is too long or contradicts itself.\n",
    Content_Type="text/plain",
)


class ConnectionHandler(asyncio.BufferedProtocol):
    """The protocol of a connection until the head of its first request has arrived.

    Args:
        connections: the connections of the service.
        make_protocol: returns the protocol for an accepted connection, or None if no more are accepted.
        check_head: returns the response to a complete head that is refused, or None to accept it.
    """

    def __init__(
        self, connections: ConnectionLimiter, make_protocol: MakeProtocol, check_head: CheckHead | None
    ) -> None:
        self._connections, self._make_protocol, self._check_head = connections, make_protocol, check_head
        self._record: ConnectionRecord | None = None
        self._transport: Any = None
        self._data = bytearray()
        self._buffer = memoryview(b"")
        self._is_refused = False
        self._discarded = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # uvloop's transports are not subclasses of asyncio's
        self._record = self._connections.add(self, transport)
        if self._record is None:
            self._refuse(UNAVAILABLE)

    def close(self) -> None:
        """Close the connection."""
        self._transport.abort()

    def get_buffer(self, hint: int) -> memoryview:
        self._buffer = self._connections.discard_buffer if self._is_refused else memoryview(bytearray(READ_SIZE))
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        if self._is_refused:
            self._discarded += count
            if self._discarded > MAX_DISCARDED:
                self._transport.pause_reading()
            return
        if self._record is not None and self._record.head_started is None:
            self._record.head_started = asyncio.get_running_loop().time()
        self._data += self._buffer[:count]
        self._check()

    def _check(self) -> None:
        state = classify(self._data)
        if state is HeadState.PARTIAL:
            return
        data = bytes(self._data)
        if state is HeadState.INVALID:
            self._refuse_later(_BAD_REQUEST, "invalid HTTP")
        elif self._check_head is not None and (refusal := self._check_head(data)) is not None:
            self._refuse_later(refusal, "invalid credentials")
        else:
            self._accept(data)

    def _accept(self, data: bytes) -> None:
        inner, record = self._make_protocol(), self._record
        if inner is None or record is None:
            self._refuse(UNAVAILABLE)
            return
        self._connections.remove_pending(self)
        tracked = _TrackedProtocol(self._connections, record, inner, self._transport)
        self._transport.set_protocol(tracked)
        inner.connection_made(self._transport)
        tracked.data_received(data)

    def _refuse_later(self, refusal: bytes, reason: str) -> None:
        loop = asyncio.get_running_loop()
        address = self._record.address if self._record else "?"
        http_log.warning("rejected unauthenticated connections (latest: %s): %s", address, reason)
        delay = self._connections.refusals.delay(loop.time())
        self._is_refused = True
        if delay:
            self._transport.pause_reading()
            self._timer = loop.call_later(delay, self._refuse, refusal)
        else:
            self._refuse(refusal)

    def _refuse(self, refusal: bytes) -> None:
        self._is_refused = True
        self._data.clear()
        transport = self._transport
        if transport.is_closing():
            return
        transport.write(refusal)
        try:
            if transport.can_write_eof():
                transport.write_eof()
        except OSError:  # the peer has disconnected
            transport.abort()
            return
        transport.resume_reading()
        self._timer = asyncio.get_running_loop().call_later(LINGER, transport.abort)

    def eof_received(self) -> None:
        """Close the connection, because the peer has closed its end."""

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._record is not None:
            self._connections.remove_pending(self)
            self._connections.remove(self._transport, self._record)


class _TrackedProtocol(asyncio.Protocol):
    """A wrapper of aiohttp's protocol for an accepted connection; it keeps the connection's record up to date."""

    __slots__ = ("_connections", "_inner", "_record", "_transport")

    def __init__(
        self, connections: ConnectionLimiter, record: ConnectionRecord, inner: asyncio.Protocol, transport: object
    ) -> None:
        self._connections, self._record, self._inner, self._transport = connections, record, inner, transport

    def data_received(self, data: bytes) -> None:
        record, inner = self._record, self._inner
        if record.head_started is None and record.phase is Phase.WAITING:
            record.head_started = asyncio.get_running_loop().time()
        inner.data_received(data)
        if messages := getattr(inner, "_messages", None):
            _clear_tracebacks(getattr(messages[-1][0], "exc", None))

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.remove(self._transport, self._record)
        self._inner.connection_lost(error)


def _clear_tracebacks(error: BaseException | None) -> None:
    """Drop the tracebacks of an error that aiohttp's parser raised; aiohttp keeps the error until it is answered.

    Their frames hold all input, up to 256 KB, in a reference cycle with the connection. Both would stay in memory until
    the next full garbage collection, which is rare in an idle process.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
