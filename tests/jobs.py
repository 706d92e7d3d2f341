"""A whole job in this process: a scheduler and servers on a loop of their own, and workers in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flowmx.comm.client import Peer
from flowmx.comm.members import Job, Policy
from flowmx.comm.node import Node, Timing
from flowmx.comm.scheduler import Scheduler
from flowmx.comm.server import Service
from flowmx.kvstore.server import main
from flowmx.kvstore.server.service import KVServer
from flowmx.kvstore.worker.session import LIMITS, Session
from flowmx.kvstore.worker.store import DistKVStore, _mode

TIMING = Timing(heartbeat=0.1, timeout=5.0, reconnect=10.0)
PATIENCE = 60.0


class LocalJob:
    """Starts workers; made by :func:`job`.

    Attributes:
        workers: how many the job has.
        servers: how many.
        address: the scheduler's.
        kvservers: that were started.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, workers: int, servers: int, policy: Policy) -> None:
        self.workers, self.servers, self.address = workers, servers, ""
        self._loop = loop
        self._policy: Policy = policy
        self._serving: list[asyncio.Task[None]] = []
        self.kvservers: list[KVServer] = []

    async def start(self, snapshot: Path | None) -> None:
        """Start the scheduler and the servers."""
        made = Job(self.workers, self.servers, TIMING.timeout, self._policy)
        self._scheduler = Scheduler(made, interval=TIMING.heartbeat)
        self.address = await self._scheduler.start()
        self._serving = [asyncio.create_task(self._serve(rank, snapshot)) for rank in range(self.servers)]

    async def stop(self) -> None:
        """End what still runs."""
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
        path = None if snapshot is None else snapshot / f"server-{rank}.snapshot"
        try:
            async with node:
                if path is not None and path.exists():
                    server.restore(path)
                await main._follow(node, server)
                if path is not None:
                    await server.save(path)
        finally:
            await server.close()
            await service.stop()

    def is_waiting(self, rank: int, barrier: str) -> bool:
        """True while a worker waits at a barrier."""
        members = self._scheduler.members
        place = members.places.get(("worker", rank))
        return place is not None and place.member.id in members.barriers.waiting.get(barrier, ())

    def store(self, name: str = "dist_sync", rank: int | None = None, **options: Any) -> DistKVStore:
        """A worker's store, as ``mx.kv.create`` makes one for a process; blocks until the job runs."""
        node = Node("worker", self.address, rank=rank, timing=TIMING)
        session = Session(_mode(name, **options), node, self.servers, lambda at: Peer(at, node=node.id, limits=LIMITS))
        session.start().result(PATIENCE)
        return DistKVStore(name, session)

    def each(self, work: Callable[[DistKVStore], Any], name: str = "dist_sync", **options: Any) -> list[Any]:
        """Let every worker do something with its store, in a thread of its own; returns results by rank."""
        begun = [self.begin(work, name, rank, **options) for rank in range(self.workers)]
        return [each.result(PATIENCE) for each in begun]

    def begin(
        self, work: Callable[[DistKVStore], Any], name: str = "dist_sync", rank: int | None = None, **options: Any
    ) -> Future[Any]:
        """Let one worker do something with its store, in a thread of its own; it leaves the job then."""
        done: Future[Any] = Future()

        def run() -> None:
            try:
                with self.store(name, rank, **options) as kv:
                    found = work(kv)
                done.set_result(found)
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=run, daemon=True, name=f"worker {rank}").start()
        return done


@contextmanager
def job(
    workers: int = 2, servers: int = 2, policy: Policy = "stop", snapshot: Path | None = None
) -> Iterator[LocalJob]:
    """A job whose nodes are all in this process.

    Args:
        workers: how many.
        servers: how many.
        policy: what a lost node means.
        snapshot: the folder that servers go on from, and write to at the end.
    """
    loop = asyncio.new_event_loop()
    made = LocalJob(loop, workers, servers, policy)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(loop.run_forever)
        try:
            asyncio.run_coroutine_threadsafe(made.start(snapshot), loop).result(PATIENCE)
            yield made
        finally:
            asyncio.run_coroutine_threadsafe(made.stop(), loop).result(2 * PATIENCE)
            loop.call_soon_threadsafe(loop.stop)
    loop.close()
