"""A flowmx job on several hosts; the caller chooses the host of each node."""

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
        folder: the folder for the file of the secret.
        workers: the number of workers.
        servers: the number of servers.
        environ: additional settings of all nodes.
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
        """Start the scheduler, and wait until it is ready."""
        process = await self._start(host, "scheduler", "-m", "flowmx", "scheduler")
        line = await process.line(ANNOUNCEMENT)
        self._environ["FLOWMX_SCHEDULER"] = line.removeprefix(ANNOUNCEMENT)
        return process

    async def server(self, host: Host, rank: int) -> Process:
        """Start a server."""
        return await self._start(host, f"server {rank}", "-m", "flowmx", "server", rank=rank)

    async def worker(self, host: Host, rank: int, *arguments: str) -> Process:
        """Start a worker: Python with the given arguments."""
        return await self._start(host, f"worker {rank}", *arguments, rank=rank)

    async def _start(self, host: Host, name: str, *arguments: str, rank: int | None = None) -> Process:
        variables = {"FLOWMX_ROLE": name.split()[0], "FLOWMX_NODE_HOST": host.address}
        if rank is not None:
            variables["FLOWMX_RANK"] = str(rank)
        process = await host.python(name, *arguments, environ={**self._environ, **variables})
        self.processes[name] = process
        return process
