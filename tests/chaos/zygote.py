"""Starts many Python processes quickly: a process that has imported flowmx forks them.

``python -m tests.chaos`` reads orders on its standard input, a line of JSON each, and writes what it started and
what has ended on its standard output.
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
    """A process that was started.

    Attributes:
        pid: its number.
        ended: its status, as ``subprocess`` has it, once it has ended.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if not self.ended.done():
            os.kill(self.pid, number)


class Zygote:
    """The process that starts others. ``async with`` ends it and all of them."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._started: asyncio.Queue[int] = asyncio.Queue()
        self._running: dict[int, Process] = {}
        self._listening: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWMX_", "DMLC_"))}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.chaos", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            cwd=ROOT, env=kept | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        self._listening = asyncio.create_task(self._listen())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None and self._process.stdin is not None and self._listening is not None
        for process in list(self._running.values()):
            process.signal(signal.SIGKILL)
        self._process.stdin.close()
        await self._process.wait()
        await self._listening

    async def start(self, module: str, arguments: Sequence[str], environ: dict[str, str], output: Path) -> Process:
        """Start a process that calls a module's ``main`` with arguments.

        Args:
            module: its name.
            arguments: what main takes.
            environ: variables to add to the environment.
            output: the file to which its output is added.
        """
        assert self._process is not None and self._process.stdin is not None
        order = {"module": module, "arguments": list(arguments), "environ": environ, "output": str(output)}
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        pid = await self._started.get()
        return self._running[pid]

    async def _listen(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        while line := await self._process.stdout.readline():
            found = json.loads(line)
            if "started" in found:
                self._running[found["started"]] = Process(found["started"])
                self._started.put_nowait(found["started"])
            else:
                self._running.pop(found["ended"]).ended.set_result(found["status"])


# In the process itself


def _serve() -> dict[str, Any] | None:
    """Start what is ordered until there are no more orders; in a process that was started, return its order."""
    reading, writing = os.pipe()
    for end in (reading, writing):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    orders = _Lines()
    while True:
        ready, _, _ = select.select([0, reading], [], [])
        if reading in ready:
            os.read(reading, 4096)
            _reap()
        for line in orders.read() if 0 in ready else ():
            pid = os.fork()
            if not pid:
                for end in (reading, writing):
                    os.close(end)
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                found: dict[str, Any] = json.loads(line)
                return found
            _say({"started": pid})
        if orders.ended:
            return None


class _Lines:
    """Lines of standard input, as they come."""

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
        _say({"ended": pid, "status": os.waitstatus_to_exitcode(status)})


def _say(found: dict[str, Any]) -> None:
    os.write(1, json.dumps(found).encode() + b"\n")


def _become(order: dict[str, Any]) -> int:
    """Be the process of an order; return its status."""
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.environ.update(order["environ"])
    random.seed()
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s: %(message)s")
    settings = importlib.import_module("flowmx.settings")
    settings.reload()
    try:
        status: int = importlib.import_module(order["module"]).main(order["arguments"])
    except SystemExit:
        raise
    except BaseException as error:
        sys.last_value = error  # as the interpreter does, for those who look at the end of the program
        traceback.print_exc()
        return 1
    return status


def main() -> int:
    """Serve, or be what was started."""
    for name in ("flowmx.kvstore.server.main", "flowmx.comm.launch.scheduler", "flowmx.kvstore", "tests.chaos.worker"):
        importlib.import_module(name)
    order = _serve()
    return 0 if order is None else _become(order)
