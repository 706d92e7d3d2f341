"""The remote end of a launcher's connection: ``python -m flowmx.comm.launch.agent`` on a host.

It reads one line, the specification of a process, and then lines with the numbers of signals for it. It forwards the
output of the process and exits with its status. The end of its input means that the connection has ended; it then kills
the process. A specification without a command only removes its temporary folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from flowmx.comm.launch.child import Child, Guard
from flowmx.comm.launch.output import Output
from flowmx.comm.launch.plan import ProcessSpec

__all__ = ["main", "run_process"]


@contextlib.asynccontextmanager
async def run_process(spec: ProcessSpec, output: Output) -> AsyncIterator[Child]:
    """Start a process; kill it at the end of the context if it still runs.

    Args:
        spec: the specification of the process.
        output: called with the process's name and each of its lines.

    Raises:
        OSError: a folder cannot be used.
    """
    with Guard() as guard:
        folder = spec.folder or None
        command, environ = spec.argv(sys.executable), _environment(spec, guard)
        child = await Child.start(spec.name, spec.node, command, environ, guard, output, folder=folder)
        try:
            yield child
        finally:
            child.signal(signal.SIGKILL)
            await child.ended


def _environment(spec: ProcessSpec, guard: Guard) -> dict[str, str]:
    """Return the environment of a process, and create its files; `python` is this interpreter, which has flowmx."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    if spec.scratch:
        Path(spec.scratch).mkdir(mode=0o700, exist_ok=True)
    return {**os.environ, "PATH": path, **spec.environ, **_secret(spec, guard)}


def _secret(spec: ProcessSpec, guard: Guard) -> dict[str, str]:
    """Write the job's secret to a file that only this user can read, and that is removed after this process."""
    if spec.secret is None:
        return {}
    folder = Path(tempfile.mkdtemp(prefix="flowmx-secret-"))
    guard.remove(folder)
    path = folder / "secret"
    path.touch(mode=0o600)
    path.write_bytes(spec.secret)
    return {"FLOWMX_SECRET_FILE": str(path)}


async def _serve(spec: ProcessSpec, lines: asyncio.StreamReader) -> int:
    async with run_process(spec, _print) as child:
        control = asyncio.create_task(_control(child, lines))
        await asyncio.wait({control, child.ended}, return_when=asyncio.FIRST_COMPLETED)
        control.cancel()
    await asyncio.gather(control, return_exceptions=True)
    assert child.status is not None
    return child.status if child.status >= 0 else 128 - child.status


async def _control(child: Child, lines: asyncio.StreamReader) -> None:
    while line := await lines.readline():
        child.signal(signal.Signals(int(line)))


async def _run() -> int:
    lines = asyncio.StreamReader(limit=1 << 24)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    spec = ProcessSpec.from_json((await lines.readline()).decode())
    if not spec.command:
        shutil.rmtree(spec.scratch, ignore_errors=True)
        return 0
    return await _serve(spec, lines)


def _print(_: str, line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run one process; return its status, or 126 if it cannot be started."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the launcher decides what to do
    try:
        return asyncio.run(_run())
    except (OSError, ValueError) as error:
        sys.stderr.write(f"the process cannot be started: {error}\n")
        return 126


if __name__ == "__main__":
    raise SystemExit(main())
