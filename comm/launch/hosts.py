"""Hosts of a job's processes: the interface that a launcher needs, this machine, and the choice of a host."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from flowmx import settings
from flowmx.comm.client import Peer
from flowmx.comm.launch.child import Child, Guard, Output
from flowmx.comm.launch.plan import Order, Plan, job_secret
from flowmx.comm.limits import in_force
from flowmx.comm.node import Connection
from flowmx.comm.scheduler import LIMITS
from flowmx.comm.security import Security

__all__ = ["Host", "LocalSite", "Process", "Site", "choose"]


class Process(Protocol):
    """A process of a launcher.

    Attributes:
        name: such as ``"worker 0"``.
        node: its id in the job.
        status: how it ended, negative for a signal; None while it runs.
        lost: whether it is its host that was lost.
        ended: is done once it has ended.
    """

    name: str
    node: str
    status: int | None
    lost: bool
    ended: asyncio.Task[int]

    @property
    def how(self) -> str:
        """The exit status as text, for messages."""

    def signal(self, number: int) -> None:
        """Send a signal to the process and all that it started."""


class Host(Protocol):
    """A host, on which processes can be started.

    Attributes:
        name: what people call it; empty for this machine.
        address: on which the job's other nodes reach its processes.
        slots: how many processes it is meant for.
        scratch: the job's temporary folder there.
    """

    name: str
    address: str
    slots: int
    scratch: str

    async def start(self, order: Order, output: Output) -> Process:
        """Start a process; a program that does not exist prints so and ends with status 127."""


class Site(Protocol):
    """The hosts of a job; ``async with`` prepares them, and leaves nothing behind.

    Attributes:
        secret: what the job's nodes share, if anything.
    """

    secret: bytes | None

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def hosts(self) -> Sequence[Host]:
        """The hosts that are available now."""

    def connect(self, scheduler: str) -> Connection:
        """A connection to the job's scheduler."""

    def tell(self, line: str) -> None:
        """Take a message of the launcher's."""


class LocalSite:
    """The site of one host, this machine.

    Args:
        plan: what is to be launched.
    """

    name, address, scratch = "", "127.0.0.1", ""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.slots = plan.workers + plan.servers
        self.secret: bytes | None = job_secret(settings.get().secret_file)
        self._file: SecretFile | None = None
        self._guard = Guard()

    async def __aenter__(self) -> Self:
        self._file = None if self.secret is None else SecretFile(self.secret)
        self._guard.__enter__()
        self.scratch = tempfile.mkdtemp(prefix="flowmx-")
        self._guard.remove(Path(self.scratch))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
        await asyncio.to_thread(self._guard.__exit__, kind, error, trace)

    def hosts(self) -> Sequence[Host]:
        """The one host."""
        return [self]

    def connect(self, scheduler: str) -> Connection:
        """A connection to the job's scheduler."""
        return peer(scheduler, self.secret)

    def tell(self, line: str) -> None:
        """Do nothing: there is no other process to tell."""

    async def start(self, order: Order, output: Output) -> Child:
        """Start a process on this machine."""
        environ = {**self.plan.environ, **order.environ, **(self._file.environ if self._file else {})}
        return await Child.start(
            order.name, order.node, order.argv(sys.executable), environ, self._guard, output,
            descriptors=self._file.descriptors if self._file else (),
        )  # fmt: skip


class SecretFile:
    """A file with a job's secret that has no name: processes of this machine inherit it open.

    Args:
        secret: what the job's nodes share.

    Attributes:
        environ: the variable that names it to them.
        descriptors: what they inherit.
    """

    def __init__(self, secret: bytes) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._file.write(secret)
        self._file.flush()
        self.descriptors = (self._file.fileno(),)
        self.environ = {"FLOWMX_SECRET_FILE": f"/dev/fd/{self._file.fileno()}"}

    def close(self) -> None:
        """Forget the secret."""
        self._file.close()


def peer(scheduler: str, secret: bytes | None) -> Peer:
    """A launcher's connection to a scheduler."""
    security = Security.from_settings()
    if secret is not None:
        security = Security(secret, tls=security.tls if security is not None else None)
    return Peer(scheduler, security=security, limits=in_force("job", LIMITS), node="launcher")


def choose(hosts: Sequence[Host], load: Counter[str], failures: Counter[str], former: Host | None = None) -> Host:
    """The host for one more process.

    Hosts that were lost come last, then those whose slots are taken; among the others the processes spread over
    machines, and then over the hosts of a machine.

    Args:
        hosts: those that are there.
        load: processes on each, by name.
        failures: how often each was lost, by name.
        former: where the process was before and should stay, if that is there.

    Raises:
        ValueError: there is none.
    """
    if not hosts:
        raise ValueError("there is no host to start a process on")
    machines: Counter[str] = Counter()
    for host in hosts:
        machines[host.address] += load[host.name]

    def cost(host: Host) -> tuple[int, ...]:
        moved = () if former is None else (host.address != former.address, host.name != former.name)
        full = load[host.name] >= host.slots
        return failures[host.name], *moved, full, machines[host.address], load[host.name]

    return min(hosts, key=cost)  # the first of those that are as good
