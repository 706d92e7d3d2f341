"""The tasks that answer requests, and the end of a drain: tasks that take too long are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["RequestTasks"]


class RequestTasks:
    """The tasks of unanswered requests.

    Attributes:
        is_aborted: whether tasks were cancelled because the time to drain is over: they refuse their requests.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object] | None] = set()
        self._responding: set[asyncio.Task[object] | None] = set()
        self._idle: asyncio.Event | None = None
        self.is_aborted = False

    @contextmanager
    def track(self) -> Iterator[None]:
        """Count the current task in the context."""
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            yield
        finally:
            self._tasks.discard(task)
            self._responding.discard(task)
            if self._idle is not None and not self._tasks:
                self._idle.set()

    def begin_response(self) -> None:
        """Record that the current task has begun to send a response, which can only be cut off."""
        self._responding.add(asyncio.current_task())

    def can_refuse(self) -> bool:
        """Return whether :meth:`finish` cancelled the current task before it began to send a response."""
        return self.is_aborted and asyncio.current_task() not in self._responding

    async def finish(self, seconds: float) -> int:
        """Wait until all tasks have ended, at most some seconds, and then cancel them; return how many those are."""
        await self._wait(seconds)
        late = list(self._tasks)
        self.is_aborted = bool(late)
        for task in late:
            if task is not None:
                task.cancel()
        return len(late)

    async def _wait(self, seconds: float) -> None:
        if not self._tasks:
            return
        self._idle = asyncio.Event()
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            pass
