"""The end of a stream that calls."""

from __future__ import annotations

import asyncio
import base64
import itertools
import secrets
from collections.abc import Sequence
from typing import Any

import aiohttp
from aiohttp import hdrs

from flowmx.comm import local, websocket
from flowmx.comm.call import Route, Who
from flowmx.comm.errors import CommError, PeerGone, TooSlow, WireError
from flowmx.comm.frames import Parser
from flowmx.comm.security import REQUEST, digest_of
from flowmx.comm.stream import ANSWER, CALL, CANCEL, NONCE, PART, PREFIX, PROTOCOL, Piece, Seals, Stream

__all__ = ["Outgoing", "open_stream"]


class Outgoing(Stream):
    """A stream to a service.

    Args:
        who: calls whom.
        response: the answer of the handshake, whose connection it takes.
        seals: of both ways, where there is a secret.
    """

    def __init__(self, who: Who, response: aiohttp.ClientResponse, seals: tuple[Seals, Seals] | None) -> None:
        connection: Any = response.connection
        super().__init__(connection.transport, who.limits, is_client=True, seals=seals)
        self._response = response  # has the connection for as long as it lives
        self._address = who.address
        self._numbers = itertools.count()
        self._calls: dict[int, tuple[str, Parser, asyncio.Future[None]]] = {}
        self._is_retired = False
        self.used = self._loop.time()

    @property
    def is_idle(self) -> bool:
        """True while no call waits for its answer."""
        return not self._calls

    def process(self) -> local.PeerProcess | None:
        """The process at the other end of a unix socket; None where the stream is closed."""
        sock = self._transport.get_extra_info("socket")
        return None if sock is None or not self.is_open else local.peer_of(sock)

    async def ask(self, operation: str, parts: Sequence[Piece], answer: Parser) -> None:
        """Send a request, and feed the frame of its answer to a parser.

        Args:
            operation: that is called.
            parts: of the request's frame; with the name of the operation at most `MOST` bytes.
            answer: takes the frame.

        Raises:
            PeerGone: the connection broke.
            CommError: the answer is no frame.
        """
        if not self.is_open:
            raise self._gone(operation, PeerGone("its stream was closed"))
        self.used = self._loop.time()
        number = next(self._numbers) & 0xFFFFFFFF
        came = self._loop.create_future()
        self._calls[number] = operation, answer, came
        name = operation.encode()
        self.send(PREFIX.pack(CALL, number), bytes((len(name),)), name, *parts)
        try:
            await came
        except asyncio.CancelledError:
            if self._calls.get(number) is not None and self.is_open:
                self.send(PREFIX.pack(CANCEL, number))
            raise
        finally:
            self._calls.pop(number, None)
            if self._is_retired and not self._calls:
                self.close()

    def retire(self) -> None:
        """Close the stream once no call waits for its answer."""
        self._is_retired = True
        if not self._calls:
            self.close()

    def received(self, message: memoryview) -> None:
        if len(message) < PREFIX.size:
            raise WireError(f"a message of a stream has at least {PREFIX.size} bytes")
        kind, number = PREFIX.unpack_from(message)
        if kind not in (ANSWER, PART):
            raise WireError(f"a service sends no messages of kind {kind}")
        if number not in self._calls:  # it was given up meanwhile
            return
        _, answer, came = self._calls[number]
        if came.done():
            return
        try:
            answer.feed(message[PREFIX.size :])
        except Exception as error:  # the caller's: of the memory that it gave too
            came.set_exception(error)
            return
        if kind == ANSWER:
            came.set_result(None)

    def lost(self, error: CommError) -> None:
        for operation, _, came in self._calls.values():
            if not came.done():
                came.set_exception(self._gone(operation, error))
        self._response.close()

    def _gone(self, operation: str, why: CommError) -> CommError:
        """The error of a call whose stream has ended: the other end's doing, or the end of its connection."""
        if isinstance(why, PeerGone | TooSlow):
            return PeerGone(f"{self._address} is gone ({operation}): {why}")
        return type(why)(f"{self._address} ({operation}): {why}")

    def close(self) -> None:
        super().close()
        self._end(PeerGone("its connection was closed here"))


async def open_stream(who: Who, route: Route) -> Outgoing | None:
    """Open a stream; None where the service has none, or not now.

    Raises:
        aiohttp.ClientError: there is no connection.
    """
    url, security = route.url / "v1" / "stream", who.security
    signs = security is not None and security.signs
    key, nonce, headers = base64.b64encode(secrets.token_bytes(16)).decode(), "", dict[str, str]()
    if security is not None and security.signs:
        nonce, headers[REQUEST] = security.sign_request("GET", url.raw_path, who.node, digest_of([]))
    headers |= {
        hdrs.CONNECTION: "Upgrade", hdrs.UPGRADE: "websocket", hdrs.SEC_WEBSOCKET_VERSION: "13",
        hdrs.SEC_WEBSOCKET_KEY: key, hdrs.SEC_WEBSOCKET_PROTOCOL: PROTOCOL,
    }  # fmt: skip
    response = await route.session.get(url, headers=headers, allow_redirects=False)
    if not _is_stream(response, key) or (signs and NONCE not in response.headers):
        response.close()
        return None
    seals = None
    if security is not None and security.signs:
        nonces = nonce, response.headers[NONCE]
        seals = Seals(security, "client", nonces), Seals(security, "service", nonces)
    return Outgoing(who, response, seals)


def _is_stream(response: aiohttp.ClientResponse, key: str) -> bool:
    """Tell whether a service has agreed to a stream: an older one knows none, another may be at its limit."""
    return (
        response.status == 101
        and response.headers.get(hdrs.SEC_WEBSOCKET_ACCEPT) == websocket.accept(key)
        and response.headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL) == PROTOCOL
        and response.connection is not None
        and response.connection.transport is not None
    )
