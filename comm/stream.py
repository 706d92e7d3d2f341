"""Streams: many small calls over one connection, a WebSocket, with their answers in any order.

A call by POST costs both sides of HTTP a head to make and to parse, a task and some turns of the event loop: several
times what a small call takes itself. A stream is opened once, with the checks of a request; a call is then one message,
and so is its answer. ``docs/wire.md`` has their form. Here is what both ends share: the connection, and its seals.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import struct
from collections.abc import Sequence
from typing import Any

from flowmx.comm import websocket
from flowmx.comm.errors import CommError, PeerGone, TooSlow, Unauthorized, WireError
from flowmx.comm.limits import Limits
from flowmx.comm.security import Security

__all__ = ["ANSWER", "CALL", "CANCEL", "MOST", "NONCE", "PART", "PREFIX", "PROTOCOL", "Seals", "Stream"]

PROTOCOL = "flowmx.1"
"""The subprotocol of WebSocket by which both ends know a stream."""
NONCE = "Flowmx-Nonce"
"""The header with the service's nonce."""
CALL, CANCEL = 1, 2
"""Kinds of messages to the service: a call, and the wish that one should end."""
ANSWER, PART = 1, 2
"""Kinds of messages from the service: an answer or the end of it, and a part of one that goes on."""
PREFIX = struct.Struct("<BI")
"""The beginning of each message: its kind, and the number of the call that it is about."""
MOST = 1 << 20
"""Bytes of a message."""
SEAL = 32

Piece = bytes | memoryview


class Seals:
    """The seals of the messages that go one way over a stream: none can be changed, left out, repeated or moved.

    Args:
        security: whose secret the key is made of.
        way: ``"client"`` or ``"service"``: who seals.
        nonces: the client's and the service's.
    """

    def __init__(self, security: Security, way: str, nonces: Sequence[str]) -> None:
        self._keyed = hmac.new(security.stream_key(way, *nonces), digestmod=hashlib.sha256)
        self._count = 0

    def next(self, parts: Sequence[Piece]) -> bytes:
        """The seal of the next message."""
        made = self._keyed.copy()
        made.update(self._count.to_bytes(8, "little"))
        for part in parts:
            made.update(part)
        self._count += 1
        return made.digest()

    def opened(self, message: memoryview) -> memoryview:
        """The next message without its seal.

        Raises:
            Unauthorized: it has not the right one.
        """
        if len(message) < SEAL or not hmac.compare_digest(message[-SEAL:], self.next([message[:-SEAL]])):
            raise Unauthorized("a message of the stream does not have its seal: it was changed on its way")
        return message[:-SEAL]


class Stream(asyncio.Protocol):
    """One end of a stream: the protocol of a connection after its handshake.

    Args:
        transport: of the connection; its protocol until now is told when it is lost.
        limits: what is allowed.
        is_client: whether this end asks.
        seals: of what is sent and of what comes; None where there is no secret.

    Attributes:
        ended: is done when the connection is lost.
    """

    def __init__(
        self, transport: Any, limits: Limits, *, is_client: bool, seals: tuple[Seals, Seals] | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._before = transport.get_protocol()
        self._limits = limits
        self._is_client = is_client
        self._seals = seals
        self._rest = bytearray()  # of a frame that has not come as a whole
        self._wanted = 0  # bytes that it has at least
        self._room: asyncio.Future[None] | None = None  # while the other end takes nothing
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.ended: asyncio.Future[None] = self._loop.create_future()
        transport.set_protocol(self)

    def received(self, message: memoryview) -> None:
        """Take a message, which stays as it is only until this returns.

        Raises:
            CommError: it is none that is allowed: the stream ends.
        """
        raise NotImplementedError

    def lost(self, error: CommError) -> None:
        """End what the stream was for; an error says why it ended."""
        raise NotImplementedError

    @property
    def is_open(self) -> bool:
        """True while messages can be sent."""
        return not self.ended.done() and not self._transport.is_closing()

    def send(self, *parts: Piece) -> None:
        """Send a message of at most `MOST` bytes."""
        if self._transport.is_closing():
            return
        if self._seals is not None:
            parts = (*parts, self._seals[0].next(parts))
        length = sum(map(len, parts))
        head = websocket.frame_head(websocket.BINARY, length, masked=self._is_client)
        self._transport.write(b"".join((head, *parts)))

    async def drained(self) -> None:
        """Wait until the other end has taken most of what was sent."""
        while self._room is not None:
            await self._room

    def close(self) -> None:
        """End the stream; what was sent still arrives."""
        self._control(websocket.CLOSE, (1000).to_bytes(2, "big"))
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:
                return
            data, self._rest = bytes(self._rest), bytearray()
            self._stop("rest")
        try:
            self._read(memoryview(data))
        except CommError as error:
            self._fail(error)

    def _read(self, data: memoryview) -> None:
        most = MOST if self._seals is None else MOST + SEAL
        while data and not self._transport.is_closing():
            head = websocket.read_head(data, masked=not self._is_client, most=most)
            end = len(data) + 1 if head is None else head.size + head.length
            if head is None or end > len(data):
                self._rest, self._wanted = bytearray(data), end
                self._start("rest", TooSlow(f"a message of the stream paused for {self._limits.idle:g} s"))
                return
            payload = websocket.unmasked(data[head.size : end], head.mask)
            data = data[end:]
            if head.opcode == websocket.BINARY:
                self.received(payload if self._seals is None else self._seals[1].opened(payload))
            elif head.opcode == websocket.PING:
                self._control(websocket.PONG, bytes(payload))
            elif head.opcode == websocket.CLOSE:
                self.close()

    def _control(self, opcode: int, payload: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(websocket.frame_head(opcode, len(payload), masked=self._is_client) + payload)

    def _fail(self, error: CommError) -> None:
        """End the stream for what the other end did."""
        text = str(error).encode()[:120].decode(errors="ignore").encode()
        code = 1008 if isinstance(error, Unauthorized | TooSlow) else 1002 if isinstance(error, WireError) else 1011
        self._control(websocket.CLOSE, code.to_bytes(2, "big") + text)
        self._transport.close()
        self._end(error)

    def _start(self, name: str, error: CommError) -> None:
        self._timers[name] = self._loop.call_later(self._limits.idle, self._expire, error)

    def _stop(self, name: str) -> None:
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()

    def _expire(self, error: CommError) -> None:
        self._fail(error)
        self._transport.abort()

    def pause_writing(self) -> None:
        self._room = self._loop.create_future()
        self._start("room", TooSlow(f"the receiver took nothing for {self._limits.idle:g} s"))

    def resume_writing(self) -> None:
        self._stop("room")
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def eof_received(self) -> None:
        """Close, as the other end has."""

    def connection_lost(self, error: Exception | None) -> None:
        self._end(PeerGone(str(error) if error is not None else "the connection was closed"))
        self._before.connection_lost(error)

    def _end(self, error: CommError) -> None:
        """End all that waits for the stream."""
        for name in list(self._timers):
            self._stop(name)
        self.resume_writing()
        if not self.ended.done():
            self.ended.set_result(None)
            self.lost(error)
