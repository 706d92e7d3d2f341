"""Streams: many small calls over one WebSocket connection, with responses in any order.

For a call by POST both sides create and parse HTTP heads, start a task, and use several iterations of the event loop.
This takes several times as long as a small call itself. A stream is opened once, with the checks of a request. Then a
call is one message, and so is its response. ``docs/wire.md`` describes the format. This module has the code that both
ends share: the connection, and its message authentication codes.
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

__all__ = ["ANSWER", "CALL", "CANCEL", "MAX_MESSAGE", "NONCE", "PART", "PREFIX", "PROTOCOL", "Stream", "StreamMac"]

PROTOCOL = "flowmx.1"
"""The WebSocket subprotocol of a stream."""
NONCE = "Flowmx-Nonce"
"""The header with the service's nonce."""
CALL, CANCEL = 1, 2
"""Kinds of messages to the service: a call, and its cancellation."""
ANSWER, PART = 1, 2
"""Kinds of messages from the service: a response or its last part, and an earlier part of a response."""
PREFIX = struct.Struct("<BI")
"""The beginning of each message: its kind, and the number of the call."""
MAX_MESSAGE = 1 << 20
"""Maximum size of a message in bytes."""
MAC_SIZE = 32

Buffer = bytes | memoryview


class StreamMac:
    """Message authentication codes of one direction of a stream.

    They detect messages that were changed, dropped, repeated or reordered.

    Args:
        security: the key is derived from its secret.
        sender: the end that sends the messages, ``"client"`` or ``"service"``.
        nonces: the nonces of the client and the service.
    """

    def __init__(self, security: Security, sender: str, nonces: Sequence[str]) -> None:
        self._initial_mac = hmac.new(security.stream_key(sender, *nonces), digestmod=hashlib.sha256)
        self._count = 0

    def sign(self, parts: Sequence[Buffer]) -> bytes:
        """Return the code of the next message."""
        mac = self._initial_mac.copy()
        mac.update(self._count.to_bytes(8, "little"))
        for part in parts:
            mac.update(part)
        self._count += 1
        return mac.digest()

    def verify(self, message: memoryview) -> memoryview:
        """Verify the code of the next message, and return the message without it.

        Raises:
            Unauthorized: the code is wrong.
        """
        body = message[:-MAC_SIZE]
        if len(message) < MAC_SIZE or not hmac.compare_digest(message[-MAC_SIZE:], self.sign([body])):
            raise Unauthorized(
                "the authentication code of a stream message is wrong: the message was changed in transit"
            )
        return body


class Stream(asyncio.Protocol):
    """One end of a stream: the protocol of a connection after its handshake.

    Args:
        transport: the connection's transport; its former protocol is notified when the connection is lost.
        limits: limits on messages and pauses.
        is_client: whether this is the client's end.
        macs: the codes of sent and of received messages; None if there is no secret.

    Attributes:
        ended: a future that is done when the connection is lost.
    """

    def __init__(
        self, transport: Any, limits: Limits, *, is_client: bool, macs: tuple[StreamMac, StreamMac] | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._former_protocol = transport.get_protocol()
        self._limits = limits
        self._is_client = is_client
        self._macs = macs
        self._partial = bytearray()  # the received part of an incomplete frame
        self._expected = 0  # the number of bytes that complete the frame, or at least its head
        self._writable: asyncio.Future[None] | None = None  # set while the other end does not read
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.ended: asyncio.Future[None] = self._loop.create_future()
        transport.set_protocol(self)

    def handle_message(self, message: memoryview) -> None:
        """Handle a message; its memory is valid only during this call.

        Raises:
            CommError: the message is not allowed; this ends the stream.
        """
        raise NotImplementedError

    def connection_ended(self, error: CommError) -> None:
        """Fail pending work; `error` is the reason for the end of the stream."""
        raise NotImplementedError

    @property
    def is_open(self) -> bool:
        """True while messages can be sent."""
        return not self.ended.done() and not self._transport.is_closing()

    def send(self, *parts: Buffer) -> None:
        """Send a message of at most `MAX_MESSAGE` bytes."""
        if self._transport.is_closing():
            return
        if self._macs is not None:
            parts = (*parts, self._macs[0].sign(parts))
        length = sum(map(len, parts))
        head = websocket.frame_head(websocket.BINARY, length, masked=self._is_client)
        self._transport.write(b"".join((head, *parts)))

    async def drain(self) -> None:
        """Wait until the other end has read most of the sent messages."""
        while self._writable is not None:
            await self._writable

    def close(self) -> None:
        """Close the stream; sent messages still arrive."""
        self._control(websocket.CLOSE, (1000).to_bytes(2, "big"))
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        if self._partial:
            self._partial += data
            if len(self._partial) < self._expected:
                return
            data, self._partial = bytes(self._partial), bytearray()
            self._stop_timer("partial")
        try:
            self._read(memoryview(data))
        except CommError as error:
            self._fail(error)

    def _read(self, data: memoryview) -> None:
        max_length = MAX_MESSAGE if self._macs is None else MAX_MESSAGE + MAC_SIZE
        while data and not self._transport.is_closing():
            head = websocket.read_head(data, masked=not self._is_client, max_length=max_length)
            end = len(data) + 1 if head is None else head.size + head.length
            if head is None or end > len(data):
                self._partial, self._expected = bytearray(data), end
                self._start_timer("partial", TooSlow(f"a message of the stream paused for {self._limits.idle:g} s"))
                return
            payload = websocket.unmask(data[head.size : end], head.mask)
            data = data[end:]
            if head.opcode == websocket.BINARY:
                self.handle_message(payload if self._macs is None else self._macs[1].verify(payload))
            elif head.opcode == websocket.PING:
                self._control(websocket.PONG, bytes(payload))
            elif head.opcode == websocket.CLOSE:
                self.close()

    def _control(self, opcode: int, payload: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(websocket.frame_head(opcode, len(payload), masked=self._is_client) + payload)

    def _fail(self, error: CommError) -> None:
        """End the stream because of an error of the other end."""
        text = str(error).encode()[:120].decode(errors="ignore").encode()
        code = 1008 if isinstance(error, Unauthorized | TooSlow) else 1002 if isinstance(error, WireError) else 1011
        self._control(websocket.CLOSE, code.to_bytes(2, "big") + text)
        self._transport.close()
        self._end(error)

    def _start_timer(self, name: str, error: CommError) -> None:
        self._timers[name] = self._loop.call_later(self._limits.idle, self._expire, error)

    def _stop_timer(self, name: str) -> None:
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()

    def _expire(self, error: CommError) -> None:
        self._fail(error)
        self._transport.abort()

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()
        self._start_timer("write", TooSlow(f"the receiver read nothing for {self._limits.idle:g} s"))

    def resume_writing(self) -> None:
        self._stop_timer("write")
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    def eof_received(self) -> None:
        """Close the connection after the other end has."""

    def connection_lost(self, error: Exception | None) -> None:
        self._end(PeerGone(str(error) if error is not None else "the connection was closed"))
        self._former_protocol.connection_lost(error)

    def _end(self, error: CommError) -> None:
        """Stop the timers and fail pending work."""
        for name in list(self._timers):
            self._stop_timer(name)
        self.resume_writing()
        if not self.ended.done():
            self.ended.set_result(None)
            self.connection_ended(error)
