"""A clock for timeouts, which tests replace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["Clock", "within"]

T = TypeVar("T")


class Clock:
    """The time, and a sleep. Tests use a clock that they set."""

    def now(self) -> float:
        """Seconds since an arbitrary point in the past; monotonic."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


async def within(clock: Clock, seconds: float, wait: Callable[[], Awaitable[T]]) -> bool:
    """Wait for at most `seconds` of a clock; return whether the wait ended in time. Errors of `wait` are raised."""
    waiter = asyncio.ensure_future(wait())  # called now, so that it does not miss the next notification
    alarm = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait({waiter, alarm}, return_when=asyncio.FIRST_COMPLETED)
        if waiter.done():
            waiter.result()
        return waiter.done()
    finally:
        for task in (waiter, alarm):
            task.cancel()
        await asyncio.gather(waiter, alarm, return_exceptions=True)
