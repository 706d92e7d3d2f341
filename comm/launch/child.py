"""Processes that a launcher starts: their output line by line, and an end that leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from flowmx.comm.verdict import describe

__all__ = ["Child", "Guard"]

LONGEST = 1 << 16  # bytes of a line that are shown as one

ALONE = (sys.executable, "-I", "-S")  # Python with its standard library alone
HERE = Path(__file__).parent

Output = Callable[[str, str], None]


class Guard:
    """A guard process: it kills leftover process groups and removes folders after this process has ended in any way."""

    def __enter__(self) -> Self:
        command = [*ALONE, str(HERE / "guard.py")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, bufsize=1, start_new_session=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()

    def watch(self, group: int) -> None:
        """Have a process group killed, should it be left."""
        self._tell(f"+{group}")

    def forget(self, group: int) -> None:
        """Note that a process group has ended."""
        self._tell(f"-{group}")

    def remove(self, folder: Path) -> None:
        """Have a folder removed at the end."""
        self._tell(str(folder.absolute()))

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")


class Child:
    """A process in a group of its own, which dies with its parent.

    Args:
        name: what its lines begin with.
        node: its id in the job.
        process: the process.
        output: is given its name and each of its lines.

    Attributes:
        status: how it ended; None while it runs.
        lost: always False: a machine is not lost to itself.
        ended: is done once it has ended.
    """

    def __init__(self, name: str, node: str, process: asyncio.subprocess.Process, guard: Guard, output: Output) -> None:
        self.name = name
        self.node = node
        self.status: int | None = None
        self.lost = False
        self._process = process
        self._guard = guard
        self._output = output
        self.ended = asyncio.create_task(self._follow())

    @classmethod
    async def start(
        cls,
        name: str,
        node: str,
        command: Sequence[str],
        environ: Mapping[str, str],
        guard: Guard,
        output: Output,
        *,
        folder: str | None = None,
        reads: bool = False,
        descriptors: Sequence[int] = (),
    ) -> Self:
        """Start a program; one that does not exist prints so and ends with status 127.

        Args:
            name: what its lines begin with.
            node: its id in the job.
            command: the program and its arguments.
            environ: its environment.
            guard: ends it if this process can not.
            output: is given its name and each of its lines.
            folder: its working folder, by default this process's.
            reads: whether it reads what :meth:`tell` writes.
            descriptors: open files of this process that it inherits, by the same numbers.
        """
        process = await asyncio.create_subprocess_exec(
            *ALONE,
            str(HERE / "start.py"),
            str(os.getpid()),
            *command,
            stdin=asyncio.subprocess.PIPE if reads else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**environ, "PYTHONUNBUFFERED": "1"},
            cwd=folder,
            pass_fds=tuple(descriptors),
            start_new_session=True,
            limit=LONGEST,
        )
        guard.watch(process.pid)
        return cls(name, node, process, guard, output)

    @property
    def how(self) -> str:
        """The exit status as text, for messages."""
        return "it runs" if self.status is None else describe(self.status)

    def tell(self, line: str) -> None:
        """Write a line to the process's input."""
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(line.encode() + b"\n")

    def hang_up(self) -> None:
        """Close the process's input."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def signal(self, number: int) -> None:
        """Send a signal to the process and all that it started."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    async def _follow(self) -> int:
        reading = asyncio.create_task(self._read())
        status = await self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # what it started and left
        self._guard.forget(self._process.pid)
        await asyncio.wait({reading}, timeout=1.0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        self.status = self._meaning(status)
        return self.status

    def _meaning(self, status: int) -> int:
        """Translate an exit status of the local process into that of the process which it stands for."""
        return status

    async def _read(self) -> None:
        assert self._process.stdout is not None
        rest = b""
        while chunk := await self._process.stdout.read(LONGEST):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > LONGEST:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._output(self.name, line.decode(errors="replace").rstrip("\r"))
        if rest:
            self._output(self.name, rest.decode(errors="replace"))
