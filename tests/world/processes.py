"""Simulated processes: contexts whose callbacks stop when the process is killed or paused."""

from __future__ import annotations

import asyncio
import contextvars
import signal
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.world.loop import Loop

__all__ = ["CURRENT", "Process"]


class Process:
    """A simulated process on a separate machine.

    Args:
        name: its name in the story.
        host: the address of its machine.
        loop: the loop of the world.

    Attributes:
        ready: the callbacks that are due.
        errors: errors that no task handled.
        at_end: called when the process ends.
        main: the task of its program.
        describe: returns what the process does.
    """

    def __init__(self, name: str, host: str, loop: Loop, number: int = 0) -> None:
        self.name, self.host, self.number = name, host, number
        self.ready: deque[Any] = deque()
        self.tasks: list[asyncio.Task[Any]] = []
        self.errors: list[str] = []
        self.signals: dict[signal.Signals, asyncio.Handle] = {}
        self.at_end: list[Callable[[], object]] = []
        self.main: asyncio.Task[Any] | None = None
        self.describe: Callable[[], str] = str
        self.is_alive, self.is_paused = True, False
        self._loop = loop
        self.context = contextvars.Context()
        self.context.run(CURRENT.set, self)

    def __repr__(self) -> str:
        return self.name

    @property
    def is_running(self) -> bool:
        """True while the process gets turns."""
        return self.is_alive and not self.is_paused

    def start(self, program: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start the program of the process."""
        context = self.context.copy()
        self.main = context.run(lambda: self._loop.create_task(program, context=context))
        self.main.add_done_callback(lambda task: self.end(), context=context)
        return self.main

    def terminate(self) -> None:
        """Send SIGTERM: run its handler; without a handler, end the process."""
        handler = self.signals.get(signal.SIGTERM)
        if handler is None:
            self.end()
        elif self.is_alive:
            self._loop.call_soon(handler._run, context=self.context)

    def pause(self, seconds: float) -> None:
        """Give the process no turns for a while; its timers fire late."""
        self.is_paused = True
        self._loop.call_later(seconds, self.resume, context=self._loop.kernel.context)

    def resume(self) -> None:
        """End a pause."""
        self.is_paused = False
        self._loop.activate(self)

    def end(self) -> None:
        """End the process between two callbacks, as SIGKILL does: nothing of it runs any more."""
        if not self.is_alive:
            return
        self.is_alive = False
        self.ready.clear()
        for action in self.at_end:
            action()


CURRENT: contextvars.ContextVar[Process] = contextvars.ContextVar("process")
"""The process whose code runs."""
