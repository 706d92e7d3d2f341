"""Sending a stream to a client that may read slowly, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from flowmx.serve.replies import Stream

__all__ = ["SlowReader", "send"]

_log = logging.getLogger("flowmx.serve")


class SlowReader(Exception):
    """A client has not read a chunk in time."""


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
