"""Real jobs on hosts in network namespaces, for figure 8: the traffic of their network and the time of their steps."""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from benchmarks.turns import WORKERS
from tests.hosts import HostedJob, Link, Network, Process

__all__ = ["traffic", "training"]

MTU = 9000
MAX_SECONDS = 400.0

T = TypeVar("T")


def training(hosts: int, link: Link, profile: Path, seconds: float, overlap: bool, steps: int) -> dict[str, float]:
    """Return the means over all workers of the figures that ``figure8_training.py`` prints."""
    arguments = [str(profile), str(seconds), "overlap" if overlap else "no", str(steps)]

    async def run(network: Network) -> dict[str, float]:
        with tempfile.TemporaryDirectory(prefix="flowmx-") as folder:
            job = HostedJob(Path(folder), hosts, hosts)
            await job.scheduler(network.hosts[0])
            for host in network.hosts:
                await job.server(host, host.number)
            script = str(WORKERS / "figure8_training.py")
            return await _means([await job.worker(host, host.number, script, *arguments) for host in network.hosts])

    return _run(hosts, link, run)


def traffic(hosts: int, link: Link, seconds: float) -> float:
    """Return the bits a second that each host receives while all send to all others by plain connections."""

    async def run(network: Network) -> float:
        script, processes = str(WORKERS / "figure8_traffic.py"), []
        for host in network.hosts:
            others = ",".join(other.address for other in network.hosts if other is not host)
            processes.append(await host.python(host.name, script, host.address, others, str(seconds)))
        return (await _means(processes))["rate"]

    return _run(hosts, link, run)


def _run(hosts: int, link: Link, work: Callable[[Network], Awaitable[T]]) -> T:
    async def run() -> T:
        async with asyncio.timeout(MAX_SECONDS), Network(hosts, link, mtu=MTU) as network:
            return await work(network)

    return asyncio.run(run())


async def _means(processes: list[Process]) -> dict[str, float]:
    figures = []
    for process in processes:
        lines = (await process.success()).splitlines()
        figures.append(json.loads(next(line for line in lines if line.startswith("{"))))
    return {name: statistics.mean(each[name] for each in figures) for name in figures[0]}
