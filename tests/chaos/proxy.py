"""An HTTP proxy that imitates a faulty network: it delays, cuts, splits, holds back and repeats requests.

Requests of different connections overtake each other if their delays differ. A repeated request is a copy that is sent
on another connection, possibly long after the first was answered. The calls of a stream are requests too, but they stay
in order, and a fault of one breaks the stream.
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

__all__ = ["NetworkFaults", "Proxy"]

CHUNK = 1 << 16


@dataclass(frozen=True)
class NetworkFaults:
    """Probabilities of network faults, for each request.

    Args:
        delay: a request or an answer is delayed.
        max_delay: the longest delay in seconds.
        cut_request: the connection breaks in the middle of the request.
        cut_answer: the connection breaks before the answer arrives: the request was executed, and the sender does not
            know it.
        repeat: a request is sent again.
        split: a request is sent in small pieces.
        repeat_delays: the possible delays in seconds of a repeated request.
    """

    delay: float = 0.0
    max_delay: float = 0.1
    cut_request: float = 0.0
    cut_answer: float = 0.0
    repeat: float = 0.0
    split: float = 0.0
    repeat_delays: tuple[float, ...] = (0.0, 0.05, 0.5, 2.0)


class Proxy:
    """A proxy in front of one node.

    Args:
        port: the node's port; the node may start later.
        faults: the probabilities of faults.
        seed: the seed of the random numbers.
        on_request: called with the operation of each request.

    Attributes:
        address: the URL of the proxy.
        counts: the number of requests, of each fault, and of repeated requests that the node refused.
    """

    def __init__(
        self,
        port: int,
        faults: NetworkFaults,
        seed: int = 0,
        on_request: Callable[[str], object] = lambda operation: None,
    ) -> None:
        self.port = port
        self.faults = faults
        self.address = ""
        self.counts = dict.fromkeys(
            ("requests", "delay", "cut request", "cut answer", "repeat", "split", "refused repeats"), 0
        )
        self._random = random.Random(seed)
        self._on_request = on_request
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
        """Stop listening, and close all connections."""
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Close all existing connections."""
        for connection in list(self._connections):
            connection.abort()

    def hold(self) -> None:
        """Block both directions until :meth:`release`."""
        self._open.clear()

    def release(self) -> None:
        """Forward the bytes that were held back."""
        self._open.set()

    def swallow(self) -> None:
        """Block the existing connections for good; new ones work."""
        for connection in self._connections:
            connection.swallows = True

    def draw(self, fault: str, probability: float) -> bool:
        """Draw whether a fault happens now, and count it if it does."""
        happens = self._random.random() < probability
        self.counts[fault] += happens
        return happens

    async def pause(self) -> None:
        """Wait for a random delay, if one is drawn, and while the proxy is on hold."""
        if self.draw("delay", self.faults.delay):
            await asyncio.sleep(self._random.uniform(0, self.faults.max_delay))
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
        """Repeat a request after a random delay."""
        task = asyncio.create_task(self._repeat(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _repeat(self, request: bytes) -> None:
        await asyncio.sleep(self._random.choice(self.faults.repeat_delays))
        await self._open.wait()
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                writer.write(request)
                status = await reader.readuntil(b"\r\n")
                self.counts["refused repeats"] += b" 200 " not in status
            finally:
                writer.transport.abort()

    def record_request(self, request: bytes) -> None:
        """Count a request, and report its operation."""
        self.counts["requests"] += 1
        self._on_request(request.partition(b" HTTP/")[0].rpartition(b"/")[2].decode())

    def split(self, request: bytes) -> list[bytes]:
        """Return the pieces in which a request is sent: usually one."""
        if not self.draw("split", self.faults.split):
            return [request]
        cuts = sorted(self._random.randrange(len(request)) for _ in range(4))
        return [request[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(request)], strict=True)]


class _Connection:
    """One connection through the proxy."""

    def __init__(
        self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
        node_reader: asyncio.StreamReader, node_writer: asyncio.StreamWriter,
    ) -> None:  # fmt: skip
        self._proxy = proxy
        self._reader, self._writer = reader, writer
        self._node_reader, self._node_writer = node_reader, node_writer
        self._cuts_answer = False
        self.swallows = False

    def abort(self) -> None:
        self._writer.transport.abort()
        self._node_writer.transport.abort()

    async def run(self) -> None:
        """Forward both directions until one ends."""
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
                proxy.record_request(posted)
            await proxy.pause()
            if posted and proxy.draw("repeat", proxy.faults.repeat):
                proxy.repeat(posted)
            if proxy.draw("cut request", proxy.faults.cut_request):
                self._node_writer.write(request[: len(request) // 2])
                return
            self._cuts_answer = proxy.draw("cut answer", proxy.faults.cut_answer)
            for piece in proxy.split(request):
                if not self.swallows:
                    self._node_writer.write(piece)
                await asyncio.sleep(0)
            await self._node_writer.drain()

    async def _answers(self) -> None:
        while data := await self._node_reader.read(CHUNK):
            await self._proxy.pause()
            if self._cuts_answer:
                return
            if not self.swallows:
                self._writer.write(data)
                await self._writer.drain()
        while self.swallows:  # the client does not even see the end of the connection
            await asyncio.Event().wait()


async def _request(reader: asyncio.StreamReader) -> bytes:
    """Read a whole request; return no bytes at the end of the connection."""
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
    """Read a whole WebSocket frame of a client; return no bytes at the end of the connection."""
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
    """Return a stream's call as a separate, unsigned request; return no bytes if the message is not a call."""
    length = message[1] & 0x7F
    payload = message[{126: 8, 127: 14}.get(length, 6) :]  # the client's masks are zeros
    if message[0] & 0xF != BINARY or payload[:1] != bytes([CALL]):
        return b""
    size = payload[PREFIX.size]
    name, frame = payload[PREFIX.size + 1 :][:size].decode(), payload[PREFIX.size + 1 + size :]
    head = f"POST /v1/{name} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {CONTENT_TYPE}\r\n"
    return f"{head}Content-Length: {len(frame)}\r\n\r\n".encode() + frame
