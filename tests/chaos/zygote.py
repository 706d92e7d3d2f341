"""Starts many Python processes quickly: they are forks of a process that has imported flowmx.

``python -m tests.chaos`` reads requests from its standard input, one line of JSON each, and reports on its standard
output which processes have started and ended.
"""

from __future__ import annotations

import asyncio
import faulthandler
import importlib
import json
import logging
import os
import random
import select
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["Process", "Zygote", "main"]

ROOT = Path(__file__).parents[2]


class Process:
    """A running process.

    Attributes:
        pid: its process id.
        ended: a future of its exit status, which has the values of ``subprocess``.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def signal(self, number: int) -> None:
        """Send a signal if the process is running."""
        if not self.ended.done():
            os.kill(self.pid, number)


class Zygote:
    """The process that forks the others. The end of ``async with`` ends it and all of them."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._pids: asyncio.Queue[int] = asyncio.Queue()
        self._running: dict[int, Process] = {}
        self._listener: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWMX_", "DMLC_"))}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.chaos", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            cwd=ROOT, env=inherited | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        self._listener = asyncio.create_task(self._listen())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None and self._process.stdin is not None and self._listener is not None
        for process in list(self._running.values()):
            process.signal(signal.SIGKILL)
        self._process.stdin.close()
        await self._process.wait()
        await self._listener

    async def start(self, module: str, arguments: Sequence[str], environ: dict[str, str], output: Path) -> Process:
        """Start a process that calls a module's ``main`` with arguments.

        Args:
            module: the name of the module.
            arguments: the arguments of ``main``.
            environ: variables to add to the environment.
            output: the file to append its output to.
        """
        assert self._process is not None and self._process.stdin is not None
        request = {"module": module, "arguments": list(arguments), "environ": environ, "output": str(output)}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        pid = await self._pids.get()
        return self._running[pid]

    async def _listen(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        while line := await self._process.stdout.readline():
            report = json.loads(line)
            if "started" in report:
                self._running[report["started"]] = Process(report["started"])
                self._pids.put_nowait(report["started"])
            else:
                self._running.pop(report["ended"]).ended.set_result(report["status"])


# In the forking process


def _serve() -> dict[str, Any] | None:
    """Fork a process for each request, until input ends; in a forked process, return its request."""
    reading, writing = os.pipe()
    for end in (reading, writing):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    lines = _Lines()
    while True:
        ready, _, _ = select.select([0, reading], [], [])
        if reading in ready:
            os.read(reading, 4096)
            _reap()
        for line in lines.read() if 0 in ready else ():
            pid = os.fork()
            if not pid:
                for end in (reading, writing):
                    os.close(end)
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                request: dict[str, Any] = json.loads(line)
                return request
            _report({"started": pid})
        if lines.ended:
            return None


class _Lines:
    """The lines of standard input."""

    def __init__(self) -> None:
        self._rest = b""
        self.ended = False

    def read(self) -> list[bytes]:
        data = os.read(0, 1 << 16)
        self.ended = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines


def _reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        _report({"ended": pid, "status": os.waitstatus_to_exitcode(status)})


def _report(report: dict[str, Any]) -> None:
    os.write(1, json.dumps(report).encode() + b"\n")


def _run_request(request: dict[str, Any]) -> int:
    """Run the program of a request in this process; return the exit status."""
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.environ.update(request["environ"])
    random.seed()
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s: %(message)s")
    settings = importlib.import_module("flowmx.settings")
    settings.reload()
    try:
        status: int = importlib.import_module(request["module"]).main(request["arguments"])
    except SystemExit:
        raise
    except BaseException as error:
        sys.last_value = error  # as the interpreter does, for exit handlers
        traceback.print_exc()
        return 1
    return status


def main() -> int:
    """Serve requests; in a forked process, run its program."""
    for name in ("flowmx.kvstore.server.main", "flowmx.comm.launch.scheduler", "flowmx.kvstore", "tests.chaos.worker"):
        importlib.import_module(name)
    request = _serve()
    return 0 if request is None else _run_request(request)
