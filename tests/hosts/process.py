"""A process on a host: its lines as they come, and its end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping, Sequence

from flowmx.comm.launch.child import Child, Guard
from flowmx.comm.notifier import Notifier
from flowmx.comm.verdict import describe

__all__ = ["Process"]


class Process:
    """A process that was started; made by :meth:`start`.

    Attributes:
        name: what it is called.
        lines: what it has written so far, both outputs together.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: list[str] = []
        self._notifier = Notifier()
        self._child: Child

    @classmethod
    async def start(cls, name: str, command: Sequence[str], environ: Mapping[str, str], guard: Guard) -> Process:
        """Start a program, which dies with this process."""
        process = cls(name)
        process._child = await Child.start(name, "", command, environ, guard, process._hear)
        process._child.ended.add_done_callback(lambda _: process._notifier.notify())
        return process

    @property
    def ended(self) -> asyncio.Task[int]:
        """Its exit status, once it has ended."""
        return self._child.ended

    @property
    def text(self) -> str:
        """Its output so far."""
        return "\n".join(self.lines)

    async def line(self, part: str) -> str:
        """Wait for a line that holds a text; return it.

        Raises:
            AssertionError: the process has ended without it.
        """
        while True:
            found = next((line for line in self.lines if part in line), None)
            if found is not None:
                return found
            if self.ended.done():
                raise AssertionError(f"{self.name} ended without {part!r}: {self}")
            await self._notifier.next()

    async def success(self) -> str:
        """Wait for its end; return what it wrote.

        Raises:
            AssertionError: its status is not 0.
        """
        if await self.ended:
            raise AssertionError(str(self))
        return self.text

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to it and all that it started."""
        self._child.signal(number)

    def __str__(self) -> str:
        state = describe(self.ended.result()) if self.ended.done() else "running"
        return f"{self.name}: {state}\n{self.text}"

    def _hear(self, name: str, line: str) -> None:
        self.lines.append(line)
        self._notifier.notify()
