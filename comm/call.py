"""One call of an operation by a client: the request and its response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp
from aiohttp import hdrs
from yarl import URL

from flowmx.comm import errors, shared_memory
from flowmx.comm.errors import Busy, CommError, PeerGone, Refused, TooSlow, Unauthorized, WireError
from flowmx.comm.frames import Message, Parser, Tensor, destinations, encode, pack
from flowmx.comm.headers import Spec
from flowmx.comm.limits import Limits
from flowmx.comm.offload import copy, offload
from flowmx.comm.security import REQUEST, Security
from flowmx.comm.shared_memory import SHARING_MIN, Segment, Segments, lay_out
from flowmx.comm.transfer import CONTENT_TYPE, chunks, digest, receive

if TYPE_CHECKING:
    from flowmx.comm.stream_client import ClientStream

__all__ = ["Call", "ClientConfig", "Route"]

KEEP_ALIVE = 15.0
"""Seconds that idle connections are kept open: less than in the service."""
RETRY_STREAM = 60.0
"""Seconds after which a service that refused a stream is asked again."""


class ClientConfig(NamedTuple):
    """The settings of a client's calls.

    Attributes:
        address: the service's address, for messages.
        url: the service's TCP address.
        node: the name of the calling node.
        security: the same as the service's.
        limits: limits on responses and connections.
    """

    address: str
    url: URL
    node: str
    security: Security | None
    limits: Limits


class Route:
    """A connection to a service: by TCP, or by unix socket with shared memory.

    Args:
        session: its connections.
        url: of the service, on these.
        segments: where memory is shared.
        open_stream: opens a stream on the route, or returns None if the service has none.
    """

    def __init__(
        self, session: aiohttp.ClientSession, url: URL, segments: Segments | None = None,
        open_stream: Callable[[Route], Awaitable[ClientStream | None]] | None = None,
    ) -> None:  # fmt: skip
        self.session = session
        self.url = url
        self.segments = segments
        self._open_stream = open_stream
        self._opening = asyncio.Lock()
        self._open_after = 0.0
        self._stream: ClientStream | None = None

    @property
    def has_stream(self) -> bool:
        """True while the stream is open."""
        return self._stream is not None and self._stream.is_open

    def process(self) -> shared_memory.PeerProcess | None:
        """Return the process at the other end of the stream if it is a unix socket, or None."""
        return self._stream.process() if self._stream is not None and self.segments is not None else None

    async def stream(self) -> ClientStream | None:
        """Return the stream for small calls, opening it if necessary; None if they are sent by POST."""
        now = asyncio.get_running_loop().time()
        stream = self._stream
        if stream is not None and stream.is_open and (now < stream.used + KEEP_ALIVE or not stream.is_idle):
            return stream
        if self._open_stream is None or now < self._open_after:
            return None
        async with self._opening:
            if self._stream is stream:
                self.retire_stream()
                self._stream = await self._open_stream(self)
                self._open_after = 0.0 if self._stream is not None else now + RETRY_STREAM
        return self._stream

    def retire_stream(self) -> None:
        """Start no more calls on the stream: its connection may be dead."""
        if self._stream is not None:
            self._stream.retire()
            self._stream = None

    async def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        await self.session.close()
        if self.segments is not None:
            self.segments.clear()


class Call:
    """One call on one route.

    Args:
        config: the client's settings.
        route: the route to the service.
        operation: its name.
        message: the request.
        into: memory for the response's tensors.
        response_sizes: the size of the tensors in each operation's last response, in bytes.
        share: whether to share memory even for a small call.
        stream: whether the call may use the route's stream.
        on_sent: called when the whole request has been sent.
    """

    def __init__(
        self,
        config: ClientConfig,
        route: Route,
        operation: str,
        message: Message,
        into: list[memoryview] | None,
        response_sizes: dict[str, int],
        share: bool = False,
        stream: bool = True,
        on_sent: Callable[[], object] = lambda: None,
    ) -> None:
        self._config = config
        self._route = route
        self._operation = operation
        self._message = message
        self._into = into
        self._response_sizes = response_sizes
        self._share = share
        self._may_stream = stream
        self._on_sent = on_sent
        self._segment: Segment | None = None
        self._nonce = ""

    async def run(self) -> Message:
        """Send the request and receive the response.

        Raises:
            CommError: as in `Peer.call`.
        """
        parts = encode(self._message)
        sizes = [tensor.data.nbytes for tensor in self._message.tensors]
        offsets, end = lay_out(sizes)
        answer_size = self._answer_size()
        if self._route.segments is not None and (self._share or sum(sizes) + answer_size >= SHARING_MIN):
            parts = [await self._pack_shared(self._route.segments, offsets, end, answer_size)]
        try:
            return await self._exchange(parts)
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, CommError | TimeoutError) and not isinstance(error, aiohttp.ClientError):
                raise
            raise self._peer_gone(str(error) or type(error).__name__) from error
        except RuntimeError as error:  # raised by aiohttp if the session was closed since the route was chosen
            if not self._route.session.closed:
                raise
            raise self._peer_gone("the client closed its connections") from error

    def _peer_gone(self, reason: str) -> PeerGone:
        return PeerGone(f"{self._config.address} is gone ({self._operation}): {reason}")

    def _answer_size(self) -> int:
        """The expected bytes of the response's tensors: those of `into`, or else of the last response."""
        if self._into is None:
            return self._response_sizes.get(self._operation, 0)
        return lay_out([len(target) for target in self._into])[1]

    async def _pack_shared(self, segments: Segments, offsets: list[int], end: int, answer_size: int) -> bytes:
        """Put the tensors into shared memory, with space for the response's; return the head of the frame."""
        tensors = self._message.tensors
        start = -(-end // shared_memory.ALIGNMENT) * shared_memory.ALIGNMENT
        segment = self._segment = segments.take(max(start + answer_size, 1))
        memory = segment.array.data
        pairs = [
            (memory[at : at + tensor.data.nbytes], tensor.bytes()) for at, tensor in zip(offsets, tensors, strict=True)
        ]
        await offload(end, copy, pairs)
        shared = [segment.descriptor, segment.inode, segment.size, start, segment.size - start]
        return pack({**self._message.header, "shared": shared, "tensors": shared_memory.describe(tensors, offsets)})

    async def _exchange(self, parts: list[bytes | memoryview]) -> Message:
        total = sum(map(len, parts))
        is_small = total < SHARING_MIN and (self._segment is not None or self._answer_size() < SHARING_MIN)
        stream = await self._route.stream() if is_small and self._may_stream else None
        message = await (self._post(parts, total) if stream is None else self._stream_call(stream, parts))
        self._response_sizes[self._operation] = lay_out([tensor.data.nbytes for tensor in message.tensors])[1]
        return message

    async def _stream_call(self, stream: ClientStream, parts: list[bytes | memoryview]) -> Message:
        """Send the request over a stream; return the response."""
        self._on_sent()
        parser = Parser(self._config.limits, self._destinations)
        await stream.ask(self._operation, parts, parser)
        return await self._answer(parser)

    async def _post(self, parts: list[bytes | memoryview], total: int) -> Message:
        """Send the request by POST; return the response."""
        url = self._route.url / "v1" / self._operation
        headers = {hdrs.CONTENT_TYPE: CONTENT_TYPE, **await self._signature(url, parts)}
        data = next(chunks(parts)) if total < SHARING_MIN else self._send_chunks(parts)
        headers[hdrs.CONTENT_LENGTH] = str(total)
        if total < SHARING_MIN:
            self._on_sent()
        async with self._route.session.post(url, data=data, headers=headers, allow_redirects=False) as response:
            return await self._receive(response)

    async def _signature(self, url: URL, parts: list[bytes | memoryview]) -> dict[str, str]:
        security = self._config.security
        if security is None or not security.has_secret:
            return {}
        # Empty tensors have no bytes in the frame, but they have a digest.
        tensors = [] if self._segment else [tensor.bytes() for tensor in self._message.tensors]
        body_digest = await digest(bytes(parts[0]), tensors)
        self._nonce, value = security.sign_request("POST", url.raw_path, self._config.node, body_digest)
        return {REQUEST: value}

    async def _receive(self, response: aiohttp.ClientResponse) -> Message:
        if response.content_type != CONTENT_TYPE:
            text = f"{self._config.address} answered {response.status} {response.reason} to {self._operation}"
            raise Busy(text) if response.status == 503 else Refused(f"{text}: is this the address of a flowmx service?")
        body_digest = self._check_signature(response)
        parser = Parser(self._config.limits, self._destinations)
        try:
            await receive(response.content, parser, self._config.limits, body_digest)
        except TooSlow as error:
            raise self._peer_gone(str(error)) from None
        message = await self._answer(parser)
        if response.status != 200:
            raise WireError(f"{self._config.address} answered {response.status} to {self._operation} without an error")
        return message

    async def _answer(self, parser: Parser) -> Message:
        """Return the response that a parser has read.

        Raises:
            CommError: the response is a refusal, or malformed.
        """
        message = parser.finish()
        header = parser.header or {}
        if (refusal := errors.from_header(header)) is not None:
            raise refusal
        if "shared" in header:
            message.tensors.extend(await self._receive_shared(parser.specs))
        else:
            self._release_segment()
        return message

    def _check_signature(self, response: aiohttp.ClientResponse) -> str | None:
        security = self._config.security
        if security is None or not security.has_secret:
            return None
        try:
            return security.check_response(self._nonce, response.status, response.headers)
        except Unauthorized:
            if response.status == 200:
                raise
            return None  # a service that does not know this client cannot sign; its response can only be a refusal

    def _destinations(self, header: dict[str, Any], specs: Sequence[Spec]) -> Sequence[memoryview | None]:
        return self._into if self._into is not None and "error" not in header else ()

    async def _receive_shared(self, specs: list[Spec]) -> list[Tensor]:
        if self._segment is None or self._route.segments is None:
            raise WireError(f"{self._config.address} answered in shared memory that was not offered")
        tensors = shared_memory.views(specs, self._route.segments.lease(self._segment))
        if self._into is None:
            return tensors
        targets = destinations(specs, self._into)
        total = sum(spec.nbytes for spec in specs)
        await offload(total, copy, [(target, tensor.data) for target, tensor in zip(targets, tensors, strict=True)])
        return [tensor._replace(data=target) for target, tensor in zip(targets, tensors, strict=True)]

    def _release_segment(self) -> None:
        """Return the segment for reuse, once the service has answered.

        Without a response the service may still write there; after a refusal it may still read there.
        """
        if self._segment is not None and self._route.segments is not None:
            self._route.segments.give(self._segment)

    async def _send_chunks(self, parts: list[bytes | memoryview]) -> AsyncIterator[bytes | memoryview]:
        for chunk in chunks(parts):
            yield chunk
        self._on_sent()
