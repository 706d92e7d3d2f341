"""A Ray cluster as the site of a job: each of its nodes is a host, with as many slots as it has CPUs."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from flowmx import settings
from flowmx.comm.launch.agent import started
from flowmx.comm.launch.child import Child, Output
from flowmx.comm.launch.hosts import Host, peer
from flowmx.comm.launch.plan import Order, Plan, job_secret
from flowmx.comm.node import Connection
from flowmx.comm.verdict import describe

__all__ = ["Cluster", "connect"]

LOST = 255  # the status of a process whose Ray node is lost
LOOK = 1.0  # seconds between looks at which nodes are alive
SOON = 0.05  # seconds for which lines are collected


def connect(address: str) -> None:
    """Connect this program to a Ray cluster, whose workers' own lines are not shown.

    Raises:
        ConnectionError: there is none.
    """
    ray.init(address, log_to_driver=False, logging_level="ERROR")


class Keeper:
    """The actor on a Ray node: it has one process of a job as a child, and ends with it."""

    def __init__(self) -> None:
        self._child: Child | None = None
        self._lines: list[str] = []

    async def run(self, order: Order) -> AsyncIterator[list[str] | int]:
        """Run a process to its end: its lines, some at a time, and last its status, negative for a signal."""
        async with started(order, lambda _, line: self._lines.append(line)) as self._child:
            while not self._child.ended.done():
                await asyncio.wait({self._child.ended}, timeout=SOON)
                if self._lines:
                    lines, self._lines = self._lines, []
                    yield lines
        assert self._child.status is not None
        yield self._child.status

    async def signal(self, number: int) -> None:
        """Send the process a signal."""
        if self._child is not None:
            self._child.signal(number)

    async def remove(self, folder: str) -> None:
        """Remove a job's temporary folder."""
        shutil.rmtree(folder, ignore_errors=True)


class Kept:
    """A process under an actor of Ray.

    Args:
        host: where.
        order: for the process.
        actor: that has it.
        output: is given its name and each of its lines.
        holds: whether the actor keeps a CPU.

    Attributes:
        name, node, status, lost, ended: as in :class:`~flowmx.comm.launch.hosts.Process`.
    """

    def __init__(self, host: RayNode, order: Order, actor: Any, output: Output, holds: bool) -> None:
        self.name, self.node, self.host, self.actor, self.holds = order.name, order.node, host, actor, holds
        self.status: int | None = None
        self.lost = False
        self._output = output
        self._killed = False
        self._reading = asyncio.create_task(self._read(order))
        self.ended = asyncio.create_task(self._follow())

    @property
    def how(self) -> str:
        """Description of how the process ended, for messages."""
        if self.lost:
            return f"the Ray node {self.host.name} is gone, or its actor"
        return "it runs" if self.status is None else describe(self.status)

    def signal(self, number: int) -> None:
        """Send a signal to the process and all that it started."""
        if self.status is not None:
            return
        self.actor.signal.remote(int(number))
        if number == signal.SIGKILL:
            self._killed = True
            asyncio.get_running_loop().call_later(1.0, self.kill)

    def kill(self) -> None:
        """End the actor, which may not have begun; its process dies with it."""
        if self.status is None:
            ray.kill(self.actor)

    def lose(self) -> None:
        """Note that the Ray node was lost."""
        self._reading.cancel()

    async def _follow(self) -> int:
        await asyncio.wait({self._reading})
        status = LOST if self._reading.cancelled() else self._reading.result()
        self.lost, self.status = status == LOST, status
        with contextlib.suppress(RayError):
            ray.kill(self.actor)
        return status

    async def _read(self, order: Order) -> int:
        try:
            async for found in self.actor.run.options(num_returns="streaming").remote(order):
                part = await found
                if isinstance(part, int):
                    return part
                for line in part:
                    self._output(self.name, line)
        except RayError as error:
            self._output(self.name, f"its actor failed: {type(error).__name__}: {str(error).splitlines()[0]}")
        return -signal.SIGKILL if self._killed else LOST


class RayNode:
    """One node of the cluster.

    Args:
        name: its address, and the beginning of its id.
        id: in Ray.
        address: on which the others reach it.
        slots: its CPUs.
        site: of which it is a part.
    """

    def __init__(self, name: str, id: str, address: str, slots: int, site: Cluster) -> None:
        self.name, self.id, self.address, self.slots, self.site = name, id, address, slots, site
        self.scratch = site.scratch

    async def start(self, order: Order, output: Output) -> Kept:
        """Start a process under an actor that keeps a CPU, where the job has not taken all and it is no scheduler."""
        held = sum(each.holds for each in self.site.running(self.name))
        holds = order.name != "scheduler" and held < self.slots
        return self.site.submit(self, order, output, holds)

    def actor(self, cpus: int, name: str) -> Any:
        """An actor on this node."""
        where = NodeAffinitySchedulingStrategy(self.id, soft=False)
        made = ray.remote(Keeper).options(num_cpus=cpus, scheduling_strategy=where, max_concurrency=8, name=name)
        return made.remote()


class Cluster:
    """The nodes of the Ray cluster that this program is connected to.

    Args:
        plan: what is to be launched.
        folder: the processes' working folder; by default that of Ray's workers.

    Raises:
        RuntimeError: this program is connected to none: call ``ray.init()`` first.
    """

    def __init__(self, plan: Plan, folder: str = "") -> None:
        if not ray.is_initialized():
            raise RuntimeError("this program is connected to no Ray cluster: call ray.init() first")
        self.plan = plan
        self.secret: bytes | None = None
        self.folder = folder
        self.topic = f"flowmx-{secrets.token_hex(4)}"
        self.scratch = f"/tmp/{self.topic}" if plan.policy == "elastic" else ""
        self._known: dict[str, RayNode] = {}
        self._processes: list[Kept] = []

    async def __aenter__(self) -> Self:
        if not self.hosts():
            raise ValueError("the Ray cluster has no nodes")
        self.secret = job_secret(settings.get().secret_file)
        self._watch = asyncio.create_task(self._lose())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.cancel()
        for process in self._processes:
            process.kill()
        if self.scratch:
            left = [host.actor(0, f"{self.topic} at {host.name}").remove.remote(self.scratch) for host in self._alive()]
            await asyncio.wait(map(asyncio.ensure_future, left), timeout=5.0)

    async def _lose(self) -> None:
        """Have processes count as lost whose node is gone: their actors may be silent about it."""
        while True:
            await asyncio.sleep(LOOK)
            alive = {each.id for each in self._alive()}
            for process in self._processes:
                if process.status is None and process.host.id not in alive:
                    process.lose()

    def hosts(self) -> Sequence[Host]:
        """The nodes that are alive."""
        return self._alive()

    def _alive(self) -> list[RayNode]:
        found = {each["NodeID"]: each for each in ray.nodes() if each["Alive"]}
        for id, each in found.items():
            if id not in self._known:
                address, slots = each["NodeManagerAddress"], int(each["Resources"].get("CPU", 0))
                self._known[id] = RayNode(f"{address} ({id[:8]})", id, address, slots, self)
        return [self._known[id] for id in found]

    def connect(self, scheduler: str) -> Connection:
        """A connection to the job's scheduler, whose machine this program must reach, as all of Ray's do."""
        return peer(scheduler, self.secret)

    def tell(self, line: str) -> None:
        """Do nothing: the lines are the launching program's."""

    def submit(self, host: RayNode, order: Order, output: Output, holds: bool) -> Kept:
        """Have Ray start a process."""
        name = f"{self.topic} {order.name} {len(self._processes)}"
        order = replace(order, folder=self.folder)
        process = Kept(host, order, host.actor(int(holds), name), output, holds)
        self._processes.append(process)
        return process

    def running(self, host: str) -> list[Kept]:
        """The processes on a node that have not ended."""
        return [each for each in self._processes if each.host.name == host and each.status is None]
