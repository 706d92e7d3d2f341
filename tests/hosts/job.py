"""A flowmx job over hosts: the scheduler on one, and servers and workers wherever they are put."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

from flowmx.comm.launch.scheduler import ANNOUNCEMENT
from tests.hosts.network import Host
from tests.hosts.process import Process

__all__ = ["HostedJob"]


class HostedJob:
    """A job whose nodes share a secret.

    Args:
        folder: where the secret is kept.
        workers: how many.
        servers: how many.
        environ: settings of all nodes, beside those that make them a job.
    """

    def __init__(self, folder: Path, workers: int, servers: int, environ: Mapping[str, str] | None = None) -> None:
        secret = folder / "secret"
        secret.write_text(secrets.token_hex(32))
        secret.chmod(0o600)
        self.processes: dict[str, Process] = {}
        self._environ = {
            "FLOWMX_NUM_WORKERS": str(workers),
            "FLOWMX_NUM_SERVERS": str(servers),
            "FLOWMX_SECRET_FILE": str(secret),
            **(environ or {}),
        }

    async def scheduler(self, host: Host) -> Process:
        """Start the scheduler, and wait until it can be reached."""
        process = await self._start(host, "scheduler", "-m", "flowmx", "scheduler")
        line = await process.line(ANNOUNCEMENT)
        self._environ["FLOWMX_SCHEDULER"] = line.removeprefix(ANNOUNCEMENT)
        return process

    async def server(self, host: Host, rank: int) -> Process:
        """Start a server."""
        return await self._start(host, f"server {rank}", "-m", "flowmx", "server", rank=rank)

    async def worker(self, host: Host, rank: int, *arguments: str) -> Process:
        """Start a worker: Python with these arguments."""
        return await self._start(host, f"worker {rank}", *arguments, rank=rank)

    async def _start(self, host: Host, name: str, *arguments: str, rank: int | None = None) -> Process:
        own = {"FLOWMX_ROLE": name.split()[0], "FLOWMX_NODE_HOST": host.address}
        if rank is not None:
            own["FLOWMX_RANK"] = str(rank)
        process = await host.python(name, *arguments, environ={**self._environ, **own})
        self.processes[name] = process
        return process
