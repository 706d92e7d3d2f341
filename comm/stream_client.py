"""The client's end of a stream."""

from __future__ import annotations

import asyncio
import base64
import itertools
import secrets
from collections.abc import Sequence
from typing import Any

import aiohttp
from aiohttp import hdrs

from flowmx.comm import shared_memory, websocket
from flowmx.comm.call import ClientConfig, Route
from flowmx.comm.errors import CommError, PeerGone, TooSlow, WireError
from flowmx.comm.frames import Parser
from flowmx.comm.security import REQUEST, digest_of
from flowmx.comm.stream import ANSWER, CALL, CANCEL, NONCE, PART, PREFIX, PROTOCOL, Buffer, Stream, StreamMac

__all__ = ["ClientStream", "open_stream"]


class ClientStream(Stream):
    """A stream to a service.

    Args:
        config: the client's settings.
        response: the response to the handshake; the stream takes over its connection.
        macs: the codes of both directions, if there is a secret.
    """

    def __init__(
        self, config: ClientConfig, response: aiohttp.ClientResponse, macs: tuple[StreamMac, StreamMac] | None
    ) -> None:
        connection: Any = response.connection
        super().__init__(connection.transport, config.limits, is_client=True, macs=macs)
        self._response = response  # keeps the connection alive
        self._address = config.address
        self._numbers = itertools.count()
        self._calls: dict[int, tuple[str, Parser, asyncio.Future[None]]] = {}
        self._is_retired = False
        self.used = self._loop.time()

    @property
    def is_idle(self) -> bool:
        """True while no call is waiting for its response."""
        return not self._calls

    def process(self) -> shared_memory.PeerProcess | None:
        """Return the process at the other end of a unix socket; None if the stream is closed."""
        sock = self._transport.get_extra_info("socket")
        return None if sock is None or not self.is_open else shared_memory.peer_of(sock)

    async def ask(self, operation: str, parts: Sequence[Buffer], parser: Parser) -> None:
        """Send a request, and feed the frame of its response to a parser.

        Args:
            operation: the operation's name.
            parts: the request's frame; with the operation's name it has at most `MAX_MESSAGE` bytes.
            parser: parses the response's frame.

        Raises:
            PeerGone: the connection broke.
            CommError: the response is not a valid frame.
        """
        if not self.is_open:
            raise self._peer_gone(operation, PeerGone("its stream was closed"))
        self.used = self._loop.time()
        number = next(self._numbers) & 0xFFFFFFFF
        future = self._loop.create_future()
        self._calls[number] = operation, parser, future
        name = operation.encode()
        self.send(PREFIX.pack(CALL, number), bytes((len(name),)), name, *parts)
        try:
            await future
        except asyncio.CancelledError:
            if self._calls.get(number) is not None and self.is_open:
                self.send(PREFIX.pack(CANCEL, number))
            raise
        finally:
            self._calls.pop(number, None)
            if self._is_retired and not self._calls:
                self.close()

    def retire(self) -> None:
        """Close the stream as soon as no call is waiting for its response."""
        self._is_retired = True
        if not self._calls:
            self.close()

    def handle_message(self, message: memoryview) -> None:
        if len(message) < PREFIX.size:
            raise WireError(f"a message of a stream has at least {PREFIX.size} bytes")
        kind, number = PREFIX.unpack_from(message)
        if kind not in (ANSWER, PART):
            raise WireError(f"a service sends no messages of kind {kind}")
        if number not in self._calls:  # the call was cancelled
            return
        _, parser, future = self._calls[number]
        if future.done():
            return
        try:
            parser.feed(message[PREFIX.size :])
        except Exception as error:  # from the caller's parser or its buffers
            future.set_exception(error)
            return
        if kind == ANSWER:
            future.set_result(None)

    def connection_ended(self, error: CommError) -> None:
        for operation, _, future in self._calls.values():
            if not future.done():
                future.set_exception(self._peer_gone(operation, error))
        self._response.close()

    def _peer_gone(self, operation: str, reason: CommError) -> CommError:
        """Return the error of a call whose stream has ended."""
        if isinstance(reason, PeerGone | TooSlow):
            return PeerGone(f"{self._address} is gone ({operation}): {reason}")
        return type(reason)(f"{self._address} ({operation}): {reason}")

    def close(self) -> None:
        super().close()
        self._end(PeerGone("the client closed its connection"))


async def open_stream(config: ClientConfig, route: Route) -> ClientStream | None:
    """Open a stream; return None if the service offers none now.

    Raises:
        aiohttp.ClientError: the connection failed.
    """
    url, security = route.url / "v1" / "stream", config.security
    has_secret = security is not None and security.has_secret
    key, nonce, headers = base64.b64encode(secrets.token_bytes(16)).decode(), "", dict[str, str]()
    if security is not None and security.has_secret:
        nonce, headers[REQUEST] = security.sign_request("GET", url.raw_path, config.node, digest_of([]))
    headers |= {
        hdrs.CONNECTION: "Upgrade", hdrs.UPGRADE: "websocket", hdrs.SEC_WEBSOCKET_VERSION: "13",
        hdrs.SEC_WEBSOCKET_KEY: key, hdrs.SEC_WEBSOCKET_PROTOCOL: PROTOCOL,
    }  # fmt: skip
    response = await route.session.get(url, headers=headers, allow_redirects=False)
    if not _is_stream(response, key) or (has_secret and NONCE not in response.headers):
        response.close()
        return None
    macs = None
    if security is not None and security.has_secret:
        nonces = nonce, response.headers[NONCE]
        macs = StreamMac(security, "client", nonces), StreamMac(security, "service", nonces)
    return ClientStream(config, response, macs)


def _is_stream(response: aiohttp.ClientResponse, key: str) -> bool:
    """Return whether a service accepted a stream; it may be an older one, or at its limit."""
    return (
        response.status == 101
        and response.headers.get(hdrs.SEC_WEBSOCKET_ACCEPT) == websocket.accept_key(key)
        and response.headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL) == PROTOCOL
        and response.connection is not None
        and response.connection.transport is not None
    )
