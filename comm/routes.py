"""Routes to a service: TCP, or a unix socket and shared memory where it is on this machine."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

import aiohttp
from aiohttp import hdrs
from yarl import URL

from flowmx.comm import local
from flowmx.comm.call import KEEP, Call, Route, Who
from flowmx.comm.errors import CommError, Refused
from flowmx.comm.frames import Message
from flowmx.comm.local import Segments
from flowmx.comm.stream_client import open_stream
from flowmx.comm.transfer import READ_AHEAD

__all__ = ["Routes"]

log = logging.getLogger("flowmx.comm")


class Routes:
    """The routes to a service: TCP always, and a local one where one was found.

    Args:
        who: calls whom.
        wanted: whether a local one is looked for.
        streams: whether small calls may go over streams.
    """

    def __init__(self, who: Who, wanted: bool, streams: bool) -> None:
        self._who = who
        self._opener = partial(open_stream, who) if streams else None
        self._tcp: Route | None = None
        self._local: Route | None = None
        self._undecided = wanted and local.AVAILABLE
        self._deciding = asyncio.Lock()

    @property
    def is_local(self) -> bool:
        """True once the service is known to share memory with this process."""
        return self._local is not None

    @property
    def is_streaming(self) -> bool:
        """True while a stream is open."""
        return any(route is not None and route.has_stream for route in (self._tcp, self._local))

    def process(self) -> local.PeerProcess | None:
        """The process of the service, where it is on this machine and a stream leads to it."""
        return None if self._local is None else self._local.process()

    async def best(self) -> Route:
        """The fastest route that is available."""
        if self._undecided:
            async with self._deciding:
                if self._undecided:
                    self._local = await self._find_local()
                    self._undecided = False
        return self._local or self.tcp()

    def tcp(self) -> Route:
        """The route by TCP."""
        if self._tcp is None:
            security = self._who.security
            tls = security.tls.client() if security is not None and security.tls is not None else True
            session = self._session(aiohttp.TCPConnector(ssl=tls, **self._options()))
            self._tcp = Route(session, self._who.url, opener=self._opener)
        return self._tcp

    def forget(self, route: Route) -> None:
        """Forget the local route after a failure; the next call looks for one, as the service may have restarted."""
        if route is self._local and route is not None:
            self._local, self._undecided = None, True
            _close_soon(route)

    def retire_streams(self) -> None:
        """Begin no more calls on the streams: what they wait for may have got lost."""
        for route in (self._tcp, self._local):
            if route is not None:
                route.retire_stream()

    def give_up(self, why: str) -> None:
        """Stay with TCP."""
        log.info("calls of %s go by TCP: %s", self._who.address, why)
        if self._local is not None:
            _close_soon(self._local)
        self._local, self._undecided = None, False

    async def close(self) -> None:
        for route in (self._tcp, self._local):
            if route is not None:
                await route.close()
        self._tcp = self._local = None

    async def _find_local(self) -> Route | None:
        """Ask for the unix socket, by TCP; and then through it, whether memory is shared."""
        who, rooms = self._who, dict[str, int]()
        try:
            asked = Message({"host": local.host_identity()}, [])
            found = await Call(who, self.tcp(), "local", asked, None, rooms, stream=False).run()
        except Refused as error:
            log.info("calls of %s go by TCP: %s", who.address, error)
            return None
        connector = local.Connector(f"\0{found.header.get('socket', '')}", **self._options())
        route = Route(self._session(connector), URL("http://localhost"), Segments(), self._opener)
        try:
            await Call(who, route, "local", Message({}, []), None, rooms, share=True, stream=False).run()
        except (CommError, OSError) as error:
            log.info("calls of %s go by TCP: %s", who.address, error)
            await route.close()
            return None
        except BaseException:
            await route.close()
            raise
        return route

    def _options(self) -> dict[str, Any]:
        return {"limit": self._who.limits.connections, "keepalive_timeout": KEEP}

    def _session(self, connector: aiohttp.BaseConnector) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._who.limits.connect),
            read_bufsize=READ_AHEAD,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=(hdrs.USER_AGENT, hdrs.ACCEPT, hdrs.ACCEPT_ENCODING),
        )


_closing: set[asyncio.Task[None]] = set()


def _close_soon(route: Route) -> None:
    task = asyncio.get_running_loop().create_task(route.close())
    _closing.add(task)
    task.add_done_callback(_closing.discard)
