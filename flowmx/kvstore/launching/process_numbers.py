"""The roles of processes that a cluster has started, from the cluster's environment variables. This module does no I/O.

A cluster starts the same command several times and numbers the processes. The first is the scheduler, then come the
servers, then the workers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from flowmx.comm.members import MAX_NAME

__all__ = ["ROLES", "ProcessNumber", "count_workers", "first_host", "name_of", "process_number"]

ROLES = ("scheduler", "server", "worker")
_PORTS = range(20_000, 30_000)  # below the ephemeral ports of common systems


class _Part(NamedTuple):
    """A part of the identity of a job in a cluster.

    Attributes:
        what: the name of the part in messages.
        names: the variables that hold it; the first one that is set counts.
        stride: the distance between the ports of two jobs whose numbers differ by one in this part. Strides are coprime
            to each other and to the number of ports, so that neighboring jobs of all kinds have different ports.
    """

    what: str
    names: tuple[str, ...]
    stride: int = 0


class _Cluster(NamedTuple):
    """A kind of cluster, and the variables that it sets."""

    name: str
    number: str
    total: str = ""
    hosts: tuple[str, ...] = ()
    parts: tuple[_Part, ...] = ()


_BATCH = _Part("job", ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID"))
"""The job of the batch system that runs mpirun: it distinguishes two jobs, but not two mpiruns within one job."""
_CLUSTERS = (
    _Cluster(
        "Slurm", "SLURM_PROCID", "SLURM_NTASKS", ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"),
        (
            _Part("job", ("SLURM_HET_JOB_ID", "SLURM_JOB_ID", "SLURM_JOBID"), 1),
            _Part("task", ("SLURM_ARRAY_TASK_ID",), 1009),
            _Part("step", ("SLURM_STEP_ID", "SLURM_STEPID"), 7919),
            _Part("attempt", ("SLURM_RESTART_COUNT",), 4999),
        ),
    ),
    _Cluster("Kubernetes", "JOB_COMPLETION_INDEX"),
    _Cluster(
        "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
        parts=(_Part("run", ("PMIX_NAMESPACE", "OMPI_MCA_orte_ess_jobid", "OMPI_MCA_ess_base_jobid")), _BATCH),
    ),
    _Cluster("MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE", parts=(_Part("run", ("PMI_JOBID", "PMI_ID_JOB")), _BATCH)),
)  # fmt: skip


class ProcessNumber(NamedTuple):
    """A process that a cluster has started.

    Attributes:
        number: the number of the process, from 0.
        total: the number of processes; None if unknown.
        scheduler: the address of the first process; empty if unknown.
        job: the name of the job and of this attempt; empty if unknown.
    """

    number: int
    total: int | None = None
    scheduler: str = ""
    job: str = ""


def process_number(environ: Mapping[str, str]) -> ProcessNumber:
    """Read the number of this process from the cluster's variables.

    Raises:
        ValueError: no such variable is set.
    """
    for source in _CLUSTERS:
        if source.number in environ:
            hosts = next((environ[name] for name in source.hosts if environ.get(name)), "")
            total = environ.get(source.total)
            scheduler = f"{first_host(hosts)}:{_port(source, environ)}" if hosts else ""
            return ProcessNumber(
                int(environ[source.number]), int(total) if total else None, scheduler, _job(source, environ)
            )
    variables = ", ".join(f"{name.number} ({name.name})" for name in _CLUSTERS)
    raise ValueError(
        f"the index of this process is unknown: pass --index, or run it where one of these is set: {variables}"
    )


def _values(source: _Cluster, environ: Mapping[str, str]) -> list[tuple[_Part, str]]:
    """Return the parts of a job's identity that the environment contains."""
    values = ((part, next((environ[name] for name in part.names if environ.get(name)), "")) for part in source.parts)
    return [(part, value) for part, value in values if value]


def _job(source: _Cluster, environ: Mapping[str, str]) -> str:
    """Return the name of the job, such as ``"Slurm job 101 step 0 attempt 2"``."""
    parts = " ".join(f"{part.what} {value}" for part, value in _values(source, environ))
    return f"{source.name} {parts}"[:MAX_NAME] if parts else ""


def _port(source: _Cluster, environ: Mapping[str, str]) -> int:
    """Return the port of a job's scheduler; it differs between jobs, steps and attempts, which may share a machine."""
    numbers = ((part.stride, int(value)) for part, value in _values(source, environ) if value.isdecimal())
    return _PORTS[sum(stride * number for stride, number in numbers) % len(_PORTS)]


def first_host(hosts: str) -> str:
    """Return the first host of a list in Slurm's syntax.

    Example:
        >>> first_host("node[03-05,9],login")
        'node03'
    """
    match = re.match(r"([^\[,]*)(?:\[([^\]]*)\]([^,\[]*))?", hosts)
    assert match is not None  # every part may be empty
    name, numbers, rest = match.groups(default="")
    return f"{name}{re.split('[-,]', numbers)[0]}{rest}"


def count_workers(count: int | None, servers: int, workers: int | None) -> int:
    """Return the number of workers: all processes except the scheduler and the servers.

    Args:
        count: the number of processes; None if unknown.
        servers: the number of servers.
        workers: the number of workers that the user passed; None by default.

    Raises:
        ValueError: the numbers contradict each other, or are not sufficient.
    """
    if count is None:
        if workers is None:
            raise ValueError("the cluster does not provide the number of processes: pass --workers")
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
    """Return the node name of a process, such as ``"worker 0"``.

    Args:
        index: the number of the process.
        servers: the number of servers.
        workers: the number of workers.
        role: the role of all processes that the cluster started; by default they have all roles.

    Raises:
        ValueError: the index is out of range.
    """
    counts = {"scheduler": 1, "server": servers, "worker": workers}
    names = [
        part if part == "scheduler" else f"{part} {rank}"
        for part in ([role] if role else ROLES)
        for rank in range(counts[part])
    ]
    if not 0 <= index < len(names):
        raise ValueError(f"the index of this process is {index}, expected one of 0 to {len(names) - 1}")
    return names[index]
