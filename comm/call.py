"""One call of an operation: the request and its answer, on the side of the caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp
from aiohttp import hdrs
from yarl import URL

from flowmx.comm import errors, local
from flowmx.comm.errors import Busy, CommError, PeerGone, Refused, TooSlow, Unauthorized, WireError
from flowmx.comm.frames import Message, Parser, Tensor, destinations, encode, pack
from flowmx.comm.headers import Spec
from flowmx.comm.limits import Limits
from flowmx.comm.local import Segment, Segments
from flowmx.comm.offload import copy, offload
from flowmx.comm.security import REQUEST, Security
from flowmx.comm.transfer import CONTENT_TYPE, digest, receive, slices

if TYPE_CHECKING:
    from flowmx.comm.stream_client import Outgoing

__all__ = ["Call", "Route", "Who"]

WORTH_SHARING = 32 << 10
"""Bytes of a call from which shared memory is faster than sending them along, and POST as good as a stream."""
KEEP = 15.0
"""Seconds that idle connections are kept: less than the service keeps them."""
AGAIN = 60.0
"""Seconds after which a service that had no stream is asked for one again."""


class Who(NamedTuple):
    """The settings of a client's calls: the two ends, security, limits.

    Attributes:
        address: of the service, as messages call it.
        url: of the service by TCP.
        node: that calls.
        security: as the service's.
        limits: what is allowed.
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
        opener: opens a stream on the route; gives None where there is none.
    """

    def __init__(
        self, session: aiohttp.ClientSession, url: URL, segments: Segments | None = None,
        opener: Callable[[Route], Awaitable[Outgoing | None]] | None = None,
    ) -> None:  # fmt: skip
        self.session = session
        self.url = url
        self.segments = segments
        self._opener = opener
        self._opening = asyncio.Lock()
        self._open_after = 0.0
        self._stream: Outgoing | None = None

    @property
    def has_stream(self) -> bool:
        """True while the stream is open."""
        return self._stream is not None and self._stream.is_open

    def process(self) -> local.PeerProcess | None:
        """The process at the other end of the stream, where that is a unix socket."""
        return self._stream.process() if self._stream is not None and self.segments is not None else None

    async def stream(self) -> Outgoing | None:
        """The stream for small calls, which is opened where need be; None where they go by POST."""
        now = asyncio.get_running_loop().time()
        found = self._stream
        if found is not None and found.is_open and (now < found.used + KEEP or not found.is_idle):
            return found
        if self._opener is None or now < self._open_after:
            return None
        async with self._opening:
            if self._stream is found:
                self.retire_stream()
                self._stream = await self._opener(self)
                self._open_after = 0.0 if self._stream is not None else now + AGAIN
        return self._stream

    def retire_stream(self) -> None:
        """Begin no more calls on the stream: its connection may be dead."""
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
        who: calls whom.
        route: to it.
        operation: that is called.
        message: for it.
        into: memory for the answer's tensors.
        rooms: how many bytes of tensors each operation last answered with.
        share: whether to share memory however small the call is.
        stream: whether it may go by the route's stream.
        sent: is called when the request is on its way as a whole.
    """

    def __init__(
        self,
        who: Who,
        route: Route,
        operation: str,
        message: Message,
        into: list[memoryview] | None,
        rooms: dict[str, int],
        share: bool = False,
        stream: bool = True,
        sent: Callable[[], object] = lambda: None,
    ) -> None:
        self._who = who
        self._route = route
        self._operation = operation
        self._message = message
        self._into = into
        self._rooms = rooms
        self._share = share
        self._may_stream = stream
        self._sent = sent
        self._segment: Segment | None = None
        self._nonce = ""

    async def run(self) -> Message:
        """Send the request and take the answer.

        Raises:
            CommError: as in `Peer.call`.
        """
        parts = encode(self._message)
        sizes = [tensor.data.nbytes for tensor in self._message.tensors]
        offsets, end = local.lay_out(sizes)
        room = self._room()
        if self._route.segments is not None and (self._share or sum(sizes) + room >= WORTH_SHARING):
            parts = [await self._packed(self._route.segments, offsets, end, room)]
        try:
            return await self._exchange(parts)
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, CommError | TimeoutError) and not isinstance(error, aiohttp.ClientError):
                raise
            raise self._gone(str(error) or type(error).__name__) from error
        except RuntimeError as error:  # aiohttp's, where the session was closed since the route was chosen
            if not self._route.session.closed:
                raise
            raise self._gone("its connections were closed here") from error

    def _gone(self, why: str) -> PeerGone:
        return PeerGone(f"{self._who.address} is gone ({self._operation}): {why}")

    def _room(self) -> int:
        """The expected bytes of the answer's tensors: of the memory given for them, or else of the last answer."""
        if self._into is None:
            return self._rooms.get(self._operation, 0)
        return local.lay_out([len(target) for target in self._into])[1]

    async def _packed(self, segments: Segments, offsets: list[int], end: int, room: int) -> bytes:
        """The head of a frame whose tensors were put into shared memory, with room for those of the answer."""
        tensors = self._message.tensors
        start = -(-end // local.ALIGNMENT) * local.ALIGNMENT
        segment = self._segment = segments.take(max(start + room, 1))
        memory = segment.array.data
        pairs = [
            (memory[at : at + tensor.data.nbytes], tensor.bytes()) for at, tensor in zip(offsets, tensors, strict=True)
        ]
        await offload(end, copy, pairs)
        shared = [segment.descriptor, segment.inode, segment.size, start, segment.size - start]
        return pack({**self._message.header, "shared": shared, "tensors": local.described(tensors, offsets)})

    async def _exchange(self, parts: list[bytes | memoryview]) -> Message:
        total = sum(map(len, parts))
        is_small = total < WORTH_SHARING and (self._segment is not None or self._room() < WORTH_SHARING)
        stream = await self._route.stream() if is_small and self._may_stream else None
        message = await (self._post(parts, total) if stream is None else self._ask(stream, parts))
        self._rooms[self._operation] = local.lay_out([tensor.data.nbytes for tensor in message.tensors])[1]
        return message

    async def _ask(self, stream: Outgoing, parts: list[bytes | memoryview]) -> Message:
        """The answer to a message of a stream."""
        self._sent()
        parser = Parser(self._who.limits, self._place)
        await stream.ask(self._operation, parts, parser)
        return await self._taken(parser)

    async def _post(self, parts: list[bytes | memoryview], total: int) -> Message:
        """The answer to a request of HTTP."""
        url = self._route.url / "v1" / self._operation
        headers = {hdrs.CONTENT_TYPE: CONTENT_TYPE, **await self._signature(url, parts)}
        data = next(slices(parts)) if total < WORTH_SHARING else self._pieces(parts)
        headers[hdrs.CONTENT_LENGTH] = str(total)
        if total < WORTH_SHARING:
            self._sent()
        async with self._route.session.post(url, data=data, headers=headers, allow_redirects=False) as response:
            return await self._take(response)

    async def _signature(self, url: URL, parts: list[bytes | memoryview]) -> dict[str, str]:
        security = self._who.security
        if security is None or not security.signs:
            return {}
        # Empty tensors have no part of their own in the frame, and a digest all the same.
        tensors = [] if self._segment else [tensor.bytes() for tensor in self._message.tensors]
        signed = await digest(bytes(parts[0]), tensors)
        self._nonce, value = security.sign_request("POST", url.raw_path, self._who.node, signed)
        return {REQUEST: value}

    async def _take(self, response: aiohttp.ClientResponse) -> Message:
        if response.content_type != CONTENT_TYPE:
            text = f"{self._who.address} answered {response.status} {response.reason} to {self._operation}"
            raise Busy(text) if response.status == 503 else Refused(f"{text}: is this the address of a flowmx service?")
        signed = self._check_signature(response)
        parser = Parser(self._who.limits, self._place)
        try:
            await receive(response.content, parser, self._who.limits, signed)
        except TooSlow as error:
            raise self._gone(str(error)) from None
        message = await self._taken(parser)
        if response.status != 200:
            raise WireError(f"{self._who.address} answered {response.status} to {self._operation}, and no error")
        return message

    async def _taken(self, parser: Parser) -> Message:
        """The answer that a parser has read."""
        message = parser.finish()
        header = parser.header or {}
        if (refusal := errors.from_header(header)) is not None:
            raise refusal
        if "shared" in header:
            message.tensors.extend(await self._take_shared(parser.specs))
        else:
            self._give_back()
        return message

    def _check_signature(self, response: aiohttp.ClientResponse) -> str | None:
        security = self._who.security
        if security is None or not security.signs:
            return None
        try:
            return security.check_answer(self._nonce, response.status, response.headers)
        except Unauthorized:
            if response.status == 200:
                raise
            return None  # a service that does not know us can not sign for us; its answer can only be a refusal

    def _place(self, header: dict[str, Any], specs: Sequence[Spec]) -> Sequence[memoryview | None]:
        return self._into if self._into is not None and "error" not in header else ()

    async def _take_shared(self, specs: list[Spec]) -> list[Tensor]:
        if self._segment is None or self._route.segments is None:
            raise WireError(f"{self._who.address} answered in shared memory, which was not offered")
        found = local.views(specs, self._route.segments.lease(self._segment))
        if self._into is None:
            return found
        targets = destinations(specs, self._into)
        total = sum(spec.nbytes for spec in specs)
        await offload(total, copy, [(target, tensor.data) for target, tensor in zip(targets, found, strict=True)])
        return [tensor._replace(data=target) for target, tensor in zip(targets, found, strict=True)]

    def _give_back(self) -> None:
        """Return the segment for reuse, once the service has answered.

        Where it has not, it may write there still; and what it refuses in part it may go on reading.
        """
        if self._segment is not None and self._route.segments is not None:
            self._route.segments.give(self._segment)

    async def _pieces(self, parts: list[bytes | memoryview]) -> AsyncIterator[bytes | memoryview]:
        for piece in slices(parts):
            yield piece
        self._sent()
