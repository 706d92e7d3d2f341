"""``python -m flowmx launch``: a job on this machine, on hosts that ssh reaches, on a Dask or a Ray cluster."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from flowmx import settings
from flowmx.comm.launch.child import Output
from flowmx.comm.launch.hosts import Site
from flowmx.comm.launch.job import Launcher, Plan, print_line
from flowmx.comm.launch.ssh import SSH, Named, Ssh, named, read_hostfile
from flowmx.comm.members import POLICIES
from flowmx.tools import usage

__all__ = ["main", "parser"]


def parser() -> argparse.ArgumentParser:
    """Make the argument parser of ``launch``.

    Raises:
        SettingError: a setting, which is a default here, has a wrong value.
    """
    found = usage.parser(
        "launch", "Run a distributed job: on this machine, on hosts that ssh reaches, on a Dask or a Ray cluster.",
        ["--workers 2 --servers 2 -- python train.py", "--hosts alpha,beta --workers 4 --servers 2 -- python train.py"],
        exits={1: "a process failed; its own status, where it has another"},
        usage="flowmx launch [options] -- COMMAND ...",
    )  # fmt: skip
    _add_job(found)
    _add_places(found)
    _add_pods(found)
    found.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the workers' program")
    return found


def _add_job(found: argparse.ArgumentParser) -> None:
    config = settings.get()
    found.add_argument(
        "--workers", type=int, default=config.num_workers, help="workers of the job (default: %(default)s)"
    )
    found.add_argument(
        "--servers", type=int, default=config.num_servers, help="servers of the job (default: %(default)s)"
    )
    found.add_argument(
        "--policy",
        choices=POLICIES,
        default=config.kvstore_policy,
        help="what a lost node means (default: %(default)s)",
    )
    found.add_argument(
        "--restarts", type=int, default=3, help="processes started again under elastic, at most (default: %(default)s)"
    )
    found.add_argument(
        "--grace", type=float, default=10.0, help="seconds to end in before being killed (default: %(default)s)"
    )
    snapshot = "folder for the servers' snapshots, from which another job goes on; by default temporary, under elastic"
    found.add_argument("--snapshot", type=Path, default=config.snapshot or None, help=snapshot)
    found.add_argument(
        "--snapshot-every", type=float, default=60.0, help="seconds between snapshots (default: %(default)s)"
    )
    dashboard = "serve a page of all processes on this port of 127.0.0.1, or a free one; each has its own besides"
    found.add_argument("--dashboard", type=usage.port, nargs="?", const=0, metavar="PORT", help=dashboard)


def _add_places(found: argparse.ArgumentParser) -> None:
    places = found.add_mutually_exclusive_group()
    places.add_argument("--hosts", type=named, help="hosts that ssh reaches: a,b,c")
    places.add_argument("--hostfile", type=Path, help="file of such hosts: a line each, name [slots=n] [address=a]")
    places.add_argument("--cluster", help="address of a Dask cluster's scheduler: tcp://...")
    ray = "run it on a Ray cluster: its address, host:port (default: the one of this machine)"
    places.add_argument("--ray", nargs="?", const="auto", metavar="ADDRESS", help=ray)
    found.add_argument("--ssh", default=SSH, help="the command that reaches hosts (%(default)s)")
    found.add_argument("--python", default="", help="Python of the hosts, with flowmx (that of this machine)")
    found.add_argument("--folder", default="", help="working folder on the hosts (that of this machine)")
    forwarded = "a variable to forward to the hosts, besides FLOWMX_* and PYTHONPATH; may be given again"
    found.add_argument("--env", action="append", default=[], metavar="NAME", help=forwarded)


def _add_pods(found: argparse.ArgumentParser) -> None:
    pods = found.add_argument_group("kubernetes", "write a manifest for `kubectl apply -f -` to the output")
    pods.add_argument("--kubernetes", metavar="IMAGE", help="the image of all containers, with flowmx and the program")
    pods.add_argument("--name", default="flowmx", help="of the job (default: %(default)s)")
    pods.add_argument("--namespace", default="", help="of all objects")
    jobset = "one JobSet in place of a Job for each role (the cluster has JobSet's controller)"
    pods.add_argument("--jobset", action="store_true", help=jobset)
    limits = "of a worker: cpu=4, memory=8Gi, nvidia.com/gpu=1; may be given again"
    pods.add_argument("--resource", action="append", default=[], metavar="NAME=N", help=limits)


Watch = Callable[[int], AbstractContextManager[Output]]
"""Serves a page of the job's processes on a port; what it gives is told each line of each process."""


def main(argv: Sequence[str] | None = None, watch: Watch | None = None) -> int:
    """Launch a job; return its exit status.

    Args:
        argv: the arguments.
        watch: serves the job's page, where one is asked for.
    """
    found = parser()
    given = found.parse_args(argv)
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        found.error("there is no command for the workers: flowmx launch --workers 2 -- python train.py")
    plan = _plan(given, command)
    if given.kubernetes:
        return _write_manifest(plan, given)
    if given.dashboard is None or watch is None:
        return asyncio.run(_run(plan, given, print_line))
    with watch(given.dashboard) as heard:

        def output(name: str, line: str) -> None:
            heard(name, line)
            print_line(name, line)

        return asyncio.run(_run(plan, given, output))


def _write_manifest(plan: Plan, given: argparse.Namespace) -> int:
    from flowmx.kvstore.launching.kubernetes import Pods, manifest

    wrong = [each for each in given.resource if "=" not in each]
    if wrong:
        raise ValueError(f"--resource is {wrong[0]!r}, expected NAME=N, such as cpu=4")
    resources = dict(each.split("=", 1) for each in given.resource)
    pods = Pods(given.kubernetes, given.name, given.namespace, resources, jobset=given.jobset)
    json.dump(manifest(plan, pods), sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0


def _plan(given: argparse.Namespace, command: Sequence[str]) -> Plan:
    return Plan(
        command,
        given.workers,
        given.servers,
        given.policy,
        given.restarts,
        given.grace,
        str(given.snapshot.absolute()) if given.snapshot else "",
        given.snapshot_every,
        forward=given.env,
        environ=_environment(given.dashboard),
    )


def _environment(dashboard: int | None) -> dict[str, str]:
    """The environment of the job's processes: this one's, and the setting that serves a dashboard on a free port."""
    return {**os.environ} | ({} if dashboard is None else {"FLOWMX_DASHBOARD": "0"})


async def _run(plan: Plan, given: argparse.Namespace, output: Output) -> int:
    return await Launcher(plan, output, _site(plan, given)).run()


def _site(plan: Plan, given: argparse.Namespace) -> Site | None:
    """The site of the job; None for this machine."""
    if given.cluster:
        from flowmx.kvstore.launching import dask  # an extra

        return dask.Cluster(plan, given.cluster, folder=given.folder)
    if given.ray:
        from flowmx.kvstore.launching import ray  # an extra

        ray.connect(given.ray)
        return ray.Cluster(plan, given.folder)
    hosts: list[Named] = given.hosts or (read_hostfile(given.hostfile) if given.hostfile else [])
    return Ssh(plan, hosts, shlex.split(given.ssh), given.python, given.folder) if hosts else None
