"""Listeners of services: connections pass a gate, and the end of it leaves none open that was just accepted."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from aiohttp.http_exceptions import HttpProcessingError

__all__ = ["close", "http_log"]


def _is_ours(record: logging.LogRecord) -> bool:
    """Log filter: drop records of requests that are not HTTP, since strangers could fill the log with them."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


http_log = logging.getLogger("flowmx.comm.http")
"""The log of the HTTP servers of all services."""
http_log.addFilter(_is_ours)


async def close(listener: asyncio.Server) -> None:
    """Take no more connections.

    A connection that was accepted a moment ago becomes known to aiohttp in the second turn of the loop from now: it
    would be left open by a cleanup, and on Python 3.11 by the closing of the listener, that came before.
    """
    try:
        for each in listener.sockets:
            with contextlib.suppress(NotImplementedError):  # Windows' event loop has no readers
                asyncio.get_running_loop().remove_reader(each.fileno())
        for _ in range(2):
            await asyncio.sleep(0)
    finally:
        listener.close()
