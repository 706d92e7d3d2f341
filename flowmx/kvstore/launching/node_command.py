"""``python -m flowmx node``: become a node of a job whose processes a cluster has started and numbered."""

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
from flowmx.kvstore import imports
from flowmx.kvstore.launching import process_numbers
from flowmx.tools import usage

__all__ = ["build_command", "main"]

_PAUSE = 0.5  # seconds between two attempts to reach the scheduler


def main(argv: Sequence[str] | None = None) -> int:
    """Replace this process by its node of the job; return only on failure."""
    parser = _parser()
    options = parser.parse_args(argv)
    options.command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not options.command:
        parser.error("missing command for the workers: srun flowmx node --servers 2 -- python train.py")
    command, environ = build_command(options, imports.with_imports(os.environ, options.imports))
    sys.stdout.flush()
    os.execvpe(command[0], command, environ)


def build_command(options: argparse.Namespace, environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the command of this process's node, and its environment.

    Args:
        options: the parsed arguments.
        environ: the environment of this process.

    Raises:
        ValueError: information is missing, or the job has no such node.
        OSError: the scheduler cannot be reached.
    """
    process = (
        process_numbers.ProcessNumber(options.index)
        if options.index is not None
        else process_numbers.process_number(environ)
    )
    scheduler = options.scheduler or settings.get().scheduler or process.scheduler
    if ":" not in scheduler:
        raise ValueError(f"the scheduler's address is {scheduler!r}, expected --scheduler HOST:PORT")
    host, _, port = scheduler.rpartition(":")
    workers = (
        options.workers
        if options.role
        else process_numbers.count_workers(process.total, options.servers, options.workers)
    )
    if workers is None:
        raise ValueError("processes of one role do not determine the number of workers: pass --workers")
    name = process_numbers.name_of(process.number, options.servers, workers, options.role)
    # Processes of one role are not the whole job: the others may belong to another step, or to no cluster.
    job = options.job or settings.get().job or ("" if options.role else process.job)
    plan = Plan(
        options.command, workers, options.servers, options.policy, snapshot=options.snapshot, environ=environ,
        is_flowmx=False, snapshot_every=options.snapshot_every, job=job,
    )  # fmt: skip
    local_address = _address(host, int(port), name == "scheduler", options.patience)
    address = environ.get("FLOWMX_NODE_HOST") or local_address
    command = [*plan.arguments(name, address, port, "")]
    if not name.startswith("worker "):
        port_option = ["--port", str(options.server_port)] if name.startswith("server ") and options.server_port else []
        command = [sys.executable, "-m", "flowmx", *command, *port_option]
    variables = plan.environment(name, "", address, scheduler)
    del variables["FLOWMX_NODE_ID"]  # the node makes up an ID: a restarted process is another node
    return command, {**environ, **variables}


def _address(host: str, port: int, is_scheduler: bool, patience: float) -> str:
    """Wait for the scheduler; return the local address of connections to it.

    A cluster may start processes in any order, and publishes the name of a process only after its start.
    """
    kind = socket.SOCK_DGRAM if is_scheduler else socket.SOCK_STREAM  # connecting a datagram socket sends nothing
    deadline = time.monotonic() + patience
    while True:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=kind)[0]
            with socket.socket(family, kind) as probe:
                probe.settimeout(_PAUSE)
                probe.connect(address)
                return str(probe.getsockname()[0])
        except OSError as error:
            if time.monotonic() > deadline:
                raise OSError(
                    f"the scheduler at {host}:{port} could not be reached for {patience:g} s: {error}"
                ) from error
            time.sleep(_PAUSE)


def _parser() -> argparse.ArgumentParser:
    config = settings.get()
    parser = usage.parser(
        "node", "Run this process as a node of a job that Slurm, Kubernetes or MPI has started. The first process is "
        "the scheduler, then come the servers, then the workers.",
        ["--servers 2 -- python train.py", "--index 3 --scheduler alpha:9091 --workers 4 -- python train.py"],
        usage="flowmx node [options] -- COMMAND ...",
    )  # fmt: skip
    parser.add_argument(
        "--index", type=int, help="the index of this process (default: the one that the cluster provides)"
    )
    parser.add_argument(
        "--role",
        choices=process_numbers.ROLES,
        default="",
        help="the role of all processes that the cluster started, if each role is a separate step",
    )
    parser.add_argument(
        "--scheduler", default="", help="address of the scheduler, HOST:PORT (default: the cluster's first process)"
    )
    job_help = (
        "name of the job, the same for all its processes (FLOWMX_JOB; default: the cluster's job, step and attempt)"
    )
    parser.add_argument("--job", default="", help=job_help)
    parser.add_argument("--workers", type=int, help="number of workers (default: all other processes)")
    parser.add_argument(
        "--servers", type=int, default=config.num_servers, help="number of servers of the job (default: %(default)s)"
    )
    parser.add_argument("--server-port", type=usage.port, default=0, help="port of a server (default: a free one)")
    parser.add_argument(
        "--policy",
        choices=POLICIES,
        default=config.kvstore_policy,
        help="what happens when a node is lost (default: %(default)s)",
    )
    parser.add_argument(
        "--patience", type=float, default=600.0, help="seconds to wait for the scheduler (default: %(default)s)"
    )
    parser.add_argument("--snapshot", default="", type=_folder, help="folder for the servers' snapshots")
    parser.add_argument(
        "--snapshot-every", type=float, default=60.0, help="seconds between snapshots (default: %(default)s)"
    )
    imports.add_argument(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the workers' program")
    return parser


def _folder(text: str) -> str:
    return str(Path(text).absolute()) if text else ""
