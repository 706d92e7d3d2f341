"""An event loop whose time passes only when nothing is left to do: a sleep takes no time, and always the same."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["SimulatedLoop", "run"]

T = TypeVar("T")


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Instead of waiting for the next timer, goes on to its time; threads and sockets have no place in it."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float | None) -> None:
        """Let time pass.

        Raises:
            RuntimeError: nothing will ever happen again.
        """
        if seconds is None:
            raise RuntimeError("the simulation stands still: everybody waits for somebody else")
        self._now += seconds


class _Jumping(selectors.DefaultSelector):
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
