"""The programs of a job's processes in a world: scheduler, server and worker, from the product's own parts."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flowmx import ndarray as nd
from flowmx import optimizer
from flowmx.comm.client import Peer
from flowmx.comm.members import Job
from flowmx.comm.node import Node
from flowmx.comm.scheduler import LIMITS as SCHEDULER_LIMITS
from flowmx.comm.scheduler import Scheduler
from flowmx.comm.server import Service
from flowmx.comm.timing import Timing
from flowmx.engine.loops import LoopThread
from flowmx.engine.runtime import engine
from flowmx.kvstore.server import main
from flowmx.kvstore.server.service import KVServer
from flowmx.kvstore.server.snapshot_folder import Folder, snapshots
from flowmx.kvstore.worker.session import LIMITS, Session
from flowmx.kvstore.worker.store import DistKVStore
from tests.world.ledger import Ledger
from tests.world.processes import CURRENT
from tests.world.scenario import HEARTBEAT, RECONNECT, TIMEOUT, Scenario

if TYPE_CHECKING:
    from tests.world.loop import Loop

__all__ = ["SCHEDULER", "run_scheduler", "run_server", "run_worker"]

SCHEDULER = ("127.0.0.1", 9000)
TIMING = Timing(HEARTBEAT, TIMEOUT, RECONNECT)


class _SharedLoop(LoopThread):
    """The world's loop in place of a session's thread."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop

    def start(self) -> None:
        """Do nothing: the loop runs."""

    def stop(self) -> None:
        """Do nothing: the loop belongs to the world."""


def _connect(address: str, **options: Any) -> Peer:
    return Peer(address, local=False, **options)


def _node(role: Any, **options: Any) -> Node:
    address, id = f"{SCHEDULER[0]}:{SCHEDULER[1]}", uuid.uuid4().hex
    connect = partial(_connect, address, limits=SCHEDULER_LIMITS, node=id)
    return Node(role, address, id=id, timing=TIMING, connect=connect, **options)


async def run_scheduler(scenario: Scenario, file: Path) -> str:
    """Run the scheduler until the job is over; return the phase in which it ended."""
    job = Job(scenario.workers, scenario.servers, TIMEOUT, scenario.policy)  # type: ignore[arg-type]
    service = Service("scheduler", limits=SCHEDULER_LIMITS, local=False)
    scheduler = Scheduler(job, snapshot=file, interval=HEARTBEAT, service=service)
    await scheduler.start(*SCHEDULER)
    try:
        return (await scheduler.wait_until_over()).phase
    finally:
        await scheduler.stop()


async def run_server(scenario: Scenario, rank: int, folder: Path | None) -> None:
    """Run a server until the job is over."""
    service = Service("kvserver", limits=main.LIMITS, local=False)
    node = _node("server", rank=rank, drain=True)
    server = KVServer(node.id, node.incarnation, scenario.servers, service, lambda at: _connect(at, node=node.id))
    node.address = await service.start(CURRENT.get().host)
    try:
        async with node:
            snapshot = None if folder is None else Folder(folder, server, node.rank, node.view.job)
            async with snapshots(snapshot, scenario.snapshots):
                await main._follow(node, server)
    finally:
        await server.close()
        await service.stop()


async def run_worker(scenario: Scenario, rank: int, writer: int, ledger: Ledger) -> None:
    """Train to the end as one worker.

    Args:
        scenario: the job.
        rank: the worker's rank.
        writer: the number of this start of a worker in the ledger.
        ledger: checks what the worker reads.
    """
    async with _store(scenario, rank) as kv:
        keys = [f"k{number}" for number in range(scenario.keys)]
        kv.init(keys, [nd.from_numpy(_zeros(scenario)) for _ in keys])
        kv.set_optimizer(optimizer.create("sgd", learning_rate=1.0, wd=0.0))
        await kv.ready()
        first = kv.step if scenario.mode == "sync" else 0
        for step in range(first, scenario.steps):
            mark, element = ledger.mark(), ledger.push(writer, step)
            ledger.read(writer, step, await _train(kv, keys, scenario, element, step), mark)
            await asyncio.sleep(_random(scenario).uniform(0, scenario.compute))
        await kv.barrier()
        mark = ledger.mark()
        ledger.check(await _pull(kv, keys, scenario), mark)


async def _train(kv: DistKVStore, keys: list[str], scenario: Scenario, element: int, step: int) -> list[Any]:
    gradient = _zeros(scenario)
    gradient[element] = -1.0
    gradients = [nd.from_numpy(gradient.copy()) for _ in keys]
    if step % 2:
        kv.push(keys, gradients)
        return await _pull(kv, keys, scenario)
    targets = [nd.from_numpy(_zeros(scenario)) for _ in keys]
    kv.pushpull(keys, gradients, out=targets)
    return [(await target).asnumpy() for target in targets]


async def _pull(kv: DistKVStore, keys: list[str], scenario: Scenario) -> list[Any]:
    targets = [nd.from_numpy(_zeros(scenario)) for _ in keys]
    kv.pull(keys, out=targets)
    return [(await target).asnumpy() for target in targets]


def _zeros(scenario: Scenario) -> Any:
    return np.zeros(scenario.writers * scenario.steps, np.float32)


def _random(scenario: Scenario) -> Any:
    loop: Any = asyncio.get_running_loop()
    return loop.random


@contextlib.asynccontextmanager
async def _store(scenario: Scenario, rank: int) -> AsyncIterator[DistKVStore]:
    """Join the job, and leave it at the end."""
    loop: Any = asyncio.get_running_loop()
    node = _node("worker", rank=rank)
    mode = (scenario.mode, 2 if scenario.mode == "stale" else None)
    connect = lambda at: _connect(at, node=node.id, limits=LIMITS)  # noqa: E731
    session = Session(mode, node, scenario.servers, connect, _SharedLoop(loop))
    process = CURRENT.get()
    process.at_end.append(lambda: _abandon(session))
    await asyncio.wrap_future(session.start())
    kv = DistKVStore("dist_sync" if scenario.mode == "sync" else "dist_async", session)
    process.describe = session.doing
    try:
        yield kv
    except BaseException as error:
        session.failure = f"{type(error).__name__}: {error}"
        raise
    else:
        await kv._finish()
    finally:
        life = session.leave()
        if life is not None:
            await asyncio.wrap_future(life)
    if session.lost is not None:
        raise session.lost


def _abandon(session: Session) -> None:
    """Forget the operations of an ended process, as its memory is gone."""
    engine.retire(session.actor)
    engine.abandon([op for op in engine.pending if op.actor is session.actor], "its process ended")
