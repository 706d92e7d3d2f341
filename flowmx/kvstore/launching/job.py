"""A job on a Dask or Ray cluster: the handle that :func:`flowmx.kvstore.launch` returns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from flowmx.comm.launch.hosts import Site
from flowmx.comm.launch.job import Launcher, Plan
from flowmx.comm.launch.output import Output

__all__ = ["Job", "Result"]


@dataclass(frozen=True)
class Result:
    """The result of a job that has ended.

    Attributes:
        status: 0, or the exit status of the process that failed first.
        failure: which process failed, where and why; empty without a failure.
        logs: every line, with the name of the process that wrote it; ``"launch"`` is the launcher.
        placement: the Dask worker or Ray node on which each process was last started.
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
    """A launched job: ``await`` it, or call :meth:`result` where the Dask client is not asynchronous.

    Attributes:
        logs: the lines so far, each with the name of the process that wrote it.
    """

    def __init__(self, plan: Plan, make_site: Callable[[], Site], output: Output, asynchronous: bool) -> None:
        self.logs: list[tuple[str, str]] = []
        self._plan, self._make_site, self._output = plan, make_site, output
        self._asynchronous = asynchronous
        self._launcher: Launcher | None = None
        self._ready = threading.Event()
        self._future: Future[Result] = Future()
        self._loop: asyncio.AbstractEventLoop
        self._task: asyncio.Task[Result]
        if asynchronous:
            self._start()
        else:
            threading.Thread(target=lambda: asyncio.run(self._main()), name="flowmx launch", daemon=True).start()
            self._ready.wait()

    def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._finish)
        self._ready.set()

    async def _main(self) -> None:
        self._start()
        await asyncio.wait({self._task})

    def _finish(self, task: asyncio.Task[Result]) -> None:
        if task.cancelled():
            self._future.cancel()
        elif error := task.exception():
            self._future.set_exception(error)
        else:
            self._future.set_result(task.result())

    async def _run(self) -> Result:
        self._launcher = Launcher(self._plan, self._log_line, self._make_site())
        status = await self._launcher.run(signals=False)
        return Result(status, self._launcher.failure, self.logs, self.placement)

    def _log_line(self, name: str, line: str) -> None:
        self.logs.append((name, line))
        self._output(name, line)

    @property
    def placement(self) -> dict[str, str]:
        """The Dask worker or Ray node of each process."""
        hosts = self._launcher.hosts if self._launcher is not None else {}
        return {name: host.name for name, host in hosts.items()}

    def done(self) -> bool:
        """True once the job has ended."""
        return self._future.done()

    def __await__(self) -> Generator[Any, None, Result]:
        return asyncio.shield(asyncio.wrap_future(self._future)).__await__()

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the end of the job; return its result.

        Args:
            timeout: maximum seconds to wait; the job continues after a timeout.

        Raises:
            TimeoutError: the job has not ended within `timeout`.
            CancelledError: the job was cancelled.
            RuntimeError: the client is asynchronous, and this would block its loop: ``await`` the job.
        """
        if self._asynchronous:
            raise RuntimeError("this job was launched by an asynchronous client: `await job`")
        return self._future.result(timeout)

    def cancel(self) -> None:
        """Cancel the job: its processes are terminated, then killed. Callers that wait for it get a CancelledError."""
        self._loop.call_soon_threadsafe(self._task.cancel)
