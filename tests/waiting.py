"""Wait for other threads, with a deadline."""

import asyncio
import threading
import time
from collections.abc import Callable

__all__ = ["until", "wait_until"]

DEADLINE = 20.0
"""Seconds after which a wait fails: far more than a loaded machine needs."""


async def until(condition: Callable[[], object], seconds: float = DEADLINE) -> None:
    """Wait until a condition holds, on the event loop."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.001)


def wait_until(condition: Callable[[], object], seconds: float = DEADLINE) -> None:
    """Wait until a condition holds, while other threads run."""
    end, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        assert time.monotonic() < end, f"not so within {seconds} s"
        pause.wait(0.001)
