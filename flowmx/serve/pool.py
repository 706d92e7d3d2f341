"""A pool of workers: processes that serve the same models on the same sockets (``flowmx serve --workers``).

The pool listens, and its workers accept: a connection that no worker has accepted is not lost when one of them ends.
A worker that ends is replaced. Metrics are sums over all workers, including those that have ended. A model is loaded
in all workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowmx import settings
from flowmx.comm.exit_reason import describe, shell_status
from flowmx.comm.launch.child import Child, Guard
from flowmx.comm.listening import listen
from flowmx.comm.metrics import Metrics, merge, totals
from flowmx.devices.threads import cores
from flowmx.serve.pool_channel import Channel
from flowmx.serve.pool_member import MemberOptions
from flowmx.serve.replies import Refusal
from flowmx.serve.service import DRAIN_SECONDS

__all__ = ["Pool"]

_log = logging.getLogger("flowmx.serve")
_LARGEST = ("flowmx_serve_model_version",)
"""Gauges of which the pool shows the largest value instead of the sum."""
_ASK_SECONDS = 2.0
"""Seconds in which a worker must answer a question about its metrics."""
_END_SECONDS = 10.0
"""Seconds that workers have to end when their time to drain is over."""
_STABLE_SECONDS = 10.0
"""A worker that has lived this long is replaced immediately."""
_DELAYS = (0.5, 30.0)
"""The first and the longest delay in seconds before a worker is replaced, if several end quickly."""


@dataclass(eq=False)
class _Worker:
    """A running worker.

    Attributes:
        child: its process.
        channel: the channel to it.
        metrics: its latest metrics.
        started: whether it accepts connections.
        is_loaded: whether its models are warm.
    """

    child: Child
    channel: Channel
    metrics: str = ""
    started: asyncio.Event = field(default_factory=asyncio.Event)
    is_loaded: bool = False


class Pool:
    """The workers of one service.

    Args:
        count: number of workers.
        arguments: the arguments of ``flowmx serve`` that each of them is started with.
        drain_timeout: seconds that the requests of a worker have to finish after SIGTERM.
    """

    def __init__(self, count: int, arguments: Sequence[str], drain_timeout: float = DRAIN_SECONDS) -> None:
        self.count, self._drain_timeout = count, drain_timeout
        self._arguments = list(arguments)
        self._workers: dict[int, _Worker] = {}
        self._sockets: list[socket.socket] = []
        self._ended_metrics = ""
        self._unloaded: set[str] = set()
        self._stopping = asyncio.Event()
        self._status = 0
        self._is_complete = False
        self._metrics = Metrics()
        self._running = self._metrics.gauge("flowmx_serve_workers", "Workers whose models are warm.")
        self._restarts = self._metrics.counter("flowmx_serve_worker_restarts_total", "Workers that were replaced.")

    async def run(self, host: str, port: int, scheme: str = "http") -> int:
        """Serve until SIGTERM or SIGINT, then drain the workers; return the exit status.

        Raises:
            OSError: the address is in use or not local.
        """
        loop = asyncio.get_running_loop()
        self._sockets = await listen(host, port)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        with Guard() as guard:
            keepers = [asyncio.create_task(self._keep(index, guard)) for index in range(self.count)]
            if await self._all_started():
                address = f"{scheme}://{host}:{self._sockets[0].getsockname()[1]}"
                _log.info("%d workers serve at %s", self.count, address)
            await self._stopping.wait()
            for sock in self._sockets:
                sock.close()
            for worker in self._workers.values():
                worker.child.signal(signal.SIGTERM)
            _, late = await asyncio.wait(keepers, timeout=self._drain_timeout + _END_SECONDS)
            for worker in self._workers.values():
                worker.child.signal(signal.SIGKILL)
            await asyncio.gather(*keepers)
        return 1 if late else self._status

    async def _all_started(self) -> bool:
        """Wait until all workers accept connections; return False if the pool stops before."""
        stopping = asyncio.create_task(self._stopping.wait())
        while not self._stopping.is_set() and self._count_started() < self.count:
            await asyncio.wait([stopping], timeout=0.05)
        stopping.cancel()
        return not self._stopping.is_set()

    # -- one worker ------------------------------------------------------------------------------------

    async def _keep(self, index: int, guard: Guard) -> None:
        """Run a worker, and replace it when it ends, until the pool stops."""
        delay, has_started = 0.0, False
        while not self._stopping.is_set():
            start = time.monotonic()
            async with self._worker(index, guard, has_started) as worker:
                status = await worker.child.ended
            has_started = has_started or worker.is_loaded
            if self._stopping.is_set():
                if worker.started.is_set():  # another one has no handler of SIGTERM yet
                    self._status = self._status or shell_status(status)
                return
            if not has_started:
                _log.error("worker %d did not start: %s", index, describe(status))
                self._status = shell_status(status) or 1
                self._stopping.set()
                return
            delay = 0.0 if time.monotonic() - start > _STABLE_SECONDS else min(max(2 * delay, _DELAYS[0]), _DELAYS[1])
            _log.warning("worker %d ended: %s; it is replaced in %g s", index, describe(status), delay)
            self._restarts.add()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)

    @contextlib.asynccontextmanager
    async def _worker(self, index: int, guard: Guard, is_replacement: bool) -> AsyncIterator[_Worker]:
        """Start a worker; its metrics are kept when it has ended."""
        pool_end, worker_end = socket.socketpair()
        numbers = [sock.fileno() for sock in self._sockets]
        options = MemberOptions(worker_end.fileno(), numbers, is_replacement, sorted(self._unloaded))
        command = [sys.executable, "-m", "flowmx", "serve", *self._arguments, "--member", options.to_text()]
        with worker_end:
            child = await Child.start(
                f"worker {index}", f"worker {index}", command, {**os.environ, **self._environ()}, guard, _print,
                descriptors=[worker_end.fileno(), *numbers],
            )  # fmt: skip
        worker = _Worker(child, await Channel.open(pool_end, {}))
        worker.channel.methods = {
            "started": lambda: _set_started(worker), "loaded": lambda: self._set_loaded(worker),
            "report": lambda metrics: _keep_metrics(worker, metrics),
            "metrics": self.metrics, "load": self._load, "unload": self._unload,
        }  # fmt: skip
        self._workers[index] = worker
        if self._stopping.is_set():
            child.signal(signal.SIGTERM)
        try:
            yield worker
        finally:
            del self._workers[index]
            await worker.channel.close()
            self._ended_metrics = merge([self._ended_metrics, totals(worker.metrics)])
            await self._send_status()

    def _environ(self) -> dict[str, str]:
        """Return the settings of a worker: kernels of all workers together have as many threads as there are cores."""
        config = settings.get()
        if config.cpu_kernel_nthreads:
            return {}
        threads = max(1, cores() // (self.count * config.cpu_worker_nthreads))
        return {"FLOWMX_CPU_KERNEL_NTHREADS": str(threads)}

    # -- what workers call -----------------------------------------------------------------------------

    async def _set_loaded(self, worker: _Worker) -> None:
        worker.is_loaded = True
        self._is_complete = self._is_complete or self._count_running() == self.count
        await self._send_status()

    async def metrics(self) -> str:
        """Return the metrics of the pool and of all its workers."""
        asked = await self._ask("metrics", _ASK_SECONDS)
        for worker, text in asked.items():
            worker.metrics = text if isinstance(text, str) else worker.metrics
        self._running.set(self._count_running())
        texts = [self._ended_metrics, *(worker.metrics for worker in self._workers.values())]
        return merge(texts, _LARGEST) + self._metrics.text()

    async def _load(self, name: str) -> None:
        self._unloaded.discard(name)
        self._check(await self._ask("load", name=name))

    async def _unload(self, name: str) -> None:
        answers = await self._ask("unload", name=name)
        self._check(answers)
        self._unloaded.add(name)

    async def _ask(self, method: str, seconds: float | None = None, **arguments: Any) -> dict[_Worker, Any]:
        """Call a method of all workers; return the answers, of which some may be exceptions."""
        workers = list(self._workers.values())
        calls = (asyncio.wait_for(worker.channel.call(method, **arguments), seconds) for worker in workers)
        return dict(zip(workers, await asyncio.gather(*calls, return_exceptions=True), strict=True))

    def _check(self, answers: dict[_Worker, Any]) -> None:
        """Raise the first refusal. A worker that has ended is replaced, and loads what the folder holds."""
        for answer in answers.values():
            if isinstance(answer, Refusal):
                raise answer

    async def _send_status(self) -> None:
        """Tell all workers how many there are, for ``/readyz``."""
        status = {
            "is_complete": self._is_complete,
            "expected": self.count,
            "running": self._count_running(),
            "replaced": int(self._restarts.value()),
        }
        await self._ask("set_status", _ASK_SECONDS, **status)

    def _count_started(self) -> int:
        return sum(worker.started.is_set() for worker in self._workers.values())

    def _count_running(self) -> int:
        return sum(worker.is_loaded for worker in self._workers.values())


async def _set_started(worker: _Worker) -> None:
    worker.started.set()


async def _keep_metrics(worker: _Worker, metrics: str) -> None:
    worker.metrics = metrics


def _print(name: str, line: str) -> None:
    sys.stderr.write(f"{name}: {line}\n")
