"""The other end of a launcher's connection: ``python -m flowmx.comm.launch.agent`` on a host.

It reads one line, the order for a process, and then the numbers of signals for it, a line each. Its output is that of
the process, and its status too. When its input ends, the connection is gone, and so is the process. An order without a
command only removes its temporary folder.
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

from flowmx.comm.launch.child import Child, Guard, Output
from flowmx.comm.launch.plan import Order

__all__ = ["main", "started"]


@contextlib.asynccontextmanager
async def started(order: Order, output: Output) -> AsyncIterator[Child]:
    """The process of an order; at the end of the context it is killed if it still runs.

    Args:
        order: what to start.
        output: is given its name and each of its lines.

    Raises:
        OSError: a folder can not be used.
    """
    with Guard() as guard:
        folder = order.folder or None
        command, environ = order.argv(sys.executable), _environment(order, guard)
        child = await Child.start(order.name, order.node, command, environ, guard, output, folder=folder)
        try:
            yield child
        finally:
            child.signal(signal.SIGKILL)
            await child.ended


def _environment(order: Order, guard: Guard) -> dict[str, str]:
    """The environment of a process, with the files that it names; `python` is this one, which has flowmx."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    if order.scratch:
        Path(order.scratch).mkdir(mode=0o700, exist_ok=True)
    return {**os.environ, "PATH": path, **order.environ, **_secret(order, guard)}


def _secret(order: Order, guard: Guard) -> dict[str, str]:
    """Put the job's secret into a file that only this user reads, and that goes with this process."""
    if order.secret is None:
        return {}
    folder = Path(tempfile.mkdtemp(prefix="flowmx-secret-"))
    guard.remove(folder)
    path = folder / "secret"
    path.touch(mode=0o600)
    path.write_bytes(order.secret)
    return {"FLOWMX_SECRET_FILE": str(path)}


async def _serve(order: Order, lines: asyncio.StreamReader) -> int:
    async with started(order, _print) as child:
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
    order = Order.from_json((await lines.readline()).decode())
    if not order.command:
        shutil.rmtree(order.scratch, ignore_errors=True)
        return 0
    return await _serve(order, lines)


def _print(_: str, line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run one order; return the status of its process, or 126 where it could not be run."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the launcher decides what is done
    try:
        return asyncio.run(_run())
    except (OSError, ValueError) as error:
        sys.stderr.write(f"the process can not be started: {error}\n")
        return 126


if __name__ == "__main__":
    raise SystemExit(main())
