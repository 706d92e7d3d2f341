"""The plan of a launched job, and the order for each of its processes. Pure."""

from __future__ import annotations

import base64
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from flowmx import settings
from flowmx.comm.members import Policy
from flowmx.comm.security import read_secret

__all__ = ["Order", "Plan", "job_secret"]

FORWARDED = ("PYTHONPATH",)  # besides all of flowmx's own variables
NOT_FORWARDED = ("FLOWMX_SECRET_FILE", "FLOWMX_SNAPSHOT")  # files of the launching machine
TIMING = ("kvstore_heartbeat", "kvstore_timeout", "kvstore_reconnect")


@dataclass(frozen=True)
class Plan:
    """The description of a job to launch.

    Args:
        command: the workers' program and its arguments.
        workers: how many.
        servers: how many.
        policy: ``"stop"`` or ``"elastic"``.
        restarts: how often processes are started again under ``"elastic"``, all together.
        grace: seconds that processes have to end by themselves before they are killed.
        snapshot: a folder for the servers' snapshots, which outlives the job; by default a temporary one, under
            ``"elastic"`` alone.
        snapshot_every: seconds between snapshots.
        environ: the environment of processes on this machine; flowmx's own variables are forwarded to others.
        forward: names of other variables that are.
        own: whether the command is flowmx's: the arguments of ``python -m flowmx``.

    Raises:
        ValueError: a number is below what it can be, or there is no command.
    """

    command: Sequence[str]
    workers: int = 1
    servers: int = 1
    policy: Policy = "stop"
    restarts: int = 3
    grace: float = 10.0
    snapshot: str = ""
    snapshot_every: float = 60.0
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    forward: Sequence[str] = ()
    own: bool = False

    def __post_init__(self) -> None:
        if not self.command:
            raise ValueError("there is no command for the workers: flowmx launch --workers 2 -- python train.py")
        lows = {"workers": 1, "servers": 0, "restarts": 0, "grace": 0, "snapshot_every": 0}
        for name, low in lows.items():
            if not getattr(self, name) >= low:
                raise ValueError(f"{name} is {getattr(self, name)}, expected a number of at least {low}")

    @property
    def names(self) -> list[str]:
        """Servers and workers, in the order in which they are started."""
        return [*(f"server {rank}" for rank in range(self.servers)), *self.worker_names]

    @property
    def worker_names(self) -> list[str]:
        """The workers."""
        return [f"worker {rank}" for rank in range(self.workers)]

    def folder(self, scratch: str) -> str:
        """The folder for the servers' snapshots: ``snapshot``, else ``scratch`` if elastic, else empty (none)."""
        return self.snapshot or (scratch if self.policy == "elastic" else "")

    def environment(self, name: str, node: str, address: str, scheduler: str) -> dict[str, str]:
        """The variables that make a process a node of the job.

        Args:
            name: such as ``"worker 0"``.
            node: its id.
            address: on which others reach its machine.
            scheduler: where the scheduler is; empty for itself.
        """
        role, _, rank = name.partition(" ")
        config = settings.get()
        found = {settings.TABLE[timing].variable: str(getattr(config, timing)) for timing in TIMING}
        # Several processes share the cores: threads of kernels that wait busily take them from each other.
        found["OMP_WAIT_POLICY"] = self.environ.get("OMP_WAIT_POLICY", "passive")
        found |= {key: value for key, value in self.environ.items() if self._is_forwarded(key)}
        found |= {
            "FLOWMX_ROLE": role,
            "FLOWMX_NODE_ID": node,
            "FLOWMX_NUM_WORKERS": str(self.workers),
            "FLOWMX_NUM_SERVERS": str(self.servers),
            "FLOWMX_KVSTORE_POLICY": self.policy,
            "FLOWMX_NODE_HOST": address,
        }
        if self.policy == "stop":
            found["FLOWMX_KVSTORE_SCHEDULER_RETURNS"] = "0"
        return found | ({"FLOWMX_RANK": rank} if rank else {}) | ({"FLOWMX_SCHEDULER": scheduler} if scheduler else {})

    def _is_forwarded(self, name: str) -> bool:
        own = name.startswith("FLOWMX_") and name not in NOT_FORWARDED
        return own or name in FORWARDED or name in self.forward

    def arguments(self, name: str, address: str, port: str, scratch: str) -> tuple[str, ...]:
        """The command of a process: the workers' program, or what follows ``python -m flowmx``.

        Args:
            name: such as ``"server 0"``.
            address: on which others reach its machine.
            port: of the scheduler.
            scratch: a temporary folder of its machine.
        """
        role = name.partition(" ")[0]
        if role == "worker":
            return tuple(self.command)
        servers = ("--servers", str(self.servers))
        folder = self.folder(scratch)
        if role == "server":
            kept = ("--snapshot", folder, "--snapshot-every", str(self.snapshot_every)) if folder else ()
            return ("server", "--host", address, *servers, *kept)
        # The scheduler's file must not outlive the job: another job would look for the nodes of this one.
        file = ("--snapshot", f"{scratch}/scheduler") if scratch and self.policy == "elastic" else ()
        job = ("--workers", str(self.workers), *servers, "--policy", self.policy)
        return ("scheduler", "--host", address, "--port", port, *job, *file)


@dataclass(frozen=True)
class Order:
    """The order to start one process.

    Args:
        name: such as ``"worker 0"``.
        node: its id in the job.
        command: the program and its arguments.
        own: whether the command is flowmx's: the arguments of ``python -m flowmx``.
        environ: variables to add to the environment.
        folder: the working folder; empty leaves it.
        scratch: a temporary folder to make.
        secret: what the job's nodes share; it is put in a file that only this user reads.
    """

    name: str
    node: str
    command: tuple[str, ...]
    own: bool
    environ: Mapping[str, str]
    folder: str = ""
    scratch: str = ""
    secret: bytes | None = field(default=None, repr=False)

    def argv(self, python: str) -> tuple[str, ...]:
        """The whole command, where this is Python."""
        return (python, "-m", "flowmx", *self.command) if self.own else self.command

    def to_json(self) -> str:
        """The order as one line."""
        secret = None if self.secret is None else base64.b64encode(self.secret).decode()
        return json.dumps(asdict(replace(self, secret=None)) | {"secret": secret})

    @classmethod
    def from_json(cls, line: str) -> Order:
        """Parse an order from the text of :meth:`to_json`.

        Raises:
            ValueError: it is none.
        """
        try:
            found = json.loads(line)
            secret = None if found["secret"] is None else base64.b64decode(found["secret"])
            return cls(**(found | {"secret": secret, "command": tuple(found["command"])}))
        except (KeyError, TypeError) as error:
            raise ValueError(f"no order for a process: {error}") from error


def job_secret(path: str = "") -> bytes:
    """Read the secret of a job's nodes from a file, or make a new one: also one machine has several users.

    Args:
        path: the file, if there is one.

    Raises:
        SettingError: the file can not be read, or others may read it.
    """
    if not path:
        return secrets.token_hex(32).encode()
    try:
        return read_secret(path)
    except (OSError, ValueError) as error:
        raise settings.SettingError(f"FLOWMX_SECRET_FILE is {path}: {error}") from error
