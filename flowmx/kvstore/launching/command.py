"""``python -m flowmx launch``: run a job on this machine, on hosts over ssh, or on a Dask or Ray cluster."""

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
from flowmx.comm.launch.hosts import Site
from flowmx.comm.launch.job import Launcher, Plan
from flowmx.comm.launch.output import Output, print_line
from flowmx.comm.launch.ssh import SSH, HostSpec, SshSite, parse_hosts, read_hostfile
from flowmx.comm.members import POLICIES
from flowmx.kvstore import imports
from flowmx.tools import usage

__all__ = ["main", "parser"]


def parser() -> argparse.ArgumentParser:
    """Make the argument parser of ``launch``.

    Raises:
        SettingError: a setting that is the default of an option has an invalid value.
    """
    options = usage.parser(
        "launch",
        "Run a distributed job, several processes of one program: on this machine, on hosts over ssh, or on a Dask or "
        "Ray cluster. A program that imports mxnet is COMMAND `flowmx run train.py`; for one process, use python, or "
        "`flowmx train` with settings.",
        ["--workers 2 --servers 2 -- python train.py", "--hosts alpha,beta --workers 4 --servers 2 -- python train.py"],
        exits={1: "a process failed; the status is that of the first one that failed"},
        usage="flowmx launch [options] -- COMMAND ...",
    )  # fmt: skip
    _add_job(options)
    _add_locations(options)
    _add_pods(options)
    options.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the workers' program")
    return options


def _add_job(options: argparse.ArgumentParser) -> None:
    config = settings.get()
    options.add_argument(
        "-n",
        "--workers",
        "--num-workers",
        type=int,
        default=config.num_workers,
        help="number of workers of the job (default: %(default)s)",
    )
    options.add_argument(
        "-s",
        "--servers",
        "--num-servers",
        type=int,
        default=config.num_servers,
        help="number of servers of the job (default: %(default)s)",
    )
    options.add_argument(
        "--policy",
        choices=POLICIES,
        default=config.kvstore_policy,
        help="what happens when a node is lost (default: %(default)s)",
    )
    options.add_argument(
        "--restarts",
        type=int,
        default=3,
        help="maximum number of restarts of processes under --policy elastic (default: %(default)s)",
    )
    options.add_argument(
        "--grace", type=float, default=10.0, help="seconds between SIGTERM and SIGKILL (default: %(default)s)"
    )
    snapshot_help = (
        "folder for the servers' snapshots, from which another job resumes (default: under --policy elastic, a "
        "temporary folder)"
    )
    options.add_argument("--snapshot", type=Path, default=config.snapshot or None, help=snapshot_help)
    options.add_argument(
        "--snapshot-every", type=float, default=60.0, help="seconds between snapshots (default: %(default)s)"
    )
    imports.add_argument(options)
    dashboard_help = "serve one page for all processes on this port of 127.0.0.1 (default: a free one)"
    options.add_argument("--dashboard", type=usage.port, nargs="?", const=0, metavar="PORT", help=dashboard_help)


def _add_locations(options: argparse.ArgumentParser) -> None:
    places = options.add_mutually_exclusive_group()
    places.add_argument("--hosts", type=parse_hosts, help="hosts to reach over ssh, such as a,b,c")
    places.add_argument(
        "-H", "--hostfile", type=Path, help="file with these hosts, one per line: name [slots=n] [address=a]"
    )
    places.add_argument("--cluster", help="address of the scheduler of a Dask cluster, such as tcp://10.0.0.1:8786")
    ray_help = "run on the Ray cluster at this address, host:port (default: the cluster of this machine)"
    places.add_argument("--ray", nargs="?", const="auto", metavar="ADDRESS", help=ray_help)
    options.add_argument("--ssh", default=SSH, help="the command that connects to hosts (%(default)s)")
    options.add_argument(
        "--python", default="", help="path of a Python with flowmx on the hosts (default: the path of this Python)"
    )
    options.add_argument("--folder", default="", help="working folder on the hosts (default: this folder)")
    env_help = "a variable to forward to the hosts, in addition to FLOWMX_* and PYTHONPATH; may be repeated"
    options.add_argument("--env", action="append", default=[], metavar="NAME", help=env_help)


def _add_pods(options: argparse.ArgumentParser) -> None:
    pods = options.add_argument_group("kubernetes", "write a manifest for `kubectl apply -f -` to the output")
    pods.add_argument("--kubernetes", metavar="IMAGE", help="the image of all containers, with flowmx and the program")
    pods.add_argument("--name", default="flowmx", help="name of the job (default: %(default)s)")
    pods.add_argument("--namespace", default="", help="namespace of all objects")
    jobset_help = "write one JobSet instead of a Job for each role; the cluster needs the JobSet controller"
    pods.add_argument("--jobset", action="store_true", help=jobset_help)
    user_help = "user id of the containers, under the profile `restricted` (default: the user of the image)"
    pods.add_argument("--user", type=int, metavar="UID", help=user_help)
    resources = "a resource of each worker, such as cpu=4, memory=8Gi or nvidia.com/gpu=1; may be repeated"
    pods.add_argument("--resource", action="append", default=[], metavar="NAME=N", help=resources)


Watch = Callable[[int], AbstractContextManager[Output]]
"""Serves a page of the job's processes on a port; yields a function that receives each line of each process."""


def main(argv: Sequence[str] | None = None, watch: Watch | None = None) -> int:
    """Launch a job; return its exit status.

    Args:
        argv: the arguments.
        watch: serves the job's page, if the options ask for one.
    """
    options = parser()
    arguments = options.parse_args(argv)
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        options.error("missing command for the workers: flowmx launch --workers 2 -- python train.py")
    plan = _plan(arguments, command)
    if arguments.kubernetes:
        return _write_manifest(plan, arguments)
    if arguments.dashboard is None or watch is None:
        return asyncio.run(_run(plan, arguments, print_line))
    with watch(arguments.dashboard) as show:

        def output(name: str, line: str) -> None:
            show(name, line)
            print_line(name, line)

        return asyncio.run(_run(plan, arguments, output))


def _write_manifest(plan: Plan, arguments: argparse.Namespace) -> int:
    from flowmx.kvstore.launching.kubernetes import Pods, manifest

    invalid = [text for text in arguments.resource if "=" not in text]
    if invalid:
        raise ValueError(f"--resource is {invalid[0]!r}, expected NAME=N, such as cpu=4")
    resources = dict(text.split("=", 1) for text in arguments.resource)
    pods = Pods(
        arguments.kubernetes,
        arguments.name,
        arguments.namespace,
        resources,
        jobset=arguments.jobset,
        user=arguments.user,
    )
    json.dump(manifest(plan, pods), sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0


def _plan(arguments: argparse.Namespace, command: Sequence[str]) -> Plan:
    return Plan(
        command,
        arguments.workers,
        arguments.servers,
        arguments.policy,
        arguments.restarts,
        arguments.grace,
        str(arguments.snapshot.absolute()) if arguments.snapshot else "",
        arguments.snapshot_every,
        forward=[*arguments.env, *([imports.VARIABLE] if arguments.imports else [])],
        environ=imports.with_imports(_environment(arguments.dashboard), arguments.imports),
    )


def _environment(dashboard: int | None) -> dict[str, str]:
    """Return the environment of the job's processes: this process's, with a dashboard on a free port if enabled."""
    return {**os.environ} | ({} if dashboard is None else {"FLOWMX_DASHBOARD": "0"})


async def _run(plan: Plan, arguments: argparse.Namespace, output: Output) -> int:
    return await Launcher(plan, output, _site(plan, arguments)).run()


def _site(plan: Plan, arguments: argparse.Namespace) -> Site | None:
    """Return the site of the job; None for this machine."""
    if arguments.cluster:
        from flowmx.kvstore.launching import dask  # an extra

        return dask.Cluster(plan, arguments.cluster, folder=arguments.folder)
    if arguments.ray:
        from flowmx.kvstore.launching import ray  # an extra

        ray.connect(arguments.ray)
        return ray.Cluster(plan, arguments.folder)
    hosts: list[HostSpec] = arguments.hosts or (read_hostfile(arguments.hostfile) if arguments.hostfile else [])
    return SshSite(plan, hosts, shlex.split(arguments.ssh), arguments.python, arguments.folder) if hosts else None
