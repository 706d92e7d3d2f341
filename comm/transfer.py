"""Send and receive bodies over aiohttp, with few copies and minimum rates; used by both sides."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol

from flowmx.comm.errors import TooSlow
from flowmx.comm.frames import Parser
from flowmx.comm.limits import Limits
from flowmx.comm.offload import LARGE, submit
from flowmx.comm.security import check_digest, digest_of

__all__ = ["CONTENT_TYPE", "Digests", "chunks", "receive", "send"]

CONTENT_TYPE = "application/x-flowmx"
READ_AHEAD = 1 << 20  # for aiohttp's reader: 2x faster than its default of 64 KiB
CHUNK = 256 << 10  # a receiver must read one chunk within Limits.idle
JOIN_BELOW = 64 << 10


class Stream(Protocol):
    """The methods of aiohttp's StreamReader that return chunks as received; its other methods join them first."""

    async def readchunk(self) -> tuple[bytes, bool]: ...

    def at_eof(self) -> bool: ...


class Digests:
    """The SHA-256 of the head and of each tensor of a frame; large ones are hashed in the thread pool."""

    def __init__(self) -> None:
        self._parts: list[bytes | asyncio.Future[bytes]] = []

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, data: bytes | bytearray | memoryview) -> None:
        """Hash the next part; its bytes must not change."""
        self._parts.append(submit(_hash, data) if len(data) >= LARGE else _hash(data))

    async def combine(self) -> str:
        """Return the digest of the frame."""
        return digest_of([part if isinstance(part, bytes) else await part for part in self._parts])


def _hash(data: bytes | bytearray | memoryview) -> bytes:
    return hashlib.sha256(data).digest()


async def digest(head: bytes, tensors: Sequence[memoryview]) -> str:
    """Return the digest of a frame."""
    digests = Digests()
    digests.add(head)
    for tensor in tensors:
        digests.add(tensor)
    return await digests.combine()


class TransferWatchdog:
    """A watchdog for a transfer: it ends one that pauses, or is slower than the limit.

    Use it with ``async with``, and call `record` after each chunk.
    """

    def __init__(self, limits: Limits, peer: str) -> None:
        self._limits = limits
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._start = self._loop.time()
        self._transferred = 0
        self._cutoff = asyncio.timeout(limits.idle)

    async def __aenter__(self) -> TransferWatchdog:
        await self._cutoff.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            await self._cutoff.__aexit__(kind, error, None)
        except TimeoutError:
            idle = self._limits.idle
            raise TooSlow(f"{self._peer} paused for {idle:g} s after {self._transferred} bytes (Limits.idle)") from None

    def record(self, count: int) -> None:
        """Record transferred bytes.

        Raises:
            TooSlow: the average rate is too low.
        """
        now = self._loop.time()
        self._transferred += count
        seconds, min_rate = now - self._start, self._limits.rate
        if seconds > self._limits.idle and self._transferred < seconds * min_rate:
            raise TooSlow(
                f"{self._peer} transferred {self._transferred} bytes in {seconds:.1f} s; "
                f"the minimum is {min_rate:g} bytes a second (Limits.rate)"
            )
        self._cutoff.reschedule(now + self._limits.idle)


async def receive(content: Stream, parser: Parser, limits: Limits, expected_digest: str | None = None) -> None:
    """Feed a body to a parser.

    Args:
        content: the body.
        parser: the parser.
        limits: limits on its speed.
        expected_digest: the digest that it must have.

    Raises:
        WireError: it is not a valid frame.
        TooSlow: it arrives too slowly.
        Unauthorized: it has a different digest.
    """
    digests = Digests()
    async with TransferWatchdog(limits, "the sender") as watchdog:
        while True:
            chunk, _ = await content.readchunk()
            if not chunk and content.at_eof():
                break
            parser.feed(chunk)
            watchdog.record(len(chunk))
            if expected_digest is not None:
                _hash_complete_parts(digests, parser)
    if expected_digest is not None:
        check_digest(expected_digest, await digests.combine())


def _hash_complete_parts(digests: Digests, parser: Parser) -> None:
    """Hash the parts that have become complete since the last call."""
    if parser.header is None:
        return
    if not digests:
        digests.add(parser.head)
    for tensor in parser.tensors[len(digests) - 1 :]:
        digests.add(tensor.data)


def chunks(parts: Sequence[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Iterate over the parts of a frame in chunks for sending: small parts joined, large ones split."""
    pending = bytearray()
    for part in parts:
        if len(part) < JOIN_BELOW:
            pending += part
            if len(pending) < JOIN_BELOW:
                continue
            part = b""
        if pending:
            yield bytes(pending)
            pending.clear()
        for start in range(0, len(part), CHUNK):
            yield memoryview(part)[start : start + CHUNK]
    if pending:
        yield bytes(pending)


async def send(
    write: Callable[[bytes | memoryview], Awaitable[None]], parts: Sequence[bytes | memoryview], limits: Limits
) -> None:
    """Write the parts of a frame.

    Raises:
        TooSlow: the receiver reads too slowly.
    """
    async with TransferWatchdog(limits, "the receiver") as watchdog:
        for chunk in chunks(parts):
            await write(chunk)
            watchdog.record(len(chunk))
