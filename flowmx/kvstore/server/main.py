"""``python -m flowmx server``: one server of a job, from its first view to its last."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from flowmx import settings
from flowmx.comm.client import Peer
from flowmx.comm.exit_reason import TERMINATED
from flowmx.comm.heap import return_freed_memory
from flowmx.comm.limits import Limits, limits_for
from flowmx.comm.node import Node
from flowmx.comm.security import Security
from flowmx.comm.server import Service
from flowmx.engine.loops import run
from flowmx.engine.runtime import engine
from flowmx.kvstore import imports
from flowmx.kvstore.flight_report import server_report
from flowmx.kvstore.server.callers import identity as server_identity
from flowmx.kvstore.server.round_waits import log_waits
from flowmx.kvstore.server.service import KVServer
from flowmx.kvstore.server.snapshot_folder import Folder, snapshots
from flowmx.kvstore.server.uneven_batches import UnevenBatches
from flowmx.kvstore.wait_log import Waits, watch
from flowmx.observability import flight
from flowmx.observability.flight.web import add_to as add_doctor
from flowmx.tools import usage

__all__ = ["add_arguments", "main", "serve"]

log = logging.getLogger("flowmx.kvstore")

LIMITS = Limits(requests=65536, requests_by_peer=4096)
"""A worker may have a separate waiting request for each of its keys."""


async def serve(host: str, port: int, servers: int, snapshot: Path | None = None, every: float = 60.0) -> int:
    """Run a server of the job that the environment describes, until the job is over or SIGTERM arrives.

    Return the exit status: 0, or that of SIGTERM where the job still needs its servers.

    Args:
        host: the address to serve on.
        port: the port; 0 picks a free one.
        servers: the number of servers of the job.
        snapshot: a folder for snapshots, which are written periodically and at the end, and read at the start.
        every: seconds between snapshots.

    Raises:
        NodeGone: the job failed; the message names the lost node.
    """
    if settings.get().dashboard is not None:
        engine.configure(settings.get())  # starts the dashboard, though nothing may be pushed for long
    security = Security.from_settings()
    service = Service("kvserver", security=security, limits=limits_for("job", LIMITS))
    node = Node.from_settings("server", drain=True)
    server = KVServer(node.id, node.incarnation, servers, service, lambda at: Peer(at, security=security, node=node.id))
    add_doctor(service.application, service.check_reader)
    flight.describe("kvstore", lambda: server_report(node, server.core))
    own_address = await service.start(host, port)
    node.address = settings.get().node_address or own_address
    try:
        gc.freeze()  # objects so far are permanent: exclude them from collections
        async with node:
            folder = None if snapshot is None else Folder(snapshot, server, node.rank, node.view.job)
            async with snapshots(folder, every):
                await _follow(node, server)
    finally:
        flight.forget("kvstore")
        await server.close()
        await service.stop()
    return TERMINATED if node.draining and not node.view.over else 0


async def _follow(node: Node, server: KVServer) -> None:
    server.links.unreached = partial(_report_unreached, node)
    uneven = UnevenBatches(node, server.core)
    server.before_return = uneven.check

    async def log(waits: Waits) -> None:
        log_waits(node, server.core, waits)
        uneven.check(is_last=False)

    watcher = asyncio.create_task(watch(log))
    try:
        view = node.view
        while not view.over:
            server.update_view(view)
            view = await node.wait_for_change(view.epoch)
        uneven.check()
    finally:
        watcher.cancel()


_reports: set[asyncio.Task[None]] = set()


def _report_unreached(node: Node, identity: str, why: str) -> None:
    """Report an unreachable server to the scheduler."""
    for member in node.view.servers:
        if server_identity(member.id, member.incarnation) == identity:
            task = asyncio.create_task(node.report_lost(member, f"{node.name} cannot reach it: {why}"))
            _reports.add(task)
            task.add_done_callback(_reports.discard)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``server``."""
    config = settings.get()
    parser.add_argument("--host", default=config.node_host, help="address to serve on (FLOWMX_NODE_HOST)")
    parser.add_argument("--port", type=usage.port, default=0, help="port; 0 picks a free one")
    parser.add_argument("--servers", type=int, default=config.num_servers, help="number of servers of the job")
    parser.add_argument("--snapshot", type=Path, default=config.snapshot or None, help="folder for snapshots")
    imports.add_argument(parser)
    parser.add_argument("--snapshot-every", type=float, default=60.0, help="seconds between snapshots")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a server; return the exit status: 0, or 1 if the job failed."""
    parser = usage.parser(
        "server", "Run a server of a distributed job.", exits={1: "the job failed", TERMINATED: "SIGTERM"}
    )
    add_arguments(parser)
    options = parser.parse_args(argv)
    return_freed_memory()
    try:
        imports.import_all(options.imports)
        status: int = run(
            serve(options.host, options.port, max(options.servers, 1), options.snapshot, options.snapshot_every)
        )
    except Exception as error:  # any failure ends the process with a message, not a traceback
        log.error("%s", error)
        return 1
    return status
