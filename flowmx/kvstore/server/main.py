"""``python -m flowmx server``: one server of a job, from its first view to its last."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

from flowmx import settings
from flowmx.comm.client import Peer
from flowmx.comm.heap import give_back
from flowmx.comm.limits import Limits, in_force
from flowmx.comm.node import Node
from flowmx.comm.security import Security
from flowmx.comm.server import Service
from flowmx.comm.verdict import TERMINATED
from flowmx.engine.loops import run
from flowmx.engine.runtime import engine
from flowmx.kvstore.report import of_server
from flowmx.kvstore.server.callers import identity as server_identity
from flowmx.kvstore.server.service import KVServer
from flowmx.observability import flight
from flowmx.observability.flight.web import add_to as add_doctor
from flowmx.serialization.keeping import Keeping
from flowmx.tools import usage

__all__ = ["add_arguments", "main", "serve"]

log = logging.getLogger("flowmx.kvstore")

LIMITS = Limits(requests=65536, requests_by_peer=4096)
"""A worker may wait for each of its keys in a request of its own."""
_FIRST = 1.0
"""Seconds to the first snapshot."""


async def serve(host: str, port: int, servers: int, snapshot: Path | None = None, every: float = 60.0) -> int:
    """Be a server of the job that the environment describes, until the job is over or SIGTERM asks for the end.

    The exit status is returned: 0, or that of SIGTERM where the job still needs its servers.

    Args:
        host: the address to serve on.
        port: 0 takes a free one.
        servers: how many servers the job has.
        snapshot: a folder, to which the state is written every so often and at the end, and from which it is read at
            the start.
        every: seconds between snapshots.

    Raises:
        NodeGone: the job failed; the message names who is gone.
    """
    if settings.get().dashboard is not None:
        engine.configure(settings.get())  # whoever follows it serves the dashboard; a server may push nothing for long
    security = Security.from_settings()
    service = Service("kvserver", security=security, limits=in_force("job", LIMITS))
    node = Node.from_settings("server", drain=True)
    server = KVServer(node.id, node.incarnation, servers, service, lambda at: Peer(at, security=security, node=node.id))
    add_doctor(service.application, service.check_reader)
    flight.describe("kvstore", lambda: of_server(node, server.core))
    listens = await service.start(host, port)
    node.address = settings.get().node_address or listens
    try:
        gc.freeze()  # what is there by now stays, and need not be looked through for garbage again and again
        async with node:
            path = None if snapshot is None else snapshot / f"server-{node.rank}.snapshot"
            _restore(server, path)
            async with _snapshots(server, path, every):
                await _follow(node, server)
    finally:
        flight.forget("kvstore")
        await server.close()
        await service.stop()
    return TERMINATED if node.draining and not node.view.over else 0


async def _follow(node: Node, server: KVServer) -> None:
    server.links.unreached = partial(_accuse, node)
    view = node.view
    while not view.over:
        server.know(view)
        view = await node.changed(view.epoch)


_accusing: set[asyncio.Task[None]] = set()


def _accuse(node: Node, identity: str, why: str) -> None:
    """Report a server that can not be reached from here to the scheduler."""
    for member in node.view.servers:
        if server_identity(member.id, member.incarnation) == identity:
            task = asyncio.create_task(node.accuse(member, f"{node.name} can not reach it: {why}"))
            _accusing.add(task)
            task.add_done_callback(_accusing.discard)


def _restore(server: KVServer, path: Path | None) -> None:
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        server.restore(path)
        log.info("going on from %s", path)


@contextlib.asynccontextmanager
async def _snapshots(server: KVServer, path: Path | None, every: float) -> AsyncIterator[None]:
    if path is None:
        yield
        return
    keeping = Keeping("snapshot")
    saving = asyncio.create_task(_save_every(server, path, every, keeping))
    serving = asyncio.current_task()
    saving.add_done_callback(lambda task: None if task.cancelled() else serving and serving.cancel())
    try:
        yield
    finally:
        saving.cancel()
        found = await asyncio.gather(saving, return_exceptions=True)
        if isinstance(found[0], Exception):
            raise found[0]
        await _save(server, path, keeping)


async def _save_every(server: KVServer, path: Path, every: float, keeping: Keeping) -> None:
    """Write snapshots until nothing can be kept any more; a young job's come sooner, and cost it half of its age."""
    pause = min(every, _FIRST)
    while True:
        await asyncio.sleep(pause)
        await _save(server, path, keeping)
        pause = min(every, 2 * pause)


async def _save(server: KVServer, path: Path, keeping: Keeping) -> None:
    try:
        await server.save(path)
    except OSError as error:
        keeping.failed(path, error)
    else:
        keeping.written()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``server``."""
    config = settings.get()
    parser.add_argument("--host", default=config.node_host, help="the address to serve on (FLOWMX_NODE_HOST)")
    parser.add_argument("--port", type=usage.port, default=0, help="the port; 0 takes a free one")
    parser.add_argument("--servers", type=int, default=config.num_servers, help="servers of the job")
    parser.add_argument("--snapshot", type=Path, default=config.snapshot or None, help="folder for snapshots")
    parser.add_argument("--snapshot-every", type=float, default=60.0, help="seconds between snapshots")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a server; return the exit status: 0, or 1 where the job failed."""
    parser = usage.parser(
        "server", "Be a server of a distributed job.", exits={1: "the job failed", TERMINATED: "SIGTERM"}
    )
    add_arguments(parser)
    given = parser.parse_args(argv)
    give_back()
    try:
        status: int = run(serve(given.host, given.port, max(given.servers, 1), given.snapshot, given.snapshot_every))
    except Exception as error:
        log.error("%s", error)
        return 1
    return status
