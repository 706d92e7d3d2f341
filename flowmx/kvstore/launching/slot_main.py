"""``python -m flowmx node``: the node of a job that this process is, where a cluster numbers the processes."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from flowmx import settings
from flowmx.comm.launch.plan import Plan
from flowmx.comm.members import POLICIES
from flowmx.kvstore.launching import slot
from flowmx.tools import usage

__all__ = ["main", "prepared"]

_PAUSE = 0.5  # seconds between two looks for the scheduler


def main(argv: Sequence[str] | None = None) -> int:
    """Become the node that this process is: returns only where that fails."""
    parser = _parser()
    given = parser.parse_args(argv)
    given.command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not given.command:
        parser.error("there is no command for the workers: srun flowmx node --servers 2 -- python train.py")
    command, environ = prepared(given, os.environ)
    sys.stdout.flush()
    os.execvpe(command[0], command, environ)


def prepared(given: argparse.Namespace, environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The command to become, and its environment.

    Args:
        given: the arguments.
        environ: the environment of this process.

    Raises:
        ValueError: too little is known, or the job has no such node.
        OSError: the scheduler is not there.
    """
    found = slot.Numbered(given.index) if given.index is not None else slot.numbered(environ)
    scheduler = given.scheduler or settings.get().scheduler or found.scheduler
    if ":" not in scheduler:
        raise ValueError(f"the scheduler's address is {scheduler!r}, expected --scheduler HOST:PORT")
    host, _, port = scheduler.rpartition(":")
    workers = given.workers if given.role else slot.workers_of(found.total, given.servers, given.workers)
    if workers is None:
        raise ValueError("processes of one role do not say how many workers there are: give --workers")
    name = slot.name_of(found.number, given.servers, workers, given.role)
    plan = Plan(
        given.command, workers, given.servers, given.policy, snapshot=given.snapshot, environ=environ, own=False,
        snapshot_every=given.snapshot_every,
    )  # fmt: skip
    reached = _address(host, int(port), name == "scheduler", given.patience)
    address = environ.get("FLOWMX_NODE_HOST") or reached
    command = [*plan.arguments(name, address, port, "")]
    if not name.startswith("worker "):
        served = ["--port", str(given.server_port)] if name.startswith("server ") and given.server_port else []
        command = [sys.executable, "-m", "flowmx", *command, *served]
    variables = plan.environment(name, "", address, scheduler)
    del variables["FLOWMX_NODE_ID"]  # one is made up: a process that is started again is another node
    return command, {**environ, **variables}


def _address(host: str, port: int, is_scheduler: bool, patience: float) -> str:
    """The address of this machine from which the scheduler is reached, once it is there.

    A cluster starts processes when it likes, and publishes the name of one only once it has begun.
    """
    kind = socket.SOCK_DGRAM if is_scheduler else socket.SOCK_STREAM  # the first sends nothing
    ends = time.monotonic() + patience
    while True:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=kind)[0]
            with socket.socket(family, kind) as probe:
                probe.settimeout(_PAUSE)
                probe.connect(address)
                return str(probe.getsockname()[0])
        except OSError as error:
            if time.monotonic() > ends:
                raise OSError(f"the scheduler at {host}:{port} was not there for {patience:g} s: {error}") from error
            time.sleep(_PAUSE)


def _parser() -> argparse.ArgumentParser:
    config = settings.get()
    parser = usage.parser(
        "node", "Be the node of a job that this process is, where Slurm, Kubernetes or MPI starts and numbers the "
        "processes: the first is the scheduler, then come the servers, then the workers.",
        ["--servers 2 -- python train.py", "--index 3 --scheduler alpha:9091 --workers 4 -- python train.py"],
        usage="flowmx node [options] -- COMMAND ...",
    )  # fmt: skip
    parser.add_argument("--index", type=int, help="the number of this process (default: that of the cluster)")
    parser.add_argument("--role", choices=slot.ROLES, default="", help="of all processes that are numbered together")
    parser.add_argument("--scheduler", default="", help="its address, HOST:PORT (default: the cluster's first process)")
    parser.add_argument("--workers", type=int, help="of the job (default: all other processes)")
    parser.add_argument("--servers", type=int, default=config.num_servers, help="of the job (default: %(default)s)")
    parser.add_argument("--server-port", type=usage.port, default=0, help="of a server (default: a free one)")
    parser.add_argument(
        "--policy", choices=POLICIES, default=config.kvstore_policy, help="of lost nodes (default: %(default)s)"
    )
    parser.add_argument(
        "--patience", type=float, default=600.0, help="seconds to wait for the scheduler's start (default: %(default)s)"
    )
    parser.add_argument("--snapshot", default="", type=_folder, help="folder for the servers' snapshots")
    parser.add_argument("--snapshot-every", type=float, default=60.0, help="seconds between (default: %(default)s)")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the workers' program")
    return parser


def _folder(text: str) -> str:
    return str(Path(text).absolute()) if text else ""
