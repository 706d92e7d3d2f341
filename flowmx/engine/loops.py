"""Event loops: the engine's own, and the one that :func:`run` runs a coroutine on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from flowmx import settings


def new_event_loop(use_uvloop: bool = True) -> asyncio.AbstractEventLoop:
    """A new event loop: uvloop's where it is installed and wanted, asyncio's elsewhere."""
    if use_uvloop:
        try:
            import uvloop
        except (ImportError, RuntimeError):  # RuntimeError: the interpreter is about to exit
            pass
        else:
            loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
            return loop
    return asyncio.new_event_loop()


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine from plain code to its end, on uvloop where it is there; returns its result."""
    config = settings.get()
    with asyncio.Runner(loop_factory=lambda: new_event_loop(config.uvloop)) as runner:
        return runner.run(coroutine)


def run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped, then cancel what is left on it and close it."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    finally:
        loop.close()
