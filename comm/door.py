"""The door of a service: protocols of connections, from the first byte of a stranger's to a request that is let in.

Nothing is made for a connection until the head of its first request is there and may be one of somebody who is let in:
that costs aiohttp's objects, a task and a timer each. What is not is refused with bytes that are ready beforehand, and
only so often in a second; until its turn a stranger is not read from, which keeps those busy who come again at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flowmx.comm.gate import Phase, Place
from flowmx.comm.heads import Head, look
from flowmx.comm.logs import http_log

if TYPE_CHECKING:
    from flowmx.comm.gate import Gate

__all__ = ["NO_ROOM", "Doorman", "answer"]

FIRST = 16 << 10
"""Bytes that are taken from a stranger at a time."""
LINGER = 2.0
"""Seconds for which a refused sender is read from, so that it gets to see why."""
WASTE = 256 << 10
"""Bytes that are read and thrown away then; a sender of more waits for its end."""

Make = Callable[[], asyncio.Protocol | None]
Vet = Callable[[bytes], bytes | None]


def answer(status: str, body: bytes = b"", **headers: str) -> bytes:
    """An answer of HTTP that ends its connection.

    Args:
        status: such as ``"503 Service Unavailable"``.
        body: of it.
        headers: with underscores for dashes.
    """
    fields = {"Connection": "close", "Content-Length": str(len(body)), **headers}
    lines = (f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status}\r\n{''.join(lines)}\r\n".encode() + body


NO_ROOM = answer("503 Service Unavailable", Retry_After="1")
_NO_HTTP = answer(
    "400 Bad Request",
    b"This is no request of HTTP/1.1, or its head is too long, or at odds with itself.\n",
    Content_Type="text/plain",
)


class Doorman(asyncio.BufferedProtocol):
    """The protocol of a connection until the head of its first request is there.

    Args:
        gate: whose connections these are.
        make: makes the protocol of one that is let in; None where no more are.
        vet: the answer to a whole head that is refused; None: it is let in.
    """

    def __init__(self, gate: Gate, make: Make, vet: Vet | None) -> None:
        self._gate, self._make, self._vet = gate, make, vet
        self._place: Place | None = None
        self._transport: Any = None
        self._data = bytearray()
        self._room = memoryview(b"")
        self._is_refused = False
        self._wasted = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # not of a type of asyncio's where the loop is uvloop's
        self._place = self._gate.enter(self, transport)
        if self._place is None:
            self._refuse(NO_ROOM)

    def close(self) -> None:
        """Close the connection."""
        self._transport.abort()

    def get_buffer(self, hint: int) -> memoryview:
        self._room = self._gate.waste if self._is_refused else memoryview(bytearray(FIRST))
        return self._room

    def buffer_updated(self, count: int) -> None:
        if self._is_refused:
            self._wasted += count
            if self._wasted > WASTE:
                self._transport.pause_reading()
            return
        if self._place is not None and self._place.begun is None:
            self._place.begun = asyncio.get_running_loop().time()
        self._data += self._room[:count]
        self._look()

    def _look(self) -> None:
        found = look(self._data)
        if found is Head.PART:
            return
        data = bytes(self._data)
        if found is Head.NONE:
            self._refuse_in_turn(_NO_HTTP, "no HTTP")
        elif self._vet is not None and (refusal := self._vet(data)) is not None:
            self._refuse_in_turn(refusal, "nobody who is known here")
        else:
            self._let_in(data)

    def _let_in(self, data: bytes) -> None:
        inner, place = self._make(), self._place
        if inner is None or place is None:
            self._refuse(NO_ROOM)
            return
        self._gate.pass_on(self)
        guarded = _Guarded(self._gate, place, inner, self._transport)
        self._transport.set_protocol(guarded)
        inner.connection_made(self._transport)
        guarded.data_received(data)

    def _refuse_in_turn(self, refusal: bytes, why: str) -> None:
        loop = asyncio.get_running_loop()
        place = self._place
        http_log.warning("strangers were refused, the last one at %s: %s", place.address if place else "?", why)
        seconds = self._gate.turns.take(loop.time())
        self._is_refused = True
        if seconds:
            self._transport.pause_reading()
            self._timer = loop.call_later(seconds, self._refuse, refusal)
        else:
            self._refuse(refusal)

    def _refuse(self, refusal: bytes) -> None:
        self._is_refused = True
        self._data.clear()
        out = self._transport
        if out.is_closing():
            return
        out.write(refusal)
        try:
            if out.can_write_eof():
                out.write_eof()
        except OSError:  # it has gone meanwhile
            out.abort()
            return
        out.resume_reading()
        self._timer = asyncio.get_running_loop().call_later(LINGER, out.abort)

    def eof_received(self) -> None:
        """Close, as the peer has."""

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._place is not None:
            self._gate.pass_on(self)
            self._gate.leave(self._transport, self._place)


class _Guarded(asyncio.Protocol):
    """The protocol of a connection that was let in: aiohttp's, with its place."""

    __slots__ = ("_gate", "_inner", "_place", "_transport")

    def __init__(self, gate: Gate, place: Place, inner: asyncio.Protocol, transport: Any) -> None:
        self._gate, self._place, self._inner, self._transport = gate, place, inner, transport

    def data_received(self, data: bytes) -> None:
        place, inner = self._place, self._inner
        if place.begun is None and place.phase is Phase.WAITING:
            place.begun = asyncio.get_running_loop().time()
        inner.data_received(data)
        if messages := getattr(inner, "_messages", None):
            _forget_frames(getattr(messages[-1][0], "exc", None))

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._gate.leave(self._transport, self._place)
        self._inner.connection_lost(error)


def _forget_frames(error: BaseException | None) -> None:
    """Drop the traceback of an error that aiohttp's parser raised, and keeps until it is answered.

    Its frames have all that came in, up to 256 KB, in a circle with the connection: both stayed until Python looked for
    circles among old objects, which a quiet process does rarely.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
