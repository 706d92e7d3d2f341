"""Helper tasks of a request, and calls from other threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

__all__ = ["call_in", "cancel_and_wait"]


def call_in(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """Call a function in an event loop, from any thread."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(function)


async def cancel_and_wait(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait until they have ended. Drop their results and exceptions.

    ``asyncio.gather`` would replace the CancelledError of a caller that is cancelled meanwhile. anyio, and so
    Starlette, recognizes its own cancellation by the message of that error.
    """
    for task in tasks:
        task.cancel()
        task.add_done_callback(_drop_exception)
    await asyncio.wait(tasks)


def _drop_exception(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()  # otherwise asyncio logs that nobody has read it
