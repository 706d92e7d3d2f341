"""A process on a host: its output and its exit status."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping, Sequence

from flowmx.comm.exit_reason import describe
from flowmx.comm.launch.child import Child, Guard
from flowmx.comm.notifier import Notifier

__all__ = ["Process"]


class Process:
    """A process; :meth:`start` starts one.

    Attributes:
        name: the name of the process, for messages.
        lines: the lines of standard output and standard error so far.
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
        process._child = await Child.start(name, "", command, environ, guard, process._add_line)
        process._child.ended.add_done_callback(lambda _: process._notifier.notify())
        return process

    @property
    def ended(self) -> asyncio.Task[int]:
        """The task that waits for the exit status."""
        return self._child.ended

    @property
    def text(self) -> str:
        """The output so far."""
        return "\n".join(self.lines)

    async def line(self, part: str) -> str:
        """Wait for a line that contains a text; return it.

        Raises:
            AssertionError: the process has ended without such a line.
        """
        while True:
            match = next((line for line in self.lines if part in line), None)
            if match is not None:
                return match
            if self.ended.done():
                raise AssertionError(f"{self.name} ended without {part!r}: {self}")
            await self._notifier.next()

    async def success(self) -> str:
        """Wait for the process to end; return its output.

        Raises:
            AssertionError: its status is not 0.
        """
        if await self.ended:
            raise AssertionError(str(self))
        return self.text

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the process and its descendants."""
        self._child.signal(number)

    def __str__(self) -> str:
        state = describe(self.ended.result()) if self.ended.done() else "running"
        return f"{self.name}: {state}\n{self.text}"

    def _add_line(self, name: str, line: str) -> None:
        self.lines.append(line)
        self._notifier.notify()
