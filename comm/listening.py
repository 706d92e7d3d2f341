"""Listeners of services; they accept few connections at a time, so that clients cannot exhaust the file descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence

from flowmx.comm.logs import http_log

__all__ = ["Listener", "listen"]

ACCEPT_LIMIT = 16
"""Connections that are accepted before the first of them is set up; asyncio's servers accept 100 or more."""
BACKLOG = 1024
SHARED_DELAY = 0.001
"""Seconds after each connection in which other processes on the same sockets accept the next one."""
RETRY_DELAY = 0.5
"""Seconds until the next attempt if the process has no free file descriptors."""
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Listener:
    """Accepts connections.

    Args:
        sockets: listening sockets.
        make_protocol: returns the protocol of a new connection.
        tls: the service's certificates.
        handshake: seconds that a TLS handshake may take.
        max_pending: the maximum number of concurrent TLS handshakes.
        is_shared: whether other processes accept on the sockets, too: connections are then accepted one at a time.
    """

    def __init__(
        self, sockets: Sequence[socket.socket], make_protocol: Callable[[], asyncio.BaseProtocol], *,
        tls: ssl.SSLContext | None = None, handshake: float = 10.0, max_pending: int = 512,
        is_shared: bool = False,
    ) -> None:  # fmt: skip
        self.sockets = list(sockets)
        self._burst = 1 if is_shared else ACCEPT_LIMIT
        self._make_protocol = make_protocol
        self._tls, self._handshake = tls, handshake if tls is not None else None
        self._max_pending = max_pending if tls is not None else ACCEPT_LIMIT
        self._loop = asyncio.get_running_loop()
        self._pending: dict[asyncio.Task[None], None] = {}  # oldest first
        self._is_open = True
        self._is_listening = False
        self._is_waiting = False
        self._listen()

    def _listen(self) -> None:
        if self._is_open and not self._is_listening and not self._is_waiting:
            self._is_listening = True
            for sock in self.sockets:
                try:
                    self._loop.add_reader(sock.fileno(), self._accept, sock)
                except NotImplementedError:  # Windows' event loop has no readers
                    self._start_task(self._accept_in_order(sock))

    def _pause(self) -> None:
        if self._is_listening:
            self._is_listening = False
            for sock in self.sockets:
                self._loop.remove_reader(sock.fileno())

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(self._burst):
            if len(self._pending) >= self._max_pending:
                self._free_slot()
                return
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                http_log.warning("new connections are not accepted for a moment: %s", error.strerror)
                self._pause()
                self._loop.call_later(RETRY_DELAY, self._listen)
                return
            connection.setblocking(False)
            self._start_task(self._connect(connection))
        if self._burst == 1:
            self._pause()
            self._is_waiting = True
            self._loop.call_later(SHARED_DELAY, self._resume)

    def _resume(self) -> None:
        self._is_waiting = False
        self._listen()

    async def _accept_in_order(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the socket was closed
            while self._is_open:
                connection, _ = await self._loop.sock_accept(listening)
                await self._connect(connection)

    def _start_task(self, work: Coroutine[object, object, None]) -> None:
        task = self._loop.create_task(work)
        self._pending[task] = None
        task.add_done_callback(self._remove_pending)

    def _free_slot(self) -> None:
        if self._tls is not None:
            next(iter(self._pending)).cancel()
        self._pause()

    def _remove_pending(self, task: asyncio.Task[None]) -> None:
        del self._pending[task]
        self._listen()

    async def _connect(self, connection: socket.socket) -> None:
        if connection.family != getattr(socket, "AF_UNIX", None):
            # asyncio sets it only on sockets with IPPROTO_TCP.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await self._loop.connect_accepted_socket(
                self._make_protocol, connection, ssl=self._tls, ssl_handshake_timeout=self._handshake
            )
        except OSError as error:  # including failed TLS handshakes
            http_log.info("a connection could not be set up: %s", error)
            connection.close()
        except BaseException:  # cleanup, also when interrupted
            connection.close()
            raise

    async def close(self) -> None:
        """Accept no more connections; wait until the pending ones have their protocols or are closed."""
        self._is_open = False
        self._pause()
        for sock in self.sockets:
            sock.close()
        if self._tls is not None:
            for task in self._pending:
                task.cancel()
        while self._pending:
            await asyncio.wait(list(self._pending))


async def listen(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen on an address of this machine, or on all addresses of a name.

    Raises:
        OSError: the address is in use, or does not belong to this machine.
    """
    try:
        infos = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as error:
        text = f"the host is {host!r}, expected an address or name of this machine, such as 127.0.0.1 or 0.0.0.0"
        raise socket.gaierror(error.errno, f"{text} ({error.strerror})") from None
    sockets = list[socket.socket]()
    try:
        for family, _, _, _, address in dict.fromkeys(infos):
            sock = _bound(address, family)
            sock.setblocking(False)
            sockets.append(sock)
    except BaseException:  # cleanup, also when interrupted
        for sock in sockets:
            sock.close()
        raise
    return sockets


def _bound(address: tuple[object, ...], family: int) -> socket.socket:
    """Return a socket that listens on an address."""
    try:
        return socket.create_server(address, family=family, backlog=BACKLOG)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        text = f"{address[0]}:{address[1]} is in use: choose another port, or 0 for a free one"
        raise OSError(errno.EADDRINUSE, text) from None
