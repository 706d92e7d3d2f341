"""A job on a Dask or Ray cluster, as its user has it: what :func:`flowmx.kvstore.launch` returns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from flowmx.comm.launch.child import Output
from flowmx.comm.launch.hosts import Site
from flowmx.comm.launch.job import Launcher, Plan

__all__ = ["Job", "Result"]


@dataclass(frozen=True)
class Result:
    """The result of a job that has ended.

    Attributes:
        status: 0, or that of the process that failed first.
        failure: who failed, where and why; empty where nobody did.
        logs: every line, with the name of the process that wrote it; ``"launch"`` is the launcher.
        placement: the Dask worker or Ray node of each process, where it was started last.
    """

    status: int
    failure: str
    logs: list[tuple[str, str]] = field(repr=False)
    placement: dict[str, str]

    @property
    def ok(self) -> bool:
        """True if the job ended with status 0."""
        return self.status == 0


class Job:
    """A job that was launched: ``await`` it, or call :meth:`result`, as a Dask client is asynchronous or not.

    Attributes:
        logs: the lines so far, each with the name of the process that wrote it.
    """

    def __init__(self, plan: Plan, make: Callable[[], Site], output: Output, asynchronous: bool) -> None:
        self.logs: list[tuple[str, str]] = []
        self._plan, self._make, self._show = plan, make, output
        self._asynchronous = asynchronous
        self._launcher: Launcher | None = None
        self._ready = threading.Event()
        self._future: Future[Result] = Future()
        self._loop: asyncio.AbstractEventLoop
        self._task: asyncio.Task[Result]
        if asynchronous:
            self._begin()
        else:
            threading.Thread(target=lambda: asyncio.run(self._main()), name="flowmx launch", daemon=True).start()
            self._ready.wait()

    def _begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._finish)
        self._ready.set()

    async def _main(self) -> None:
        self._begin()
        await asyncio.wait({self._task})

    def _finish(self, task: asyncio.Task[Result]) -> None:
        if task.cancelled():
            self._future.cancel()
        elif error := task.exception():
            self._future.set_exception(error)
        else:
            self._future.set_result(task.result())

    async def _run(self) -> Result:
        self._launcher = Launcher(self._plan, self._hear, self._make())
        status = await self._launcher.run(signals=False)
        return Result(status, self._launcher.failure, self.logs, self.placement)

    def _hear(self, name: str, line: str) -> None:
        self.logs.append((name, line))
        self._show(name, line)

    @property
    def placement(self) -> dict[str, str]:
        """The Dask worker or Ray node of each process that was started."""
        hosts = self._launcher.hosts if self._launcher is not None else {}
        return {name: host.name for name, host in hosts.items()}

    def done(self) -> bool:
        """True once the job has ended."""
        return self._future.done()

    def __await__(self) -> Generator[Any, None, Result]:
        return asyncio.shield(asyncio.wrap_future(self._future)).__await__()

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the job's end; return how it ended.

        Args:
            timeout: seconds after which to give up waiting; the job goes on.

        Raises:
            TimeoutError: it has not ended by then.
            CancelledError: it was cancelled.
            RuntimeError: the client is asynchronous, whose loop this would block: ``await`` the job.
        """
        if self._asynchronous:
            raise RuntimeError("this job was launched by an asynchronous client: `await job`")
        return self._future.result(timeout)

    def cancel(self) -> None:
        """End the job: its processes are asked to end, then killed. Who waits for it gets a CancelledError."""
        self._loop.call_soon_threadsafe(self._task.cancel)
