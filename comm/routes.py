"""Routes to a service: TCP, or a unix socket and shared memory if it is on this machine."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

import aiohttp
from aiohttp import hdrs
from yarl import URL

from flowmx.comm import shared_memory
from flowmx.comm.call import KEEP_ALIVE, Call, ClientConfig, Route
from flowmx.comm.errors import CommError, Refused
from flowmx.comm.frames import Message
from flowmx.comm.shared_memory import Segments
from flowmx.comm.stream_client import open_stream
from flowmx.comm.transfer import READ_AHEAD

__all__ = ["Routes"]

log = logging.getLogger("flowmx.comm")


class Routes:
    """The routes to a service: always TCP, and a local one if the service is on this machine.

    Args:
        config: the client's settings.
        allow_local: whether to look for a local route.
        streams: whether small calls may use streams.
    """

    def __init__(self, config: ClientConfig, allow_local: bool, streams: bool) -> None:
        self._config = config
        self._open_stream = partial(open_stream, config) if streams else None
        self._tcp: Route | None = None
        self._local: Route | None = None
        self._search_local = allow_local and shared_memory.AVAILABLE
        self._search_lock = asyncio.Lock()

    @property
    def is_local(self) -> bool:
        """True if the service shares memory with this process."""
        return self._local is not None

    @property
    def is_streaming(self) -> bool:
        """True while a stream is open."""
        return any(route is not None and route.has_stream for route in (self._tcp, self._local))

    def process(self) -> shared_memory.PeerProcess | None:
        """Return the service's process if it is on this machine and a stream to it is open, or None."""
        return None if self._local is None else self._local.process()

    async def best(self) -> Route:
        """Return the fastest available route."""
        if self._search_local:
            async with self._search_lock:
                if self._search_local:
                    self._local = await self._find_local()
                    self._search_local = False
        return self._local or self.tcp()

    def tcp(self) -> Route:
        """Return the TCP route."""
        if self._tcp is None:
            security = self._config.security
            tls = security.tls.client() if security is not None and security.tls is not None else True
            session = self._session(aiohttp.TCPConnector(ssl=tls, **self._options()))
            self._tcp = Route(session, self._config.url, open_stream=self._open_stream)
        return self._tcp

    def drop_local(self, route: Route) -> None:
        """Drop a local route after a failure; the next call looks for one again, as the service may have restarted."""
        if route is self._local and route is not None:
            self._local, self._search_local = None, True
            _close_soon(route)

    def retire_streams(self) -> None:
        """Start no further calls on the open streams, whose connections may be dead."""
        for route in (self._tcp, self._local):
            if route is not None:
                route.retire_stream()

    def use_tcp(self, reason: str) -> None:
        """Use TCP from now on; `reason` is logged."""
        log.info("calls to %s use TCP: %s", self._config.address, reason)
        if self._local is not None:
            _close_soon(self._local)
        self._local, self._search_local = None, False

    async def close(self) -> None:
        for route in (self._tcp, self._local):
            if route is not None:
                await route.close()
        self._tcp = self._local = None

    async def _find_local(self) -> Route | None:
        """Request the socket's name over TCP, check over the socket that memory is shared, and return its route."""
        config, response_sizes = self._config, dict[str, int]()
        try:
            request = Message({"host": shared_memory.host_identity()}, [])
            response = await Call(config, self.tcp(), "local", request, None, response_sizes, stream=False).run()
        except Refused as error:
            log.info("calls to %s use TCP: %s", config.address, error)
            return None
        connector = shared_memory.Connector(f"\0{response.header.get('socket', '')}", **self._options())
        route = Route(self._session(connector), URL("http://localhost"), Segments(), self._open_stream)
        try:
            await Call(config, route, "local", Message({}, []), None, response_sizes, share=True, stream=False).run()
        except (CommError, OSError) as error:
            log.info("calls to %s use TCP: %s", config.address, error)
            await route.close()
            return None
        except BaseException:  # cleanup, also when interrupted
            await route.close()
            raise
        return route

    def _options(self) -> dict[str, Any]:
        return {"limit": self._config.limits.connections, "keepalive_timeout": KEEP_ALIVE}

    def _session(self, connector: aiohttp.BaseConnector) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._config.limits.connect),
            read_bufsize=READ_AHEAD,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=(hdrs.USER_AGENT, hdrs.ACCEPT, hdrs.ACCEPT_ENCODING),
        )


_closing_tasks: set[asyncio.Task[None]] = set()


def _close_soon(route: Route) -> None:
    task = asyncio.get_running_loop().create_task(route.close())
    _closing_tasks.add(task)
    task.add_done_callback(_closing_tasks.discard)
