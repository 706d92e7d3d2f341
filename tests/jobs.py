"""A whole job in this process: a scheduler and servers on a separate loop, and workers in threads."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flowmx.comm.client import Peer
from flowmx.comm.members import Job, Policy
from flowmx.comm.node import Node
from flowmx.comm.scheduler import Scheduler
from flowmx.comm.server import Service
from flowmx.comm.timing import Timing
from flowmx.kvstore.server import main
from flowmx.kvstore.server.service import KVServer
from flowmx.kvstore.server.snapshot_folder import Folder, snapshots
from flowmx.kvstore.worker.session import LIMITS, Session
from flowmx.kvstore.worker.store import DistKVStore, _parse_mode

TIMING = Timing(heartbeat=0.1, timeout=5.0, reconnect=10.0)
PATIENCE = 60.0


class LocalJob:
    """A job in this process, made by :func:`job`.

    Attributes:
        workers: the number of workers.
        servers: the number of servers.
        address: the address of the scheduler.
        kvservers: the started servers.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, workers: int, servers: int, policy: Policy) -> None:
        self.workers, self.servers, self.address = workers, servers, ""
        self._loop = loop
        self._policy: Policy = policy
        self._serving: list[asyncio.Task[None]] = []
        self.kvservers: list[KVServer] = []

    async def start(self, snapshot: Path | None) -> None:
        """Start the scheduler and the servers."""
        instance = Job(self.workers, self.servers, TIMING.timeout, self._policy)
        self._scheduler = Scheduler(instance, interval=TIMING.heartbeat)
        self.address = await self._scheduler.start()
        self._serving = [asyncio.create_task(self._serve(rank, snapshot)) for rank in range(self.servers)]

    async def stop(self) -> None:
        """Stop all running nodes."""
        await asyncio.wait(self._serving, timeout=PATIENCE)
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._scheduler.stop()

    async def _serve(self, rank: int, snapshot: Path | None) -> None:
        service = Service("kvserver", limits=main.LIMITS)
        node = Node("server", self.address, rank=rank, timing=TIMING)
        server = KVServer(node.id, node.incarnation, self.servers, service, lambda at: Peer(at, node=node.id))
        self.kvservers.append(server)
        node.address = await service.start()
        try:
            async with node:
                folder = None if snapshot is None else Folder(snapshot, server, rank, node.view.job)
                async with snapshots(folder, math.inf):
                    await main._follow(node, server)
        finally:
            await server.close()
            await service.stop()

    def is_waiting(self, rank: int, barrier: str) -> bool:
        """Return whether a worker waits at a barrier."""
        members = self._scheduler.members
        place = members.places.get(("worker", rank))
        return place is not None and place.member.id in members.barriers.waiting.get(barrier, ())

    def store(self, name: str = "dist_sync", rank: int | None = None, **options: Any) -> DistKVStore:
        """Create a worker's store, like ``mx.kv.create`` in a process; block until the job runs."""
        node = Node("worker", self.address, rank=rank, timing=TIMING)
        session = Session(
            _parse_mode(name, **options), node, self.servers, lambda at: Peer(at, node=node.id, limits=LIMITS)
        )
        session.start().result(PATIENCE)
        return DistKVStore(name, session)

    def each(self, work: Callable[[DistKVStore], Any], name: str = "dist_sync", **options: Any) -> list[Any]:
        """Run work with the store of every worker, in separate threads; return the results by rank."""
        begun = [self.begin(work, name, rank, **options) for rank in range(self.workers)]
        return [item.result(PATIENCE) for item in begun]

    def begin(
        self, work: Callable[[DistKVStore], Any], name: str = "dist_sync", rank: int | None = None, **options: Any
    ) -> Future[Any]:
        """Run work with the store of one worker, in a separate thread; then leave the job."""
        done: Future[Any] = Future()

        def run() -> None:
            try:
                with self.store(name, rank, **options) as kv:
                    result = work(kv)
                done.set_result(result)
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=run, daemon=True, name=f"worker {rank}").start()
        return done


@contextmanager
def job(
    workers: int = 2, servers: int = 2, policy: Policy = "stop", snapshot: Path | None = None
) -> Iterator[LocalJob]:
    """Run a job with all nodes in this process.

    Args:
        workers: the number of workers.
        servers: the number of servers.
        policy: what happens when a node is lost.
        snapshot: the folder that servers resume from, and write to at the end.
    """
    loop = asyncio.new_event_loop()
    cluster = LocalJob(loop, workers, servers, policy)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(loop.run_forever)
        try:
            asyncio.run_coroutine_threadsafe(cluster.start(snapshot), loop).result(PATIENCE)
            yield cluster
        finally:
            asyncio.run_coroutine_threadsafe(cluster.stop(), loop).result(2 * PATIENCE)
            loop.call_soon_threadsafe(loop.stop)
    loop.close()
