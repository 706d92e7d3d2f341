"""A Ray cluster as the site of a job: each Ray node is a host, with one slot per CPU."""

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
from flowmx.comm.exit_reason import describe
from flowmx.comm.launch.agent import run_process
from flowmx.comm.launch.child import Child
from flowmx.comm.launch.hosts import Host, connect_to
from flowmx.comm.launch.output import Output
from flowmx.comm.launch.plan import Plan, ProcessSpec, job_secret
from flowmx.comm.node import Connection

__all__ = ["Cluster", "connect"]

LOST = 255  # the status of a process whose Ray node is lost
CHECK_INTERVAL = 1.0  # seconds between checks which nodes are alive
FLUSH_DELAY = 0.05  # seconds for which lines are collected


def connect(address: str) -> None:
    """Connect this program to a Ray cluster, without printing the output of Ray's workers.

    Raises:
        ConnectionError: there is no cluster at this address.
    """
    ray.init(address, log_to_driver=False, logging_level="ERROR")


class ProcessActor:
    """The actor on a Ray node: it runs one process of a job as its child, and ends with it."""

    def __init__(self) -> None:
        self._child: Child | None = None
        self._lines: list[str] = []

    async def run(self, spec: ProcessSpec) -> AsyncIterator[list[str] | int]:
        """Run a process to completion: yield its lines in batches, then its status, negative for a signal."""
        async with run_process(spec, lambda _, line: self._lines.append(line)) as self._child:
            while not self._child.ended.done():
                await asyncio.wait({self._child.ended}, timeout=FLUSH_DELAY)
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


class RayProcess:
    """A process that runs under a Ray actor.

    Args:
        host: the Ray node that runs it.
        spec: describes the process.
        actor: the actor that runs it.
        output: called with the name of the process and each line that it writes.
        holds: whether the actor occupies a CPU.

    Attributes:
        name, node, status, lost, ended: as in :class:`~flowmx.comm.launch.hosts.Process`.
    """

    def __init__(self, host: RayNode, spec: ProcessSpec, actor: Any, output: Output, holds: bool) -> None:
        self.name, self.node, self.host, self.actor, self.holds = spec.name, spec.node, host, actor, holds
        self.status: int | None = None
        self.lost = False
        self._output = output
        self._killed = False
        self._reading = asyncio.create_task(self._read(spec))
        self.ended = asyncio.create_task(self._follow())

    @property
    def status_text(self) -> str:
        """Description of how the process ended, for messages."""
        if self.lost:
            return f"the Ray node {self.host.name} or its actor is lost"
        return "it runs" if self.status is None else describe(self.status)

    def signal(self, number: int) -> None:
        """Send a signal to the process and its children."""
        if self.status is not None:
            return
        self.actor.signal.remote(int(number))
        if number == signal.SIGKILL:
            self._killed = True
            asyncio.get_running_loop().call_later(1.0, self.kill)

    def kill(self) -> None:
        """Kill the actor, even if it has not started; its process dies with it."""
        if self.status is None:
            ray.kill(self.actor)

    def mark_lost(self) -> None:
        """Record that the Ray node was lost."""
        self._reading.cancel()

    async def _follow(self) -> int:
        await asyncio.wait({self._reading})
        status = LOST if self._reading.cancelled() else self._reading.result()
        self.lost, self.status = status == LOST, status
        with contextlib.suppress(RayError):
            ray.kill(self.actor)
        return status

    async def _read(self, spec: ProcessSpec) -> int:
        try:
            async for part_ref in self.actor.run.options(num_returns="streaming").remote(spec):
                part = await part_ref
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
        name: its address, and the beginning of its ID.
        id: its ID in Ray.
        address: the address on which other nodes reach it.
        slots: the number of its CPUs.
        site: the cluster that it belongs to.
    """

    def __init__(self, name: str, id: str, address: str, slots: int, site: Cluster) -> None:
        self.name, self.id, self.address, self.slots, self.site = name, id, address, slots, site
        self.scratch = site.scratch

    async def start(self, spec: ProcessSpec, output: Output) -> RayProcess:
        """Start a process under an actor; it occupies a CPU if one is free, unless it is a scheduler."""
        occupied = sum(process.holds for process in self.site.running(self.name))
        holds = spec.name != "scheduler" and occupied < self.slots
        return self.site.submit(self, spec, output, holds)

    def actor(self, cpus: int, name: str) -> Any:
        """Make an actor on this node."""
        strategy = NodeAffinitySchedulingStrategy(self.id, soft=False)
        actor_class = ray.remote(ProcessActor).options(
            num_cpus=cpus, scheduling_strategy=strategy, max_concurrency=8, name=name
        )
        return actor_class.remote()


class Cluster:
    """The nodes of the Ray cluster that this program is connected to.

    Args:
        plan: the job to launch.
        folder: the working folder of the processes; by default that of Ray's workers.

    Raises:
        RuntimeError: this program is not connected to a Ray cluster: call ``ray.init()`` first.
    """

    def __init__(self, plan: Plan, folder: str = "") -> None:
        if not ray.is_initialized():
            raise RuntimeError("this program is not connected to a Ray cluster: call ray.init() first")
        self.plan = plan
        self.secret: bytes | None = None
        self.folder = folder
        self.topic = f"flowmx-{secrets.token_hex(4)}"
        self.scratch = f"/tmp/{self.topic}" if plan.policy == "elastic" else ""
        self._nodes: dict[str, RayNode] = {}
        self._processes: list[RayProcess] = []

    async def __aenter__(self) -> Self:
        if not self.hosts():
            raise ValueError("the Ray cluster has no nodes")
        self.secret = job_secret(settings.get().secret_file)
        self._watch = asyncio.create_task(self._watch_nodes())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.cancel()
        for process in self._processes:
            process.kill()
        if self.scratch:
            removals = [
                host.actor(0, f"{self.topic} at {host.name}").remove.remote(self.scratch) for host in self._alive()
            ]
            await asyncio.wait(map(asyncio.ensure_future, removals), timeout=5.0)

    async def _watch_nodes(self) -> None:
        """Mark processes as lost when their node is lost: their actors may not report it."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL)
            alive = {node.id for node in self._alive()}
            for process in self._processes:
                if process.status is None and process.host.id not in alive:
                    process.mark_lost()

    def hosts(self) -> Sequence[Host]:
        """The nodes that are alive."""
        return self._alive()

    def _alive(self) -> list[RayNode]:
        nodes = {info["NodeID"]: info for info in ray.nodes() if info["Alive"]}
        for id, info in nodes.items():
            if id not in self._nodes:
                address, slots = info["NodeManagerAddress"], int(info["Resources"].get("CPU", 0))
                self._nodes[id] = RayNode(f"{address} ({id[:8]})", id, address, slots, self)
        return [self._nodes[id] for id in nodes]

    def connect(self, scheduler: str) -> Connection:
        """Return a connection to the job's scheduler; its machine must be reachable from this program."""
        return connect_to(scheduler, self.secret)

    def log_message(self, line: str) -> None:
        """Do nothing: this program prints the lines itself."""

    def submit(self, host: RayNode, spec: ProcessSpec, output: Output, holds: bool) -> RayProcess:
        """Start a process under a new actor."""
        name = f"{self.topic} {spec.name} {len(self._processes)}"
        spec = replace(spec, folder=self.folder)
        process = RayProcess(host, spec, host.actor(int(holds), name), output, holds)
        self._processes.append(process)
        return process

    def running(self, host: str) -> list[RayProcess]:
        """Return the processes on a node that have not ended."""
        return [process for process in self._processes if process.host.name == host and process.status is None]
