"""A network in memory: sockets and transports between simulated processes, over links with faults.

It stands where the operating system does: aiohttp and ``flowmx.comm`` use its sockets and transports as real ones.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import random
import socket
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.world.processes import CURRENT, Process

if TYPE_CHECKING:
    from tests.world.loop import Loop

__all__ = ["Link", "Network", "Socket"]

WINDOW = 256 << 10
"""Bytes that are sent before the receiver reads them."""
HIGH = 64 << 10
"""Bytes that wait for the window before the sender is asked to pause."""
SEGMENT = 64 << 10
RETRANSMISSION = 1.0
"""The longest time until lost segments arrive once a link works again, in seconds."""

Address = tuple[str, int]


@dataclass
class Link:
    """One direction between two machines.

    Attributes:
        delay: the delay of a segment, in seconds.
        jitter: the longest additional delay.
        rate: bytes per second.
        split: the probability that a write arrives in pieces.
        is_cut: whether segments are lost; they are sent again when the link works.
    """

    delay: float = 1e-4
    jitter: float = 2e-4
    rate: float = 1e9
    split: float = 0.0
    is_cut: bool = False


class Socket:
    """A socket: a listening one, or one end of a connection."""

    family, type, proto = socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP

    def __init__(self, network: Network, process: Process, name: Address, peer: Address | None = None) -> None:
        self.network, self.process, self.name, self.peer = network, process, name, peer
        self.number = next(network.numbers)
        self.backlog: deque[Socket] = deque()
        self.end: End | None = None
        self.is_open = True

    def fileno(self) -> int:
        return self.number if self.is_open else -1

    def getsockname(self) -> Address:
        return self.name

    def getpeername(self) -> Address | None:
        return self.peer

    def setblocking(self, flag: bool) -> None:
        """Do nothing: no call of a socket blocks."""

    def setsockopt(self, *_: Any) -> None:
        """Do nothing: there are no options."""

    def getsockopt(self, *_: Any) -> int:
        return 0

    def accept(self) -> tuple[Socket, Address | None]:
        if not self.backlog:
            raise BlockingIOError(errno.EAGAIN, "no connection is waiting")
        connection = self.backlog.popleft()
        return connection, connection.peer

    def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self.network.forget(self)
        if self.end is not None:
            self.end.close_socket()
        for waiting in self.backlog:
            waiting.close()


class End(asyncio.Transport):
    """One end of a connection.

    Args:
        network: the network.
        sock: the socket of this end.
    """

    def __init__(self, network: Network, sock: Socket) -> None:
        super().__init__({"socket": sock, "sockname": sock.name, "peername": sock.peer})
        self.network, self.sock, self.process = network, sock, sock.process
        self.other: End
        self.link: Link
        self._protocol: Any = None
        self._buffer = bytearray()
        self._received = bytearray()
        self._unread = 0  # bytes that the other end has not read
        self._arrival = 0.0
        self._in_flight: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._has_eof = self._is_closing = self._is_closed = self._is_paused = self._is_full = False
        self._sent_eof = False

    # -- the interface of a transport ------------------------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        if self._received:
            self._soon(self._feed)

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def is_closing(self) -> bool:
        return self._is_closing or self._is_closed

    def is_reading(self) -> bool:
        return not self._is_paused and not self.is_closing()

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        if self._is_paused and not self.is_closing():
            self._is_paused = False
            self._soon(self._feed)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.is_closing() or self._sent_eof or not data:
            return
        self._buffer += data
        self._pump()
        if len(self._buffer) > HIGH and not self._is_full:
            self._is_full = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._sent_eof and not self.is_closing():
            self._sent_eof = True
            self._pump()

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return HIGH // 4, HIGH

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: the limits are fixed."""

    def close(self) -> None:
        if not self.is_closing():
            self._is_closing = True
            self._pump()

    def abort(self) -> None:
        if not self._is_closed:
            self._send(End._reset, ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), to_other=True)
            self._finish(None)

    # -- sending ---------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send as much as the window allows, then the end of the stream if this end is closing."""
        while self._buffer and self._unread < WINDOW and not self._is_closed:
            size = min(len(self._buffer), SEGMENT)
            if size > 1 and self.network.random.random() < self.link.split:
                size = self.network.random.randint(1, size - 1)
            data = bytes(self._buffer[:size])
            del self._buffer[:size]
            self._unread += size
            self._send(End._receive, data, to_other=True)
        if self._is_full and len(self._buffer) <= HIGH // 4:
            self._is_full = False
            self._protocol.resume_writing()
        if not self._buffer and not self._is_closed:
            if (self._is_closing or self._sent_eof) and not self._has_eof:
                self._has_eof = True
                self._send(End._receive_eof, to_other=True)
            if self._is_closing:
                self._finish(None)

    def _send(self, event: Callable[..., None], *arguments: Any, to_other: bool) -> None:
        """Schedule an event at the other end after the delay of the link, in the order of sending."""
        now, random = self.network.loop.time(), self.network.random
        nbytes = len(arguments[0]) if arguments and isinstance(arguments[0], bytes) else 40
        start = max(now, self._arrival)
        self._arrival = max(start + nbytes / self.link.rate, now + self.link.delay + random.random() * self.link.jitter)
        self._in_flight.append((event, arguments))
        self.network.loop.call_at(self._arrival, self._deliver, context=self.other.process.context)

    def _deliver(self) -> None:
        """Deliver the next event at the other end, or keep it if the link is cut."""
        if self._in_flight and not self.link.is_cut:
            event, arguments = self._in_flight.popleft()
            event(self.other, *arguments)

    def retransmit(self) -> None:
        """Deliver what a cut has kept."""
        loop = self.network.loop
        when = self._arrival = max(self._arrival, loop.time() + self.network.random.random() * RETRANSMISSION)
        for _ in self._in_flight:
            loop.call_at(when, self._deliver, context=self.other.process.context)

    # -- receiving -------------------------------------------------------------------------------------

    def _receive(self, data: bytes) -> None:
        if self._is_closed or self._is_closing:
            self.other._unread -= len(data)
            if self._is_closed:
                self._send(
                    End._reset, ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), to_other=True
                )
            return
        self._received += data
        self._feed()

    def _feed(self) -> None:
        """Pass received bytes to the protocol while it reads."""
        while self._received and self._protocol is not None and self.is_reading():
            if isinstance(self._protocol, asyncio.BufferedProtocol):
                buffer = memoryview(self._protocol.get_buffer(len(self._received)))
                count = min(len(buffer), len(self._received))
                buffer[:count] = self._received[:count]
                del self._received[:count]
                self._protocol.buffer_updated(count)
            else:
                data, self._received = bytes(self._received), bytearray()
                count = len(data)
                self._protocol.data_received(data)
            self._acknowledge(count)
        if self._eof_waits and not self._received and self._protocol is not None and self.is_reading():
            self._eof_waits = False
            if not self._protocol.eof_received():
                self.close()

    _eof_waits = False

    def _receive_eof(self) -> None:
        if not self.is_closing():
            self._eof_waits = True
            self._feed()

    def _acknowledge(self, count: int) -> None:
        other = self.other
        other._unread -= count
        if other._buffer and not other._is_closed:
            loop = self.network.loop
            loop.call_later(self.link.delay, other._pump, context=other.process.context)

    def _reset(self, error: OSError) -> None:
        if not self._is_closed:
            self._finish(error)

    def _finish(self, error: OSError | None) -> None:
        self._is_closed = True
        self._buffer.clear()
        self.network.ends.pop(self, None)
        if self._protocol is not None:
            self._soon(self._protocol_lost, error)
        self.sock.is_open = False

    def _protocol_lost(self, error: OSError | None) -> None:
        self._protocol.connection_lost(error)

    def close_socket(self) -> None:
        """Close the connection as the system does when its process ends."""
        if self._is_closed or self._has_eof:
            return
        self._is_closed = True
        self.network.ends.pop(self, None)
        if self._received or self.network.random.random() < 0.5:
            self._send(End._reset, ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), to_other=True)
        else:
            self._send(End._receive_eof, to_other=True)

    def _soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        self.network.loop.call_soon(callback, *arguments, context=self.process.context)


class Network:
    """The machines' network.

    Args:
        loop: the loop of the world.
        seed: determines delays.

    Attributes:
        links: the links, by the addresses of both machines; `default` is the model of a new one.
        ends: the open ends of connections.
    """

    def __init__(self, loop: Loop, seed: object) -> None:
        self.loop, self.random = loop, random.Random(f"{seed} network")
        self.default = Link()
        self.links: dict[tuple[str, str], Link] = {}
        self.numbers = itertools.count(10_000)
        self.ends: dict[End, None] = {}
        self._ports = itertools.count(40_000)
        self._listening: dict[Address, Socket] = {}
        self._connecting: dict[tuple[str, str], list[asyncio.Future[None]]] = defaultdict(list)
        loop.network = self

    def link(self, source: str, target: str) -> Link:
        """Return the link from one machine to another."""
        model = self.default
        return self.links.setdefault(
            (source, target), Link(model.delay, model.jitter, model.rate, model.split, model.is_cut)
        )

    def cut(self, source: str, target: str) -> None:
        """Lose what one machine sends to another."""
        self.link(source, target).is_cut = True

    def heal(self, source: str, target: str) -> None:
        """End a cut."""
        self.link(source, target).is_cut = False
        for end in list(self.ends):
            if (end.sock.process.host, end.other.process.host) == (source, target):
                end.retransmit()
        for waiting in self._connecting.pop((source, target), []):
            if not waiting.done():
                waiting.set_result(None)

    def reset(self, source: str, target: str) -> None:
        """Reset all connections between two machines."""
        for end in list(self.ends):
            if (end.process.host, end.other.process.host) == (source, target):
                end._soon(end._reset, ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
                end.other._soon(end.other._reset, ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    # -- sockets ---------------------------------------------------------------------------------------

    def listen(self, address: Address) -> Socket:
        """Return a listening socket of the current process.

        Raises:
            OSError: the address is in use.
        """
        process = CURRENT.get()
        name = (address[0], address[1] or next(self._ports))
        if name in self._listening:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        sock = self._listening[name] = Socket(self, process, name)
        process.at_end.append(sock.close)
        return sock

    def forget(self, sock: Socket) -> None:
        """Drop a closed socket."""
        if self._listening.get(sock.name) is sock:
            del self._listening[sock.name]

    def poll(self, number: int) -> None:
        """Notify the reader of a socket for which connections wait."""
        for sock in self._listening.values():
            if sock.number == number and sock.backlog:
                self.loop.notify_reader(number)

    async def connect(self, address: Address) -> Socket:
        """Open a connection from the current process.

        Raises:
            ConnectionRefusedError: nothing listens there.
        """
        process = CURRENT.get()
        there, back = self.link(process.host, address[0]), self.link(address[0], process.host)
        await self._pass(there, process.host, address[0])
        listening = self._listening.get(address)
        client = Socket(self, process, (process.host, next(self._ports)), address)
        if listening is not None:
            self._establish(client, listening)
        await self._pass(back, address[0], process.host)
        if listening is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"Connect call failed {address}")
        return client

    async def _pass(self, link: Link, source: str, target: str) -> None:
        """Wait until a segment has passed a link."""
        while link.is_cut:
            waiting = self.loop.create_future()
            self._connecting[source, target].append(waiting)
            await waiting
        await asyncio.sleep(link.delay + self.random.random() * link.jitter)

    def _establish(self, client: Socket, listening: Socket) -> None:
        server = Socket(self, listening.process, listening.name, client.name)
        near, far = client.end, server.end = End(self, client), End(self, server)
        near.other, far.other = far, near
        near.link = self.link(client.process.host, server.process.host)
        far.link = self.link(server.process.host, client.process.host)
        for end in (near, far):
            self.ends[end] = None
            end.process.at_end.append(end.close_socket)
        listening.backlog.append(server)
        self.loop.notify_reader(listening.number)

    async def attach(self, sock: Socket, make_protocol: Callable[[], Any]) -> tuple[End, Any]:
        """Attach a protocol to a connection, as an event loop does."""
        end = sock.end
        assert end is not None
        protocol = make_protocol()
        attached = self.loop.create_future()

        def attach() -> None:
            end._protocol = protocol
            protocol.connection_made(end)
            if end._is_closed:
                end._protocol_lost(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
            else:
                end._feed()
            if not attached.done():
                attached.set_result(None)

        self.loop.call_soon(attach)
        await attached
        return end, protocol
