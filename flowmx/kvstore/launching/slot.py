"""Places of processes that a cluster started: which node of the job each is. Pure.

A cluster starts the same command several times and numbers the processes. The first is the scheduler, then come the
servers, then the workers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["ROLES", "Numbered", "first_host", "name_of", "numbered", "workers_of"]

ROLES = ("scheduler", "server", "worker")
_PORTS = range(20_000, 30_000)  # below those that systems give to outgoing connections


class _Source(NamedTuple):
    """One cluster, and the variables that it sets."""

    name: str
    number: str
    total: str = ""
    hosts: tuple[str, ...] = ()
    job: str = ""


_SOURCES = (
    _Source("Slurm", "SLURM_PROCID", "SLURM_NTASKS", ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"), "SLURM_JOB_ID"),
    _Source("Kubernetes", "JOB_COMPLETION_INDEX"),
    _Source("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    _Source("MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE"),
)


class Numbered(NamedTuple):
    """One of the processes that a cluster started.

    Attributes:
        number: from 0 on.
        total: how many there are; None where the cluster does not say.
        scheduler: address of the first one; empty where the cluster does not say.
    """

    number: int
    total: int | None = None
    scheduler: str = ""


def numbered(environ: Mapping[str, str]) -> Numbered:
    """The number of this process, as the cluster's variables have it.

    Raises:
        ValueError: there are none.
    """
    for source in _SOURCES:
        if source.number in environ:
            hosts = next((environ[each] for each in source.hosts if environ.get(each)), "")
            port = _PORTS[int(environ.get(source.job) or 0) % len(_PORTS)]  # jobs may share a machine
            total = environ.get(source.total)
            scheduler = f"{first_host(hosts)}:{port}" if hosts else ""
            return Numbered(int(environ[source.number]), int(total) if total else None, scheduler)
    known = ", ".join(f"{each.number} ({each.name})" for each in _SOURCES)
    raise ValueError(
        f"which of the job's processes is this? Give --index, or run it where one of these is set: {known}"
    )


def first_host(hosts: str) -> str:
    """The first name of a list as Slurm writes it.

    Example:
        >>> first_host("node[03-05,9],login")
        'node03'
    """
    head = re.match(r"([^\[,]*)(?:\[([^\]]*)\]([^,\[]*))?", hosts)
    assert head is not None  # every part may be empty
    name, numbers, rest = head.groups(default="")
    return f"{name}{re.split('[-,]', numbers)[0]}{rest}"


def workers_of(count: int | None, servers: int, workers: int | None) -> int:
    """The number of workers: all processes but the scheduler and the servers.

    Args:
        count: of processes, where it is known.
        servers: of the job.
        workers: as its user says; None where nothing is said.

    Raises:
        ValueError: the numbers contradict each other, or say too little.
    """
    if count is None:
        if workers is None:
            raise ValueError("the cluster does not say how many processes there are: give --workers")
        return workers
    if workers is not None and 1 + servers + workers != count:
        raise ValueError(
            f"the cluster started {count} processes, expected {1 + servers + workers}: a scheduler, {servers} servers "
            f"and {workers} workers"
        )
    if count < 2 + servers:
        raise ValueError(
            f"the cluster started {count} processes, expected {2 + servers} or more: a scheduler, {servers} servers "
            "and workers"
        )
    return count - 1 - servers


def name_of(index: int, servers: int, workers: int, role: str = "") -> str:
    """The node that a process is, such as ``"worker 0"``.

    Args:
        index: the number of the process.
        servers: of the job.
        workers: of the job.
        role: that of all processes that are numbered together; by default they are the whole job.

    Raises:
        ValueError: the job has no such node.
    """
    counts = {"scheduler": 1, "server": servers, "worker": workers}
    names = [
        each if each == "scheduler" else f"{each} {rank}"
        for each in ([role] if role else ROLES)
        for rank in range(counts[each])
    ]
    if not 0 <= index < len(names):
        raise ValueError(f"the number of this process is {index}, expected one of 0 to {len(names) - 1}")
    return names[index]
