"""The plan of a launched job, and the specifications of its processes. This module does no I/O."""

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

__all__ = ["Plan", "ProcessSpec", "job_secret"]

FORWARDED = ("PYTHONPATH",)  # in addition to flowmx's variables
NOT_FORWARDED = ("FLOWMX_SECRET_FILE", "FLOWMX_SNAPSHOT")  # files of the launcher's machine
TIMING = ("kvstore_heartbeat", "kvstore_timeout", "kvstore_reconnect")


@dataclass(frozen=True)
class Plan:
    """The description of a job to launch.

    Args:
        command: the workers' program and its arguments.
        workers: the number of workers.
        servers: the number of servers.
        policy: ``"stop"`` or ``"elastic"``.
        restarts: the total number of restarts of processes under ``"elastic"``.
        grace: seconds in which processes may end by themselves before they are killed.
        snapshot: a permanent folder for the servers' snapshots; by default a temporary one, only under ``"elastic"``.
        snapshot_every: seconds between snapshots.
        environ: the environment of processes on this machine; flowmx's variables are forwarded to other hosts.
        forward: names of further variables to forward.
        is_flowmx: whether the command consists of arguments of ``python -m flowmx``.
        job: the name of the job, shared by all its processes; by default a new one.

    Raises:
        ValueError: a number is too small, or there is no command.
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
    is_flowmx: bool = False
    job: str = field(default_factory=lambda: f"launched {secrets.token_hex(8)}")

    def __post_init__(self) -> None:
        if not self.command:
            raise ValueError("no command for the workers; example: flowmx launch --workers 2 -- python train.py")
        minimums = {"workers": 1, "servers": 0, "restarts": 0, "grace": 0, "snapshot_every": 0}
        for name, low in minimums.items():
            if not getattr(self, name) >= low:
                raise ValueError(f"{name} is {getattr(self, name)}, expected a number of at least {low}")

    @property
    def names(self) -> list[str]:
        """The names of servers and workers, in their start order."""
        return [*(f"server {rank}" for rank in range(self.servers)), *self.worker_names]

    @property
    def worker_names(self) -> list[str]:
        """The names of workers."""
        return [f"worker {rank}" for rank in range(self.workers)]

    def folder(self, scratch: str) -> str:
        """Return the folder for the servers' snapshots: ``snapshot``, or ``scratch`` if elastic, or empty for none."""
        return self.snapshot or (scratch if self.policy == "elastic" else "")

    def environment(self, name: str, node: str, address: str, scheduler: str) -> dict[str, str]:
        """Return the environment variables of a node of the job.

        Args:
            name: such as ``"worker 0"``.
            node: its id.
            address: the address at which other nodes reach its machine.
            scheduler: the scheduler's address; empty for the scheduler itself.
        """
        role, _, rank = name.partition(" ")
        config = settings.get()
        variables = {settings.TABLE[timing].variable: str(getattr(config, timing)) for timing in TIMING}
        # Several processes share the cores: busy-waiting kernel threads would take them from each other.
        variables["OMP_WAIT_POLICY"] = self.environ.get("OMP_WAIT_POLICY", "passive")
        variables |= {key: value for key, value in self.environ.items() if self._is_forwarded(key)}
        variables |= {
            "FLOWMX_ROLE": role,
            "FLOWMX_JOB": self.job,
            "FLOWMX_NODE_ID": node,
            "FLOWMX_NUM_WORKERS": str(self.workers),
            "FLOWMX_NUM_SERVERS": str(self.servers),
            "FLOWMX_KVSTORE_POLICY": self.policy,
            "FLOWMX_NODE_HOST": address,
        }
        if self.policy == "stop":
            variables["FLOWMX_KVSTORE_SCHEDULER_RETURNS"] = "0"
        return (
            variables | ({"FLOWMX_RANK": rank} if rank else {}) | ({"FLOWMX_SCHEDULER": scheduler} if scheduler else {})
        )

    def _is_forwarded(self, name: str) -> bool:
        own = name.startswith("FLOWMX_") and name not in NOT_FORWARDED
        return own or name in FORWARDED or name in self.forward

    def arguments(self, name: str, address: str, port: str, scratch: str) -> tuple[str, ...]:
        """Return the command of a process: the workers' program, or arguments of ``python -m flowmx``.

        Args:
            name: such as ``"server 0"``.
            address: the address at which other nodes reach its machine.
            port: the scheduler's port.
            scratch: a temporary folder of its machine.
        """
        role = name.partition(" ")[0]
        if role == "worker":
            return tuple(self.command)
        servers = ("--servers", str(self.servers))
        folder = self.folder(scratch)
        if role == "server":
            snapshots = ("--snapshot", folder, "--snapshot-every", str(self.snapshot_every)) if folder else ()
            return ("server", "--host", address, *servers, *snapshots)
        # The scheduler's file must not outlive the job: another job would wait for the nodes of this one.
        file = ("--snapshot", f"{scratch}/scheduler") if scratch and self.policy == "elastic" else ()
        job = ("--workers", str(self.workers), *servers, "--policy", self.policy)
        return ("scheduler", "--host", address, "--port", port, *job, *file)


@dataclass(frozen=True)
class ProcessSpec:
    """The specification of a process to start.

    Args:
        name: such as ``"worker 0"``.
        node: its id in the job.
        command: the program and its arguments.
        is_flowmx: whether the command consists of arguments of ``python -m flowmx``.
        environ: variables to add to the environment.
        folder: the working folder; empty for the current one.
        scratch: a temporary folder to create.
        secret: the secret of the job's nodes; it is written to a file that only this user can read.
    """

    name: str
    node: str
    command: tuple[str, ...]
    is_flowmx: bool
    environ: Mapping[str, str]
    folder: str = ""
    scratch: str = ""
    secret: bytes | None = field(default=None, repr=False)

    def argv(self, python: str) -> tuple[str, ...]:
        """Return the complete command, for a Python interpreter; ``python`` in a command stands for it."""
        if self.is_flowmx:
            return python, "-m", "flowmx", *self.command
        return (python, *self.command[1:]) if self.command[0] in ("python", "python3") else self.command

    def to_json(self) -> str:
        """Encode the specification as one line."""
        secret = None if self.secret is None else base64.b64encode(self.secret).decode()
        return json.dumps(asdict(replace(self, secret=None)) | {"secret": secret})

    @classmethod
    def from_json(cls, line: str) -> ProcessSpec:
        """Decode the result of :meth:`to_json`.

        Raises:
            ValueError: the text is invalid.
        """
        try:
            fields = json.loads(line)
            secret = None if fields["secret"] is None else base64.b64decode(fields["secret"])
            return cls(**(fields | {"secret": secret, "command": tuple(fields["command"])}))
        except (KeyError, TypeError) as error:
            raise ValueError(f"invalid specification of a process: {error}") from error


def job_secret(path: str = "") -> bytes:
    """Read the secret of a job's nodes from a file, or create one, since even a single machine may have several users.

    Args:
        path: the file, if there is one.

    Raises:
        SettingError: the file cannot be read, or others may read it.
    """
    if not path:
        return secrets.token_hex(32).encode()
    try:
        return read_secret(path)
    except (OSError, ValueError) as error:
        raise settings.SettingError(f"FLOWMX_SECRET_FILE is {path}: {error}") from error
