"""Child processes of a launcher: their output by line, and their termination with all descendants."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from flowmx.comm.exit_reason import describe
from flowmx.comm.launch.output import Output

__all__ = ["Child", "Guard"]

MAX_LINE = 1 << 16  # maximum length of a line in bytes; longer lines are split

ISOLATED_PYTHON = (sys.executable, "-I", "-S")  # Python with only its standard library
FOLDER = Path(__file__).parent


class Guard:
    """A guard process. However this process ends, the guard kills leftover process groups and removes folders."""

    def __enter__(self) -> Self:
        command = [*ISOLATED_PYTHON, str(FOLDER / "guard.py")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, bufsize=1, start_new_session=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()

    def watch(self, group: int) -> None:
        """Add a process group, which the guard kills if it is left over."""
        self._write(f"+{group}")

    def forget(self, group: int) -> None:
        """Remove a process group that has ended."""
        self._write(f"-{group}")

    def remove(self, folder: Path) -> None:
        """Add a folder, which the guard removes at the end."""
        self._write(str(folder.absolute()))

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")


class Child:
    """A process in a separate process group, which is killed when its parent ends.

    Args:
        name: its name, the prefix of its output lines.
        node: its id in the job.
        process: the process.
        output: called with the name and each output line.

    Attributes:
        status: the exit status; None while the process runs.
        lost: whether the process's host was lost; always False for a local process.
        ended: a task that completes when the process has ended.
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
        has_input: bool = False,
        descriptors: Sequence[int] = (),
    ) -> Self:
        """Start a program. If the program does not exist, the process prints an error and exits with status 127.

        Args:
            name: its name, the prefix of its output lines.
            node: its id in the job.
            command: the program and its arguments.
            environ: its environment.
            guard: kills the process if this process cannot.
            output: called with the name and each output line.
            folder: its working folder; by default that of this process.
            has_input: whether the process reads input, from :meth:`write_line`.
            descriptors: file descriptors that the process inherits, with the same numbers.
        """
        process = await asyncio.create_subprocess_exec(
            *ISOLATED_PYTHON,
            str(FOLDER / "start.py"),
            str(os.getpid()),
            *command,
            stdin=asyncio.subprocess.PIPE if has_input else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**environ, "PYTHONUNBUFFERED": "1"},
            cwd=folder,
            pass_fds=tuple(descriptors),
            start_new_session=True,
            limit=MAX_LINE,
        )
        guard.watch(process.pid)
        return cls(name, node, process, guard, output)

    @property
    def status_text(self) -> str:
        """The exit status as text, for messages."""
        return "running" if self.status is None else describe(self.status)

    def write_line(self, line: str) -> None:
        """Write a line to the process's input."""
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(line.encode() + b"\n")

    def close_input(self) -> None:
        """Close the process's input."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def signal(self, number: int) -> None:
        """Send a signal to the process and its descendants."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    async def _follow(self) -> int:
        reading = asyncio.create_task(self._read())
        status = await self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # leftover descendants
        self._guard.forget(self._process.pid)
        await asyncio.wait({reading}, timeout=1.0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        self.status = self._translate(status)
        return self.status

    def _translate(self, status: int) -> int:
        """Convert the exit status of this process into that of the remote process, if there is one."""
        return status

    async def _read(self) -> None:
        assert self._process.stdout is not None
        rest = b""
        while chunk := await self._process.stdout.read(MAX_LINE):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > MAX_LINE:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._output(self.name, line.decode(errors="replace").rstrip("\r"))
        if rest:
            self._output(self.name, rest.decode(errors="replace"))
