"""Launching jobs: on a Dask or Ray cluster from Python, and all of them from the command line."""

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
    what: str | Sequence[str] | Callable[..., Any],
    *,
    env: Mapping[str, str] | None = None,
    folder: str = "",
    output: Callable[[str, str], None] | None = None,
    **options: Any,
) -> Job:
    """Run a distributed job on a Dask or Ray cluster.

    Args:
        client: a ``distributed.Client`` of it, or ``"ray"`` for the Ray cluster that this program is connected to.
        what: the workers' program: a command as a list or as text, or a function that they import, itself or as
            ``"module:function"``. Nothing of this process travels: a function comes from its module.
        env: variables of the processes, besides those of the cluster's workers and flowmx's own of this process.
        folder: their working folder; by default that of the cluster's workers.
        output: is given the name of a process and a line that it wrote; by default standard output gets both.
        **options: ``workers``, ``servers``, ``policy``, ``restarts``, ``grace``, ``snapshot``, ``snapshot_every``, as
            in ``python -m flowmx launch``.

    Returns:
        a :class:`Job`, whose end is waited for by ``await job`` or, where a client of Dask's is not asynchronous, by
        ``job.result()``.

    Raises:
        ValueError: there is no such function for other processes, or a number is out of range.
        TypeError: there is no such option.
        RuntimeError: this program is connected to no Ray cluster.

    Example:
        >>> job = mx.kv.launch(client, ["python", "train.py"], workers=2, servers=1)
        >>> result = job.result()
        >>> result.status, result.placement["worker 0"]
        (0, 'tcp://10.0.0.5:40123')
    """
    from flowmx.comm.launch.job import print_line
    from flowmx.comm.launch.plan import Plan
    from flowmx.kvstore.launching.job import Job

    own, command = _command(what)
    more = dict(env or {})
    plan = Plan(command, own=own, environ={**os.environ, **more}, forward=tuple(more), **options)
    if client == "ray":
        return Job(plan, lambda: _on_ray(plan, folder), output or print_line, asynchronous=False)
    address, security = client.scheduler.address, client.security
    make = partial(_on_dask, plan, address, security, folder)
    return Job(plan, make, output or print_line, bool(client.asynchronous))


def _on_ray(plan: Plan, folder: str) -> Site:
    from flowmx.kvstore.launching.ray import Cluster  # Ray is an extra

    return Cluster(plan, folder)


def _on_dask(plan: Plan, address: str, security: Any, folder: str) -> Site:
    from flowmx.kvstore.launching.dask import Cluster  # so is Dask

    return Cluster(plan, address, security, folder)


def _command(what: Any) -> tuple[bool, tuple[str, ...]]:
    """The workers' program, and whether it is one of flowmx's own commands."""
    if callable(what):
        from flowmx.kvstore.launching.call import name_of

        return True, ("call", name_of(what))
    if isinstance(what, str) and _FUNCTION.fullmatch(what):
        return True, ("call", what)
    return False, tuple(shlex.split(what) if isinstance(what, str) else what)
