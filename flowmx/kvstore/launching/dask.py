"""A Dask cluster as the site of a job: each Dask worker is a host, with one slot per thread."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from distributed import Client
from distributed.comm.addressing import get_address_host

from flowmx import settings
from flowmx.comm.clock import Clock, within
from flowmx.comm.errors import PeerGone
from flowmx.comm.exit_reason import describe
from flowmx.comm.frames import Message
from flowmx.comm.launch.hosts import Host
from flowmx.comm.launch.output import Output
from flowmx.comm.launch.plan import Plan, ProcessSpec, job_secret
from flowmx.comm.node import Connection
from flowmx.comm.notifier import Notifier
from flowmx.kvstore.launching import dask_task

__all__ = ["Cluster"]

LOST = 255  # the status of a process whose Dask worker is lost
PATIENCE = 5.0  # seconds to wait for a response of a Dask worker
ALL = "all"  # the topic of Dask's events: workers that are added and removed


class DaskProcess:
    """A process that runs under a Dask task.

    Args:
        host: the Dask worker that runs it.
        spec: describes the process.
        key: the key of the task.
        future: the future of the task.
        output: called with the name of the process and each line that it writes.

    Attributes:
        name, node, status, lost, ended: as in :class:`~flowmx.comm.launch.hosts.Process`.
        future: the future of the task.
        holds: whether the task occupies its slot.
    """

    def __init__(self, host: DaskWorker, spec: ProcessSpec, key: str, future: Any, output: Output, holds: bool) -> None:
        self.name, self.node, self.host, self.key, self.holds = spec.name, spec.node, host, key, holds
        self.status: int | None = None
        self.lost = False
        self.future = future
        self._output = output
        self._lines_written = 0
        self._notifier = Notifier()
        self._lost_event = asyncio.Event()
        self.ended = asyncio.create_task(self._follow())

    @property
    def status_text(self) -> str:
        """Description of how the process ended, for messages."""
        if self.lost:
            return f"the Dask worker {self.host.name} is lost"
        return "it runs" if self.status is None else describe(self.status)

    def signal(self, number: int) -> None:
        """Send a signal to the process and its children."""
        if self.status is None:
            self.host.site.spawn(self._signal(number))

    async def _signal(self, number: int) -> None:
        is_running = await self.host.site.ask(self.host.name, dask_task.control, self.key, number)
        if not is_running and number == signal.SIGKILL:  # not started yet: keep it from starting
            await self.future.cancel()

    def write_lines(self, lines: list[str]) -> None:
        """Write lines of the process to the output."""
        for line in lines:
            self._output(self.name, line)
        self._lines_written += len(lines)
        self._notifier.notify()

    def mark_lost(self) -> None:
        """Record that the Dask worker was lost."""
        self._lost_event.set()

    async def _follow(self) -> int:
        result, lost = asyncio.create_task(self._result()), asyncio.create_task(self._lost_event.wait())
        await asyncio.wait({result, lost}, return_when=asyncio.FIRST_COMPLETED)
        if result.done() and not self._lost_event.is_set():
            status, lines = result.result()
            await within(Clock(), 1.0, lambda: self._all_lines(lines))
        else:
            self.lost, status = True, LOST
            await self.future.cancel()  # Dask would wait for another worker of that address
        for task in (result, lost):
            task.cancel()
        await asyncio.gather(result, lost, return_exceptions=True)
        self.status = status
        return status

    async def _result(self) -> dask_task.Ended:
        try:
            return dask_task.Ended(*await self.future)
        except Exception as error:  # the task may raise anything
            self._output(self.name, f"its Dask task failed: {type(error).__name__}: {error}")
            return dask_task.Ended(1, 0)
        except asyncio.CancelledError:  # the future was cancelled, or this task, whose result is unused
            return dask_task.Ended(-signal.SIGKILL, 0)

    async def _all_lines(self, lines: int) -> None:
        while self._lines_written < lines:
            await self._notifier.next()


class DaskWorker:
    """One Dask worker.

    Args:
        name: its address in Dask.
        slots: the number of its threads.
        site: the cluster that it belongs to.
    """

    def __init__(self, name: str, slots: int, site: Cluster) -> None:
        self.name, self.slots, self.site = name, slots, site
        # Workers inside this process have no address; their processes run on this machine.
        self.address = "127.0.0.1" if name.startswith("inproc://") else get_address_host(name)
        self.scratch = site.scratch

    async def start(self, spec: ProcessSpec, output: Output) -> DaskProcess:
        """Start a process under a task that occupies a slot; a scheduler needs hardly any CPU and occupies none."""
        await self._make_room()
        return self.site.submit(self, spec, output, holds=spec.name != "scheduler")

    async def _make_room(self) -> None:
        """Free a slot for one more process if this job's processes occupy all slots of the Dask worker."""
        holders = [process for process in self.site.running(self.name) if process.holds]
        if len(holders) >= self.slots:
            holders[0].holds = False
            await self.site.ask(self.name, dask_task.free_slot, holders[0].key)


class Relay:
    """A connection to the job's scheduler through Dask: views arrive as events, other calls go to its Dask worker.

    Args:
        site: the cluster.
    """

    def __init__(self, site: Cluster) -> None:
        self._site = site

    async def call(
        self,
        operation: str,
        header: dict[str, Any],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 (as in Peer)
    ) -> Message:
        """Call an operation.

        Raises:
            PeerGone: the scheduler does not answer.
        """
        if "epoch" in header:
            await within(Clock(), timeout or PATIENCE, lambda: self._site.wait_for_view(header["epoch"]))
            return Message({"view": self._site.view}, []) if self._site.view else _no_response(operation)
        process = self._site.scheduler
        if process is None:
            return _no_response(operation)
        response = await self._site.ask(
            process.host.name, dask_task.relay, process.key, operation, header, timeout or PATIENCE
        )
        return Message(response, []) if response else _no_response(operation)

    async def close(self) -> None:
        """Do nothing: there is no connection to close."""


def _no_response(operation: str) -> Message:
    raise PeerGone(f"the scheduler did not answer {operation!r}")


class Cluster:
    """The workers of a Dask cluster.

    Args:
        plan: the job to launch.
        address: the address of Dask's scheduler.
        security: the security settings of Dask's connections.
        folder: the working folder of the processes; by default that of the Dask workers.
    """

    def __init__(self, plan: Plan, address: str, security: object = None, folder: str = "") -> None:
        self.plan = plan
        self.secret: bytes | None = None
        self.folder = folder
        self.topic = f"flowmx-{secrets.token_hex(4)}"
        self.scratch = f"/tmp/{self.topic}" if plan.policy == "elastic" else ""
        self.view: dict[str, Any] = {}
        self.scheduler: DaskProcess | None = None
        # A separate client: its tasks end with it, and it does not share event handlers with the user's client.
        self._client = Client(address, security=security, asynchronous=True, set_as_default=False, name="flowmx-launch")
        self._hosts: dict[str, DaskWorker] = {}
        self._processes: dict[str, DaskProcess] = {}
        self._notifier = Notifier()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self._client
        try:
            await self._update_hosts()
            await self._check_workers()
            self.secret = job_secret(settings.get().secret_file)
            self._client.subscribe_topic(self.topic, self._receive)
            self._client.subscribe_topic(ALL, self._receive_dask_event)
        except BaseException:  # cleanup, also when interrupted
            await self._client.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self.scratch:
                await asyncio.gather(*(self.ask(name, dask_task.remove, self.scratch) for name in self._hosts))
            await self._client.cancel([process.future for process in self._processes.values()])
        finally:
            for topic in (self.topic, ALL):
                self._client.unsubscribe_topic(topic)
            await self._client.close()

    async def _check_workers(self) -> None:
        """Check that there are workers, and that they can import flowmx.

        Raises:
            ValueError: the cluster has no workers.
            RuntimeError: a worker cannot import flowmx.
        """
        if not self._hosts:
            raise ValueError(f"the Dask cluster at {self._client.scheduler.address} has no workers")
        responses = await self._client.run(dask_task.machine, on_error="return")
        for name, response in responses.items():
            if isinstance(response, Exception):
                raise RuntimeError(f"the Dask worker {name} cannot use the flowmx that is installed here: {response}")

    def hosts(self) -> Sequence[Host]:
        """The current Dask workers."""
        return list(self._hosts.values())

    def connect(self, scheduler: str) -> Connection:
        """Return a connection to the job's scheduler."""
        return Relay(self)

    def log_message(self, line: str) -> None:
        """Log a line of the launcher as an event of the job."""
        self.spawn(self._log(line))

    async def _log(self, line: str) -> None:
        await self._client.log_event(self.topic, {"name": "launch", "lines": [line]})

    # Processes.

    def submit(self, host: DaskWorker, spec: ProcessSpec, output: Output, holds: bool) -> DaskProcess:
        """Start a process under a new Dask task."""
        key = f"flowmx {spec.name}-{self.topic}-{len(self._processes)}".replace(" ", "-")
        spec = replace(spec, folder=self.folder)
        future = self._client.submit(
            dask_task.run, spec, self.topic, holds, key=key, workers=[host.name], allow_other_workers=False, pure=False
        )
        self._processes[key] = process = DaskProcess(host, spec, key, future, output, holds)
        if spec.name == "scheduler":
            self.scheduler = process
        if host.name not in self._hosts:
            process.mark_lost()
        return process

    def running(self, host: str) -> list[DaskProcess]:
        """Return the processes on a Dask worker that have not ended."""
        return [process for process in self._processes.values() if process.host.name == host and process.status is None]

    async def ask(self, host: str, function: object, *arguments: object) -> Any:
        """Call a function on a Dask worker; return None if it does not answer."""
        if host not in self._hosts:
            return None
        with contextlib.suppress(Exception):  # Dask's errors have no common base
            async with asyncio.timeout(PATIENCE):
                responses = await self._client.run(function, *arguments, workers=[host], on_error="ignore")
                return responses.get(host)
        return None

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """Run a coroutine as a background task."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait_for_view(self, epoch: int) -> None:
        """Wait for a view with another epoch."""
        while self.view.get("epoch", 0) == epoch:
            await self._notifier.next()

    # Events.

    def _receive(self, event: tuple[float, Any]) -> None:
        message = event[1]
        process = self._processes.get(message.get("key", ""))
        if process is not None and "lines" in message:
            process.write_lines(message["lines"])
        if process is not None and process is self.scheduler and "view" in message:
            self.view = message["view"]
            self._notifier.notify()

    async def _receive_dask_event(self, event: tuple[float, Any]) -> None:
        action, worker = event[1].get("action"), event[1].get("worker")
        if action == "remove-worker":
            self._hosts.pop(worker, None)
            for process in self.running(worker):
                process.mark_lost()
        elif action == "add-worker":
            await self._update_hosts()

    async def _update_hosts(self) -> None:
        workers = (await self._client.scheduler.identity())["workers"]
        for name in workers:
            self._hosts.setdefault(name, DaskWorker(name, workers[name]["nthreads"], self))
