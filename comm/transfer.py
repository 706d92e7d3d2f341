"""Transfer of bodies over aiohttp, in few copies and never slower than the limits; the same for both sides."""

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

__all__ = ["CONTENT_TYPE", "Digests", "receive", "send", "slices"]

CONTENT_TYPE = "application/x-flowmx"
READ_AHEAD = 1 << 20  # of aiohttp's reader: measured, twice as fast as its default of 64 KiB
PIECE = 256 << 10  # a slow receiver must take one within Limits.idle
TOGETHER = 64 << 10


class Stream(Protocol):
    """The part of aiohttp's StreamReader that gives chunks as they came in; its other methods join them first."""

    async def readchunk(self) -> tuple[bytes, bool]: ...

    def at_eof(self) -> bool: ...


class Digests:
    """The SHA-256 of the head and of each tensor of a frame; large ones are hashed in the thread pool."""

    def __init__(self) -> None:
        self._parts: list[bytes | asyncio.Future[bytes]] = []

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, data: bytes | bytearray | memoryview) -> None:
        """Hash the next part, whose bytes must stay as they are."""
        self._parts.append(submit(_hash, data) if len(data) >= LARGE else _hash(data))

    async def whole(self) -> str:
        """The digest of the frame."""
        return digest_of([part if isinstance(part, bytes) else await part for part in self._parts])


def _hash(data: bytes | bytearray | memoryview) -> bytes:
    return hashlib.sha256(data).digest()


async def digest(head: bytes, tensors: Sequence[memoryview]) -> str:
    """The digest of a frame that is about to be sent."""
    digests = Digests()
    digests.add(head)
    for tensor in tensors:
        digests.add(tensor)
    return await digests.whole()


class Pace:
    """A watchdog of transfers: it ends those that pause, or that are slower than the limit.

    Use as ``async with``; call `moved` whenever bytes did.
    """

    def __init__(self, limits: Limits, what: str) -> None:
        self._limits = limits
        self._what = what
        self._loop = asyncio.get_running_loop()
        self._start = self._loop.time()
        self._moved = 0
        self._cutoff = asyncio.timeout(limits.idle)

    async def __aenter__(self) -> Pace:
        await self._cutoff.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            await self._cutoff.__aexit__(kind, error, None)
        except TimeoutError:
            idle = self._limits.idle
            raise TooSlow(f"{self._what} paused for {idle:g} s after {self._moved} bytes (Limits.idle)") from None

    def moved(self, count: int) -> None:
        """Note that so many bytes moved.

        Raises:
            TooSlow: all in all there were too few.
        """
        now = self._loop.time()
        self._moved += count
        seconds, least = now - self._start, self._limits.rate
        if seconds > self._limits.idle and self._moved < seconds * least:
            raise TooSlow(
                f"{self._what} moved {self._moved} bytes in {seconds:.1f} s; "
                f"at least {least:g} bytes a second are expected (Limits.rate)"
            )
        self._cutoff.reschedule(now + self._limits.idle)


async def receive(content: Stream, parser: Parser, limits: Limits, signed: str | None = None) -> None:
    """Feed a body to a parser.

    Args:
        content: the body.
        parser: that takes it.
        limits: what is allowed.
        signed: the digest that it must have.

    Raises:
        WireError: it is no frame.
        TooSlow: it comes too slowly.
        Unauthorized: it has another digest.
    """
    digests = Digests()
    async with Pace(limits, "the sender") as pace:
        while True:
            chunk, _ = await content.readchunk()
            if not chunk and content.at_eof():
                break
            parser.feed(chunk)
            pace.moved(len(chunk))
            if signed is not None:
                _follow(digests, parser)
    if signed is not None:
        check_digest(signed, await digests.whole())


def _follow(digests: Digests, parser: Parser) -> None:
    """Hash the parts that are complete since the last time, while the rest comes in."""
    if parser.header is None:
        return
    if not digests:
        digests.add(parser.head)
    for tensor in parser.tensors[len(digests) - 1 :]:
        digests.add(tensor.data)


def slices(parts: Sequence[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """The parts of a frame in pieces that are good to send: small ones joined, large ones cut."""
    small = bytearray()
    for part in parts:
        if len(part) < TOGETHER:
            small += part
            if len(small) < TOGETHER:
                continue
            part = b""
        if small:
            yield bytes(small)
            small.clear()
        for start in range(0, len(part), PIECE):
            yield memoryview(part)[start : start + PIECE]
    if small:
        yield bytes(small)


async def send(
    write: Callable[[bytes | memoryview], Awaitable[None]], parts: Sequence[bytes | memoryview], limits: Limits
) -> None:
    """Write the parts of a frame.

    Raises:
        TooSlow: they are taken too slowly.
    """
    async with Pace(limits, "the receiver") as pace:
        for piece in slices(parts):
            await write(piece)
            pace.moved(len(piece))
