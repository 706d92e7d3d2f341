"""Hosts of a job's processes: the interface for launchers, the local machine, and the choice of a host."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from flowmx import settings
from flowmx.comm.client import Peer
from flowmx.comm.launch.child import Child, Guard
from flowmx.comm.launch.output import Output
from flowmx.comm.launch.plan import Plan, ProcessSpec, job_secret
from flowmx.comm.limits import limits_for
from flowmx.comm.node import Connection
from flowmx.comm.scheduler import LIMITS
from flowmx.comm.security import Security

__all__ = ["Host", "LocalSite", "Process", "Site"]


class Process(Protocol):
    """A process of a launcher.

    Attributes:
        name: such as ``"worker 0"``.
        node: its id in the job.
        status: its exit status, negative for a signal; None while it runs.
        lost: whether its host was lost.
        ended: a task that is done when it has ended.
    """

    name: str
    node: str
    status: int | None
    lost: bool
    ended: asyncio.Task[int]

    @property
    def status_text(self) -> str:
        """The exit status as text, for messages."""

    def signal(self, number: int) -> None:
        """Send a signal to the process and its descendants."""


class Host(Protocol):
    """A host for processes.

    Attributes:
        name: its name in messages; empty for this machine.
        address: the address at which the job's other nodes reach its processes.
        slots: the number of processes that it should run.
        scratch: the job's temporary folder on the host.
    """

    name: str
    address: str
    slots: int
    scratch: str

    async def start(self, spec: ProcessSpec, output: Output) -> Process:
        """Start a process; if its program does not exist, it prints that and ends with status 127."""


class Site(Protocol):
    """The hosts of a job; ``async with`` prepares them and cleans up.

    Attributes:
        secret: the secret of the job's nodes, if any.
    """

    secret: bytes | None

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def hosts(self) -> Sequence[Host]:
        """Return the hosts that are available now."""

    def connect(self, scheduler: str) -> Connection:
        """Return a connection to the job's scheduler."""

    def log_message(self, line: str) -> None:
        """Handle a message of the launcher."""


class LocalSite:
    """A site with one host, this machine.

    Args:
        plan: the plan of the job.
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
        """Return this machine."""
        return [self]

    def connect(self, scheduler: str) -> Connection:
        """Return a connection to the job's scheduler."""
        return connect_to(scheduler, self.secret)

    def log_message(self, line: str) -> None:
        """Do nothing: there is no other process to notify."""

    async def start(self, spec: ProcessSpec, output: Output) -> Child:
        """Start a process on this machine."""
        environ = {**self.plan.environ, **spec.environ, **(self._file.environ if self._file else {})}
        return await Child.start(
            spec.name, spec.node, spec.argv(sys.executable), environ, self._guard, output,
            descriptors=self._file.descriptors if self._file else (),
        )  # fmt: skip


class SecretFile:
    """An unnamed file with a job's secret, which processes of this machine inherit.

    Args:
        secret: the secret of the job's nodes.

    Attributes:
        environ: the environment variable that names the file.
        descriptors: the inherited file descriptors.
    """

    def __init__(self, secret: bytes) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._file.write(secret)
        self._file.flush()
        self.descriptors = (self._file.fileno(),)
        self.environ = {"FLOWMX_SECRET_FILE": f"/dev/fd/{self._file.fileno()}"}

    def close(self) -> None:
        """Close the file, which deletes the secret."""
        self._file.close()


def connect_to(scheduler: str, secret: bytes | None) -> Peer:
    """Return a launcher's connection to a scheduler."""
    security = Security.from_settings()
    if secret is not None:
        security = Security(secret, tls=security.tls if security is not None else None)
    return Peer(scheduler, security=security, limits=limits_for("job", LIMITS), node="launcher")
