"""Launching distributed jobs: on a Dask or Ray cluster from Python, or on any site from the command line."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowmx.comm.launch.hosts import Site
    from flowmx.comm.launch.plan import Plan
    from flowmx.kvstore.launching.job import Job

__all__ = ["launch"]

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def launch(
    client: Any,
    what: str | Sequence[str] | Callable[..., object],
    *,
    env: Mapping[str, str] | None = None,
    folder: str = "",
    output: Callable[[str, str], None] | None = None,
    **options: Any,
) -> Job:
    """Run a distributed job on a Dask or Ray cluster.

    Args:
        client: a ``distributed.Client``, or ``"ray"`` for the Ray cluster that this program is connected to.
        what: the workers' program: a command as a list or a string, or a function that the workers import, as an
            object or as ``"module:function"``. Functions are not pickled: workers import them from their modules.
        env: environment variables of the processes, added to those of the cluster's workers and to the flowmx
            variables of this process.
        folder: the working folder of the processes; by default that of the cluster's workers.
        output: called with the name of a process and each line that it writes; by default both are printed.
        **options: ``workers``, ``servers``, ``policy``, ``restarts``, ``grace``, ``snapshot``, ``snapshot_every``, as
            in ``python -m flowmx launch``.

    Returns:
        a :class:`Job`. Wait for its end with ``await job``, or with ``job.result()`` where the Dask client is not
        asynchronous.

    Raises:
        ValueError: other processes cannot import the function, or a number is out of range.
        TypeError: an option is unknown.
        RuntimeError: this program is not connected to a Ray cluster.

    Example:
        >>> job = mx.kv.launch(client, ["python", "train.py"], workers=2, servers=1)
        >>> result = job.result()
        >>> result.status, result.placement["worker 0"]
        (0, 'tcp://10.0.0.5:40123')
    """
    from flowmx.comm.launch.output import print_line
    from flowmx.comm.launch.plan import Plan
    from flowmx.kvstore.launching.job import Job

    is_flowmx_command, command = _command(what)
    variables = dict(env or {})
    plan = Plan(
        command, is_flowmx=is_flowmx_command, environ={**os.environ, **variables}, forward=tuple(variables), **options
    )
    if client == "ray":
        return Job(plan, lambda: _on_ray(plan, folder), output or print_line, asynchronous=False)
    address, security = client.scheduler.address, client.security
    make_site = partial(_on_dask, plan, address, security, folder)
    return Job(plan, make_site, output or print_line, bool(client.asynchronous))


def _on_ray(plan: Plan, folder: str) -> Site:
    from flowmx.kvstore.launching.ray import Cluster  # Ray is an extra

    return Cluster(plan, folder)


def _on_dask(plan: Plan, address: str, security: object, folder: str) -> Site:
    from flowmx.kvstore.launching.dask import Cluster  # Dask is an extra

    return Cluster(plan, address, security, folder)


def _command(what: Any) -> tuple[bool, tuple[str, ...]]:
    """Return whether the workers' program is a command of flowmx, and the program."""
    if callable(what):
        from flowmx.kvstore.launching.call import name_of

        return True, ("call", name_of(what))
    if isinstance(what, str) and _FUNCTION.fullmatch(what):
        return True, ("call", what)
    return False, tuple(shlex.split(what) if isinstance(what, str) else what)
