"""An event loop with simulated time: sleeping takes no real time, and timing is deterministic."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["SimulatedLoop", "run"]

T = TypeVar("T")


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop that advances its clock to the next timer instead of waiting; it supports no threads or sockets."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float | None) -> None:
        """Advance the clock.

        Raises:
            RuntimeError: no timer is left, so nothing will ever happen again.
        """
        if seconds is None:
            raise RuntimeError("the simulation is deadlocked: all tasks wait for each other")
        self._now += seconds


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._loop.advance(timeout)
        return []


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on simulated time; return its result."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(main)
