"""Listeners of services: they take few connections at a time, so that a crowd takes no files from the process."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from flowmx.comm.logs import http_log

__all__ = ["Listener", "listen"]

AT_ONCE = 16
"""Connections that are taken before the first of them has its place; asyncio's servers take a hundred or more."""
BACKLOG = 1024
PAUSE = 0.5
"""Seconds after which one tries again where the process has no more files."""
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Listener:
    """Takes connections.

    Args:
        sockets: that listen.
        make: the protocol of a new connection.
        tls: the service's certificates.
        handshake: seconds that a connection may take to agree on its encryption.
        most: of those that are about it.
    """

    def __init__(
        self, sockets: Sequence[socket.socket], make: Callable[[], asyncio.BaseProtocol], *,
        tls: ssl.SSLContext | None = None, handshake: float = 10.0, most: int = 512,
    ) -> None:  # fmt: skip
        self.sockets = list(sockets)
        self._make = make
        self._tls, self._handshake = tls, handshake if tls is not None else None
        self._most = most if tls is not None else AT_ONCE
        self._loop = asyncio.get_running_loop()
        self._pending: dict[asyncio.Task[None], None] = {}  # the longest there first
        self._is_open = True
        self._is_listening = False
        self._listen()

    def _listen(self) -> None:
        if self._is_open and not self._is_listening:
            self._is_listening = True
            for each in self.sockets:
                try:
                    self._loop.add_reader(each.fileno(), self._take, each)
                except NotImplementedError:  # Windows' event loop has no readers
                    self._keep(self._take_in_turn(each))

    def _pause(self) -> None:
        if self._is_listening:
            self._is_listening = False
            for each in self.sockets:
                self._loop.remove_reader(each.fileno())

    def _take(self, listening: socket.socket) -> None:
        for _ in range(AT_ONCE):
            if len(self._pending) >= self._most:
                self._make_room()
                return
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                http_log.warning("connections wait: %s", error.strerror)
                self._pause()
                self._loop.call_later(PAUSE, self._listen)
                return
            connection.setblocking(False)
            self._keep(self._connect(connection))

    async def _take_in_turn(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while self._is_open:
                connection, _ = await self._loop.sock_accept(listening)
                await self._connect(connection)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._pending[task] = None
        task.add_done_callback(self._connected)

    def _make_room(self) -> None:
        if self._tls is not None:
            next(iter(self._pending)).cancel()
        self._pause()

    def _connected(self, task: asyncio.Task[None]) -> None:
        del self._pending[task]
        self._listen()

    async def _connect(self, connection: socket.socket) -> None:
        if connection.family != getattr(socket, "AF_UNIX", None):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio knows TCP by its number alone
        try:
            await self._loop.connect_accepted_socket(
                self._make, connection, ssl=self._tls, ssl_handshake_timeout=self._handshake
            )
        except OSError as error:  # of TLS too
            http_log.info("a connection was not made: %s", error)
            connection.close()
        except BaseException:
            connection.close()
            raise

    async def close(self) -> None:
        """Take no more connections; those that were just taken have their protocols then, or are closed."""
        self._is_open = False
        self._pause()
        for each in self.sockets:
            each.close()
        if self._tls is not None:
            for task in self._pending:
                task.cancel()
        while self._pending:
            await asyncio.wait(list(self._pending))


async def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on an address of this machine, or on all those of a name.

    Raises:
        OSError: the address is taken, or not of this machine.
    """
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets = list[socket.socket]()
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            made = socket.create_server(address, family=family, backlog=BACKLOG)
            made.setblocking(False)
            sockets.append(made)
    except BaseException:
        for each in sockets:
            each.close()
        raise
    return sockets
