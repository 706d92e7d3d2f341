"""Sending a stream to a client that may read slowly, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

from flowmx.serve.replies import Chunks, Stream

__all__ = ["Disconnected", "SlowReader", "begun", "send"]

_log = logging.getLogger("flowmx.serve")


class Disconnected(Exception):
    """A client has disconnected."""


class SlowReader(Exception):
    """A client has not read a chunk in time."""


async def begun(chunks: AsyncGenerator[bytes, None]) -> Chunks:
    """Wait for the first chunk, and return all of them.

    A generator that has not begun would not run its ``finally`` when it is closed.

    Raises:
        Exception: of the generator, before its first chunk.
    """
    try:
        return _Begun([await anext(chunks)], chunks)
    except StopAsyncIteration:
        return _Begun([], chunks)


class _Begun:
    """The first chunk of a generator, and the rest."""

    def __init__(self, first: list[bytes], rest: AsyncGenerator[bytes, None]) -> None:
        self._first, self._rest = first, rest

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self._first:
            yield self._first.pop()
        async for chunk in self._rest:
            yield chunk

    async def aclose(self) -> None:
        await self._rest.aclose()


async def send(stream: Stream, write: Callable[[bytes], Awaitable[object]], seconds: float) -> None:
    """Send the chunks of a stream, and close it.

    Args:
        stream: the stream.
        write: sends a chunk; waits while the client is slower than the stream.
        seconds: the longest time that a client may take to read a chunk.

    Raises:
        SlowReader: the client has taken longer.
    """
    async with contextlib.aclosing(stream.chunks):
        async for chunk in stream.chunks:
            try:
                async with asyncio.timeout(seconds):
                    await write(chunk)
            except TimeoutError:
                _log.warning("a client has not read its stream for %g s; the stream ends", seconds)
                raise SlowReader from None
