"""The clock that waits go by, which tests replace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["Clock", "within"]

T = TypeVar("T")


class Clock:
    """The time, and sleep. Tests have a clock that they set themselves."""

    def now(self) -> float:
        """Seconds since an arbitrary point in the past; monotonic."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


async def within(clock: Clock, seconds: float, wait: Callable[[], Awaitable[T]]) -> bool:
    """Wait for at most so many seconds of a clock; return True if the wait succeeded.

    What `wait` raises is raised here.
    """
    awaited = asyncio.ensure_future(wait())  # called now: whoever waits for a ring must not miss the next
    alarm = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait({awaited, alarm}, return_when=asyncio.FIRST_COMPLETED)
        if awaited.done():
            awaited.result()
        return awaited.done()
    finally:
        for task in (awaited, alarm):
            task.cancel()
        await asyncio.gather(awaited, alarm, return_exceptions=True)
