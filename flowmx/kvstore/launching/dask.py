"""A Dask cluster as the site of a job: each of its workers is a host, with as many slots as it has threads."""

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
from flowmx.comm.frames import Message
from flowmx.comm.launch.child import Output
from flowmx.comm.launch.hosts import Host
from flowmx.comm.launch.plan import Order, Plan, job_secret
from flowmx.comm.node import Connection
from flowmx.comm.notifier import Notifier
from flowmx.comm.verdict import describe
from flowmx.kvstore.launching import node

__all__ = ["Cluster"]

LOST = 255  # the status of a process whose Dask worker is lost
PATIENCE = 5.0  # seconds in which a Dask worker answers
ALL = "all"  # Dask's own events: workers that come and go


class Supervised:
    """A process under a task of Dask.

    Args:
        host: where.
        order: for the process.
        key: of the task.
        future: of the task.
        output: is given its name and each of its lines.

    Attributes:
        name, node, status, lost, ended: as in :class:`~flowmx.comm.launch.hosts.Process`.
        future: of the task.
        holds: whether the task keeps its slot.
    """

    def __init__(self, host: DaskWorker, order: Order, key: str, future: Any, output: Output, holds: bool) -> None:
        self.name, self.node, self.host, self.key, self.holds = order.name, order.node, host, key, holds
        self.status: int | None = None
        self.lost = False
        self.future = future
        self._output = output
        self._heard = 0
        self._notifier = Notifier()
        self._lost_event = asyncio.Event()
        self.ended = asyncio.create_task(self._follow())

    @property
    def how(self) -> str:
        """Description of how the process ended, for messages."""
        if self.lost:
            return f"the Dask worker {self.host.name} is gone"
        return "it runs" if self.status is None else describe(self.status)

    def signal(self, number: int) -> None:
        """Send a signal to the process and all that it started."""
        if self.status is None:
            self.host.site.spawn(self._signal(number))

    async def _signal(self, number: int) -> None:
        here = await self.host.site.ask(self.host.name, node.control, self.key, number)
        if not here and number == signal.SIGKILL:  # it has not started, and must not
            await self.future.cancel()

    def take_lines(self, lines: list[str]) -> None:
        """Write lines of the process to the output."""
        for line in lines:
            self._output(self.name, line)
        self._heard += len(lines)
        self._notifier.notify()

    def lose(self) -> None:
        """Note that the Dask worker was lost."""
        self._lost_event.set()

    async def _follow(self) -> int:
        result, lost = asyncio.create_task(self._result()), asyncio.create_task(self._lost_event.wait())
        await asyncio.wait({result, lost}, return_when=asyncio.FIRST_COMPLETED)
        if result.done() and not self._lost_event.is_set():
            status, lines = result.result()
            await within(Clock(), 1.0, lambda: self._all(lines))
        else:
            self.lost, status = True, LOST
            await self.future.cancel()  # Dask would wait for another worker of that address
        for task in (result, lost):
            task.cancel()
        await asyncio.gather(result, lost, return_exceptions=True)
        self.status = status
        return status

    async def _result(self) -> node.Ended:
        try:
            return node.Ended(*await self.future)
        except Exception as error:
            self._output(self.name, f"its Dask task failed: {type(error).__name__}: {error}")
            return node.Ended(1, 0)
        except asyncio.CancelledError:  # of the future; where it is this task's, its outcome is not looked at
            return node.Ended(-signal.SIGKILL, 0)

    async def _all(self, lines: int) -> None:
        while self._heard < lines:
            await self._notifier.next()


class DaskWorker:
    """One Dask worker.

    Args:
        name: its address in Dask.
        slots: its threads.
        site: of which it is a part.
    """

    def __init__(self, name: str, slots: int, site: Cluster) -> None:
        self.name, self.slots, self.site = name, slots, site
        # Workers inside one process have no address; what they start is on its machine.
        self.address = "127.0.0.1" if name.startswith("inproc://") else get_address_host(name)
        self.scratch = site.scratch

    async def start(self, order: Order, output: Output) -> Supervised:
        """Start a process under a task that keeps one of the slots, except for a scheduler, which takes hardly any."""
        await self._make_room()
        return self.site.submit(self, order, output, holds=order.name != "scheduler")

    async def _make_room(self) -> None:
        """Free a slot for one more process if this job's processes hold all slots of the Dask worker."""
        holders = [found for found in self.site.running(self.name) if found.holds]
        if len(holders) >= self.slots:
            holders[0].holds = False
            await self.site.ask(self.name, node.give_room, holders[0].key)


class Relay:
    """A connection to the job's scheduler by way of Dask: its views come as events, other calls go to its Dask worker.

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
            PeerGone: there is no answer.
        """
        if "epoch" in header:
            await within(Clock(), timeout or PATIENCE, lambda: self._site.newer(header["epoch"]))
            return Message({"view": self._site.view}, []) if self._site.view else _no_answer(operation)
        process = self._site.scheduler
        if process is None:
            return _no_answer(operation)
        answer = await self._site.ask(
            process.host.name, node.relay, process.key, operation, header, timeout or PATIENCE
        )
        return Message(answer, []) if answer else _no_answer(operation)

    async def close(self) -> None:
        """Do nothing: no connection is held."""


def _no_answer(operation: str) -> Message:
    raise PeerGone(f"the scheduler did not answer {operation!r}")


class Cluster:
    """The workers of a Dask cluster.

    Args:
        plan: what is to be launched.
        address: of Dask's scheduler.
        security: of Dask's connections.
        folder: the processes' working folder; by default that of the Dask workers.
    """

    def __init__(self, plan: Plan, address: str, security: Any = None, folder: str = "") -> None:
        self.plan = plan
        self.secret: bytes | None = None
        self.folder = folder
        self.topic = f"flowmx-{secrets.token_hex(4)}"
        self.scratch = f"/tmp/{self.topic}" if plan.policy == "elastic" else ""
        self.view: dict[str, Any] = {}
        self.scheduler: Supervised | None = None
        # A client of our own: what it submits ends with it, and nobody else's event handlers are in its way.
        self._client = Client(address, security=security, asynchronous=True, set_as_default=False, name="flowmx-launch")
        self._hosts: dict[str, DaskWorker] = {}
        self._processes: dict[str, Supervised] = {}
        self._notifier = Notifier()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self._client
        try:
            await self._look()
            await self._check()
            self.secret = job_secret(settings.get().secret_file)
            self._client.subscribe_topic(self.topic, self._hear)
            self._client.subscribe_topic(ALL, self._hear_dask)
        except BaseException:
            await self._client.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self.scratch:
                await asyncio.gather(*(self.ask(name, node.remove, self.scratch) for name in self._hosts))
            await self._client.cancel([found.future for found in self._processes.values()])
        finally:
            for topic in (self.topic, ALL):
                self._client.unsubscribe_topic(topic)
            await self._client.close()

    async def _check(self) -> None:
        """Check that there are workers, and that they have flowmx.

        Raises:
            ValueError: there is none.
            RuntimeError: one lacks flowmx.
        """
        if not self._hosts:
            raise ValueError(f"the Dask cluster at {self._client.scheduler.address} has no workers")
        found = await self._client.run(node.machine, on_error="return")
        for name, answer in found.items():
            if isinstance(answer, Exception):
                raise RuntimeError(f"the Dask worker {name} can not use flowmx, as installed here: {answer}")

    def hosts(self) -> Sequence[Host]:
        """The current Dask workers."""
        return list(self._hosts.values())

    def connect(self, scheduler: str) -> Connection:
        """A connection to the job's scheduler."""
        return Relay(self)

    def tell(self, line: str) -> None:
        """Add a line of the launcher's to the job's events."""
        self.spawn(self._tell(line))

    async def _tell(self, line: str) -> None:
        await self._client.log_event(self.topic, {"name": "launch", "lines": [line]})

    # Processes

    def submit(self, host: DaskWorker, order: Order, output: Output, holds: bool) -> Supervised:
        """Have Dask start a process."""
        key = f"flowmx {order.name}-{self.topic}-{len(self._processes)}".replace(" ", "-")
        order = replace(order, folder=self.folder)
        future = self._client.submit(
            node.run, order, self.topic, holds, key=key, workers=[host.name], allow_other_workers=False, pure=False
        )
        self._processes[key] = process = Supervised(host, order, key, future, output, holds)
        if order.name == "scheduler":
            self.scheduler = process
        if host.name not in self._hosts:
            process.lose()
        return process

    def running(self, host: str) -> list[Supervised]:
        """The processes on a Dask worker that have not ended."""
        return [found for found in self._processes.values() if found.host.name == host and found.status is None]

    async def ask(self, host: str, function: Any, *arguments: Any) -> Any:
        """Have a Dask worker call a function; None where it does not answer."""
        if host not in self._hosts:
            return None
        with contextlib.suppress(Exception):  # Dask's errors have no common base
            async with asyncio.timeout(PATIENCE):
                found = await self._client.run(function, *arguments, workers=[host], on_error="ignore")
                return found.get(host)
        return None

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a background task."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def newer(self, epoch: int) -> None:
        """Wait for a view of another epoch."""
        while self.view.get("epoch", 0) == epoch:
            await self._notifier.next()

    # Events

    def _hear(self, event: tuple[float, Any]) -> None:
        message = event[1]
        process = self._processes.get(message.get("key", ""))
        if process is not None and "lines" in message:
            process.take_lines(message["lines"])
        if process is not None and process is self.scheduler and "view" in message:
            self.view = message["view"]
            self._notifier.notify()

    async def _hear_dask(self, event: tuple[float, Any]) -> None:
        action, worker = event[1].get("action"), event[1].get("worker")
        if action == "remove-worker":
            self._hosts.pop(worker, None)
            for process in self.running(worker):
                process.lose()
        elif action == "add-worker":
            await self._look()

    async def _look(self) -> None:
        workers = (await self._client.scheduler.identity())["workers"]
        for name in workers:
            self._hosts.setdefault(name, DaskWorker(name, workers[name]["nthreads"], self))
