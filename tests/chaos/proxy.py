"""A proxy for HTTP that does to a node's connections what networks do: delays, cuts, splits, holds back, repeats.

Requests of different connections overtake each other where they are delayed by different times. A repeated request is
one that was recorded and comes again, whole, on another connection, when the first may have been answered long ago.
The calls of a stream are requests too, but they share its fate, and stay in their order.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass

from flowmx.comm.stream import CALL, PREFIX
from flowmx.comm.transfer import CONTENT_TYPE
from flowmx.comm.websocket import BINARY

__all__ = ["Proxy", "Weather"]

CHUNK = 1 << 16


@dataclass(frozen=True)
class Weather:
    """Probabilities of network faults, for each request.

    Args:
        delayed: the part of the requests that are delayed, and of the answers.
        most: seconds that a delay may take.
        cut: the part of the requests whose connection breaks in the middle of the request.
        deaf: the part whose connection breaks when the answer comes: what was asked is done, and nobody hears of it.
        repeated: the part that comes again later.
        split: the part that is sent in small pieces.
        later: seconds after which a request may come again.
    """

    delayed: float = 0.0
    most: float = 0.1
    cut: float = 0.0
    deaf: float = 0.0
    repeated: float = 0.0
    split: float = 0.0
    later: tuple[float, ...] = (0.0, 0.05, 0.5, 2.0)


class Proxy:
    """Stands before one node.

    Args:
        port: where the node listens, now or later.
        weather: what happens to requests.
        seed: of the random numbers.
        heard: is called with the operation of each request that comes.

    Attributes:
        address: where it listens.
        counts: how often what has happened.
    """

    def __init__(
        self, port: int, weather: Weather, seed: int = 0, heard: Callable[[str], object] = lambda operation: None
    ) -> None:
        self.port = port
        self.weather = weather
        self.address = ""
        self.counts = {"requests": 0, "delayed": 0, "cut": 0, "deaf": 0, "repeated": 0, "split": 0, "refused again": 0}
        self._random = random.Random(seed)
        self._heard = heard
        self._open = asyncio.Event()
        self._open.set()
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        """Listen; return the address."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self.address

    async def close(self) -> None:
        """End everything."""
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Break all connections that there are."""
        for connection in list(self._connections):
            connection.abort()

    def hold(self) -> None:
        """Let nothing through, neither here nor there, until :meth:`release`."""
        self._open.clear()

    def release(self) -> None:
        """Let through what was held back."""
        self._open.set()

    def swallow(self) -> None:
        """Never let anything through any more on the connections that there are; new ones work."""
        for connection in self._connections:
            connection.swallows = True

    def happens(self, what: str, share: float) -> bool:
        """Draw whether a fault with this probability happens now, and count it."""
        found = self._random.random() < share
        self.counts[what] += found
        return found

    async def pause(self) -> None:
        """Wait as long as what comes now is delayed, and while everything is held back."""
        if self.happens("delayed", self.weather.delayed):
            await asyncio.sleep(self._random.uniform(0, self.weather.most))
        await self._open.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            try:
                upstream = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                writer.transport.abort()
                return
            connection = _Connection(self, reader, writer, *upstream)
            self._connections.add(connection)
            try:
                await connection.run()
            finally:
                self._connections.discard(connection)
                connection.abort()

    def repeat(self, request: bytes) -> None:
        """Let a request come again, later."""
        task = asyncio.create_task(self._repeat(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _repeat(self, request: bytes) -> None:
        await asyncio.sleep(self._random.choice(self.weather.later))
        await self._open.wait()
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                writer.write(request)
                status = await reader.readuntil(b"\r\n")
                self.counts["refused again"] += b" 200 " not in status
            finally:
                writer.transport.abort()

    def take(self, request: bytes) -> None:
        """A request has come."""
        self.counts["requests"] += 1
        self._heard(request.partition(b" HTTP/")[0].rpartition(b"/")[2].decode())

    def pieces(self, request: bytes) -> list[bytes]:
        """The pieces in which a request is sent: usually one."""
        if not self.happens("split", self.weather.split):
            return [request]
        cuts = sorted(self._random.randrange(len(request)) for _ in range(4))
        return [request[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(request)], strict=True)]


class _Connection:
    """One connection through the proxy."""

    def __init__(
        self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
        upper: asyncio.StreamReader, lower: asyncio.StreamWriter,
    ) -> None:  # fmt: skip
        self._proxy = proxy
        self._reader, self._writer = reader, writer
        self._upper, self._lower = upper, lower
        self._deaf = False
        self.swallows = False

    def abort(self) -> None:
        self._writer.transport.abort()
        self._lower.transport.abort()

    async def run(self) -> None:
        """Carry both directions until one ends."""
        tasks = {asyncio.create_task(self._requests()), asyncio.create_task(self._answers())}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _requests(self) -> None:
        proxy, is_stream = self._proxy, False
        while request := await (_message if is_stream else _request)(self._reader):
            posted = _as_request(request) if is_stream else request
            is_stream = is_stream or b"Upgrade: websocket\r\n" in request
            if posted:
                proxy.take(posted)
            await proxy.pause()
            if posted and proxy.happens("repeated", proxy.weather.repeated):
                proxy.repeat(posted)
            if proxy.happens("cut", proxy.weather.cut):
                self._lower.write(request[: len(request) // 2])
                return
            self._deaf = proxy.happens("deaf", proxy.weather.deaf)
            for piece in proxy.pieces(request):
                if not self.swallows:
                    self._lower.write(piece)
                await asyncio.sleep(0)
            await self._lower.drain()

    async def _answers(self) -> None:
        while data := await self._upper.read(CHUNK):
            await self._proxy.pause()
            if self._deaf:
                return
            if not self.swallows:
                self._writer.write(data)
                await self._writer.drain()
        while self.swallows:  # not even its end is heard of
            await asyncio.Event().wait()


async def _request(reader: asyncio.StreamReader) -> bytes:
    """A whole request, or nothing at the end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
    length = 0
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return head + await reader.readexactly(length)


async def _message(reader: asyncio.StreamReader) -> bytes:
    """A whole frame of a client's WebSocket, or nothing at the end."""
    try:
        head = await reader.readexactly(2)
    except asyncio.IncompleteReadError:
        return b""
    length, more = head[1] & 0x7F, b""
    if length > 125:
        more = await reader.readexactly(2 if length == 126 else 8)
        length = int.from_bytes(more, "big")
    return head + more + await reader.readexactly(4 + length)


def _as_request(message: bytes) -> bytes:
    """A call of a stream as a request of its own, without a signature; nothing of what is no call."""
    length = message[1] & 0x7F
    payload = message[{126: 8, 127: 14}.get(length, 6) :]  # the client's masks are zeros
    if message[0] & 0xF != BINARY or payload[:1] != bytes([CALL]):
        return b""
    size = payload[PREFIX.size]
    name, frame = payload[PREFIX.size + 1 :][:size].decode(), payload[PREFIX.size + 1 + size :]
    head = f"POST /v1/{name} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {CONTENT_TYPE}\r\n"
    return f"{head}Content-Length: {len(frame)}\r\n\r\n".encode() + frame
