"""A worker's session in its job: the node, the calls of the servers, and the event loop of both."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

import numpy as np

from flowmx import settings
from flowmx.comm.client import Peer
from flowmx.comm.errors import CommError, Refused
from flowmx.comm.exit_reason import ProgramFailed
from flowmx.comm.frames import Message, Tensor
from flowmx.comm.limits import Limits, limits_for
from flowmx.comm.node import Node
from flowmx.comm.node_errors import NodeGone, SchedulerGone
from flowmx.comm.security import Security
from flowmx.comm.view import Member
from flowmx.engine import Operation
from flowmx.engine.loops import LoopThread
from flowmx.engine.runtime import engine
from flowmx.errors import KVStoreError, OperationCancelled
from flowmx.kvstore import flight_report
from flowmx.kvstore.shards import Key, Shard
from flowmx.kvstore.spaces import PLAIN, format_key, suffix
from flowmx.kvstore.wait_log import Waits, watch
from flowmx.kvstore.worker import worker_facts
from flowmx.kvstore.worker.actor import Deferred, NetworkActor
from flowmx.kvstore.worker.keys import KeyState
from flowmx.kvstore.worker.outbox import MAX_SHARDS, Item
from flowmx.kvstore.worker.push_waits import log_waits
from flowmx.kvstore.worker.sender import Sender
from flowmx.kvstore.worker.servers import Connect, Servers
from flowmx.kvstore.worker.shared_windows import Windows
from flowmx.kvstore.worker.transfers import Transfers
from flowmx.observability import flight
from flowmx.ops.registry.operators import Array

__all__ = ["Session"]

log = logging.getLogger("flowmx.kvstore")
T = TypeVar("T")

LIMITS = Limits(connections=4096)
"""Each key may wait for its round in a separate request, which needs a connection."""

Mode = tuple[str, int | None]


class Session:
    """The connection of this process to a job.

    Args:
        mode: the consistency mode (``"sync"``, ``"async"``, ``"stale"``), and the staleness bound of ``"stale"``.
        node: this process in the job.
        servers: the number of servers of the job.
        connect: a function that returns a channel to a server.
        loop_thread: the thread with the session's event loop; by default a new one.

    Attributes:
        servers: the number of servers of the job.
        actor: the engine's actor for network operations.
        error: the error that ended the session, if any.
        lost: the error that ended the job before the session left it, if any.
        windows: the windows to values on this machine.
        barrier_rounds: the number of completed rounds of :meth:`barrier`.
    """

    def __init__(
        self, mode: Mode, node: Node, servers: int, connect: Connect, loop_thread: LoopThread | None = None
    ) -> None:
        if servers < 1:
            raise KVStoreError(
                "a distributed store needs at least one server, and FLOWMX_NUM_SERVERS is 0: start the job with "
                "--servers 1"
            )
        self.mode = mode
        self.node = node
        self.servers = servers
        self.error: BaseException | None = None
        self.lost: BaseException | None = None
        self.closed = False
        self.barrier_rounds = 0
        self._loop_thread = loop_thread or LoopThread("flowmx-kvstore", settings.get().uvloop)
        self._loop = self._loop_thread.loop
        self.actor = NetworkActor(f"kvstore worker {id(self):x}", self._loop)
        sender = {"node": node.id, "incarnation": node.incarnation}
        self._servers = Servers(servers, connect, sender, node.timing.reconnect, node.timing.timeout)
        self._acknowledged: dict[tuple[Key, int], int] = {}
        self._sender = Sender(self._servers, self._acknowledged, lambda: self.node.name)
        self.actor.on_start_failure = self._handle_start_failure
        self.windows = Windows(self._servers, self._acknowledged)
        self._inbox: deque[list[Item]] = deque()
        self._leaving = asyncio.Event()
        self._joined: Future[None] = Future()
        self._life: Future[None] | None = None
        self._turn = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._activity = ""
        self._process = os.getpid()
        self.names: dict[Key, str] = {}
        """The names of parameters by key, for messages."""

    @classmethod
    def from_settings(cls, mode: Mode) -> Session:
        """Make the session that the environment describes.

        Raises:
            SettingError: the environment describes no job.
        """
        config = settings.get()
        node, security, limits = Node.from_settings("worker"), Security.from_settings(), limits_for("job", LIMITS)
        return cls(mode, node, config.num_servers, lambda at: Peer(at, security=security, node=node.id, limits=limits))

    # -- lifetime --------------------------------------------------------------------------------------

    def start(self) -> Future[None]:
        """Join the job; return a future that completes when the job runs."""
        self._loop_thread.start()
        self._life = asyncio.run_coroutine_threadsafe(self._live(), self._loop)
        return self._joined

    def close(self, seconds: float) -> None:
        """Leave the job; block until it is left, for at most `seconds`."""
        if self.closed or not self.is_in_creating_process:
            return
        life = self.leave()
        try:  # waiting operations raise the error
            if life is not None:
                life.result(seconds)
        except TimeoutError:
            self.lost = self.lost or SchedulerGone(f"the scheduler did not answer for {seconds:g} s")
        except CancelledError:
            pass
        if not self._has_work():
            engine.retire(self.actor)
            self._loop_thread.stop()
            self._loop_thread.thread.join(seconds)
        else:
            self._loop.call_soon_threadsafe(self._stop_later)

    def leave(self) -> Future[None] | None:
        """Begin to leave the job; return a future that completes when it is left, or None if it was not joined."""
        self.closed = True
        self._loop.call_soon_threadsafe(self._leaving.set)
        return self._life

    def _has_work(self) -> bool:
        """Return whether operations are pending; they will be refused when they start."""
        with engine.lock:
            return any(op.actor is self.actor for op in engine.pending)

    def _stop_later(self) -> None:
        if self._has_work():
            self._loop.call_later(0.05, self._stop_later)
        else:
            engine.retire(self.actor)
            self._loop_thread.stop()

    @property
    def is_in_creating_process(self) -> bool:
        """False in a process that was forked after the session was created."""
        return self._process == os.getpid()

    def check(self) -> None:
        """Raise the error that ended this session, if any.

        Raises:
            KVStoreError: the session is closed, or belongs to the parent of this process.
            NodeGone: the job has failed.
        """
        if not self.is_in_creating_process:
            raise KVStoreError("this store belongs to the parent of this forked process: create another store here")
        if self.closed:
            raise KVStoreError("this store has been closed: nothing can be pushed or pulled any more")
        if self.error is not None:
            raise self.error

    async def _live(self) -> None:
        try:
            async with self.node:
                self.node.doing(self.doing)
                follow = asyncio.create_task(self._follow())
                try:
                    await self._open()
                    self._joined.set_result(None)
                    flight.describe("kvstore", self._report)
                    self._background(watch(self._log_waits))
                    await self._leaving.wait()
                finally:
                    flight.forget("kvstore")
                    follow.cancel()
                    await asyncio.gather(follow, return_exceptions=True)
                    await self._end()
                if self.failure:
                    raise ProgramFailed(self.failure)
            self.node.check()
        except BaseException as error:  # whoever waits for the session must learn of it
            self.lost = error if isinstance(error, NodeGone) else None
            self._fail(error)
            if not self._joined.done():  # the caller will not close it
                self._joined.set_exception(error)
                self._loop.call_soon(self._stop_later)

    failure = ""
    """The reason why the program fails; reported to the job at its end."""

    async def _log_waits(self, waits: Waits) -> None:
        await log_waits(self.node, self._sender, self._servers, self.names, waits)

    def _report(self) -> dict[str, Any]:
        """Return this worker's section of flight reports."""
        return flight_report.node_report(self.node, worker_facts.process_facts()[0])

    async def _follow(self) -> None:
        """Pass each new view to the servers' calls, until the job ends."""
        view = self.node.view
        try:
            while True:
                self._servers.update_view(view)
                self.windows.clear()
                view = await self.node.wait_for_change(view.epoch)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # whoever waits for the session must learn of it
            log.error("%s: %s", self.node.name, error)
            self._fail(error)

    async def _open(self) -> None:
        """Open the store on all servers, which compare this worker's facts with the others'."""
        own_facts, hints = worker_facts.process_facts()
        for home in range(self._servers.count):
            await worker_facts.open_with_facts(self._servers, home, self._kind, own_facts, hints if home == 0 else {})

    @property
    def _kind(self) -> dict[str, object]:
        name, bound = self.mode
        return {"mode": name} if bound is None else {"mode": name, "max_staleness": bound}

    async def _compare(self, own_facts: Mapping[str, str]) -> None:
        """Compare facts, such as the keys' shapes, with the other workers'; a difference fails the whole job."""
        try:
            await worker_facts.open_with_facts(self._servers, 0, self._kind, own_facts, {})
        except KVStoreError as error:
            self._fail_job(error)
            raise

    def _fail_job(self, error: BaseException) -> None:
        """Fail the whole job: the other workers would wait for this one forever."""
        self.failure = f"{type(error).__name__}: {error}" if not isinstance(error, KVStoreError) else str(error)
        self._fail(error)
        self._leaving.set()

    def _handle_start_failure(self, op: Operation, error: BaseException) -> None:
        """Abandon the pushes of an operation that could not start, or fail the job if it was an init."""
        if self.error is not None or not isinstance(error, Exception):
            return
        if op.name == "kvstore init":
            self._fail_job(error)
        elif isinstance(owner := getattr(op.function, "__self__", None), Transfers):
            by_home: dict[int, list[tuple[Key, int, int]]] = {}
            for shard, number in owner.count_failed_pushes(op):
                by_home.setdefault(shard.home, []).append((shard.key, shard.part, number))
            for home, pushes in by_home.items():
                self._background(self._sender.abandon(home, pushes, error))

    def _background(self, work: Coroutine[object, object, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self) -> None:
        await self._sender.close()
        await self.windows.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._servers.close()
        self._fail(KVStoreError("this store has been closed"))
        self.actor.flush()

    def _fail(self, error: BaseException) -> None:
        self.error = self.error or error
        self._servers.fail(error)
        self._sender.fail(error)
        self.windows.clear()

    # -- sending ---------------------------------------------------------------------------------------

    def submit(self, items: list[Item]) -> None:
        """Enqueue items for sending, from any thread."""
        self._inbox.append(items)
        if len(self._inbox) == 1:
            self._loop.call_soon_threadsafe(self._put)

    def _put(self) -> None:
        while self._inbox:
            items = self._inbox.popleft()
            if self.error is not None:
                for item in items:
                    for exchange in item.exchanges:
                        exchange.end(self.error)
                continue
            self._activity = f"{items[0].operation} of key {format_key(items[0].shard.key)}, number {items[0].number}"
            self._sender.put(items)

    def doing(self) -> str:
        """Describe this worker's current activity; the others log it if this worker fails."""
        pending = self._sender.pending()
        if not pending:
            return f"computing since {self._activity}" if self._activity else "starting"
        first = pending[0]
        more = f" and {len(pending) - 1} more" if len(pending) > 1 else ""
        return f"{first.operation} of key {format_key(first.shard.key)}, number {first.number}{more}"

    def spawn(self, work: Callable[[], Awaitable[object]]) -> Deferred:
        """Run a coroutine function as an operation of the actor (call this on the loop)."""
        cancelled: list[OperationCancelled] = []

        def cancel() -> None:
            cancelled.append(OperationCancelled("this was cancelled while it waited for the job's other nodes"))
            task.cancel()

        deferred = Deferred(cancel)

        async def run() -> None:
            try:
                if self.error is not None:
                    raise self.error
                await self.node.unless_gone(_as_coroutine(work))
            except asyncio.CancelledError:
                deferred.end(self.error or (cancelled[0] if cancelled else KVStoreError("the store was closed")))
                raise
            except Exception as error:  # it becomes the error of the operation
                if isinstance(error, NodeGone):  # raised here before the session learns of it: send nothing more
                    self._fail(error)
                deferred.end(error)
            else:
                deferred.end()

        task = self._loop.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return deferred

    def ask(self, work: Callable[[], Awaitable[T]]) -> Future[T]:
        """Run a coroutine function on the loop, from any thread."""
        self.check()

        async def guarded() -> T:
            return await self.node.unless_gone(work())

        return asyncio.run_coroutine_threadsafe(guarded(), self._loop)

    # -- requests (on the loop) ------------------------------------------------------------------------

    async def init(
        self, entries: Sequence[KeyState], values: Sequence[Array], barrier: str,
        facts: Mapping[str, str],
    ) -> None:  # fmt: skip
        """Initialize keys with values, or wait until another worker has done so.

        Args:
            entries: the keys.
            values: their values. Those of the leading worker are used.
            barrier: the barrier of all workers before the first push.
            facts: further facts that must be equal on all workers.
        """
        await self._compare({**worker_facts.key_facts(entries), **facts})
        if self.node.is_past(barrier):
            await self._enrol(entries, {}, exist=True)
        else:
            try:
                await self._begin(entries, values)
            except CommError as error:
                self._fail_job(KVStoreError(f"init of {_list_keys(entries)} was refused: {error}"))
                raise
        await self.node.barrier(barrier)

    async def _begin(self, entries: Sequence[KeyState], values: Sequence[Array]) -> None:
        """Send the initial values of keys if this worker leads, or once it does; return when the keys have values."""
        enrolment = None if self.leads else asyncio.create_task(self._enrol(entries, {}))
        if enrolment is not None and await self._unless_leading(enrolment):
            return
        tensors: dict[Shard, Tensor] = {}
        for entry, value in zip(entries, values, strict=True):
            tensors.update(zip(entry.shards, map(Tensor.of, entry.pieces(value)), strict=True))
        await self._enrol(entries, tensors)

    async def _unless_leading(self, task: asyncio.Task[None]) -> bool:
        """Wait for a task that needs the leading worker; return False if this worker becomes the leader first."""
        promotion = asyncio.create_task(self._wait_until_leading())
        try:
            await asyncio.wait({task, promotion}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await task
                return True
            promotion.result()
            return False
        finally:
            task.cancel()
            promotion.cancel()
            await asyncio.gather(task, promotion, return_exceptions=True)

    async def _wait_until_leading(self) -> None:
        """Wait until this worker leads."""
        while not self.leads:
            await self.node.wait_for_change()

    async def barrier(self, entries: Sequence[KeyState], then: Callable[[], Awaitable[object]] | None = None) -> None:
        """Wait until every worker has reached the barrier; workers that still have batches are not blocked.

        Args:
            entries: the keys.
            then: called when all have arrived, before any worker continues.
        """
        await self.rest(entries)
        self.barrier_rounds = await self.node.barrier("kvstore", meet=True)
        # No worker may push before all are counted again.
        await self._enrol(entries, {}, exist=True)
        if then is not None:
            await then()
        await self.node.barrier(f"kvstore {self.barrier_rounds}", meet=True)

    async def attend(self) -> None:
        """Take part in :meth:`barrier` from now on, if this worker joined late.

        Workers that completed a round of it before this call have left the barrier when this returns.
        """
        rounds = 0 if self.barrier_rounds else await self.node.attend("kvstore")
        if rounds and not self.node.has_ended(f"kvstore {rounds}"):
            await self.node.barrier(f"kvstore {rounds}", meet=True)

    async def rest(self, entries: Sequence[KeyState]) -> None:
        """Pause this worker: rounds proceed without it until it is counted again."""
        await self._call_for_parts("rest", {}, entries, {})

    async def configure(self, optimizer: Mapping[str, object] | None, number: int, space: str = PLAIN) -> None:
        """Set the optimizer of a key space on all servers.

        Args:
            optimizer: its configuration.
            number: counts the optimizers of the space. Late messages of earlier optimizers, and repetitions, are
                ignored.
            space: the key space.
        """
        self._turn += 1
        await self._configure(optimizer, [number, self.node.incarnation, self._turn], space)

    async def configure_together(
        self, optimizer: Mapping[str, object] | None, number: int, space: str = PLAIN,
        facts: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Call :meth:`configure` on the worker of rank 0; the others wait, and call it themselves if it is lost.

        Args:
            optimizer: as for :meth:`configure`.
            number: as for :meth:`configure`.
            space: as for :meth:`configure`.
            facts: facts that must be equal on all workers.

        Raises:
            Refused: the servers cannot make the optimizer; raised on every worker, since all of them send it.
        """
        if facts:  # a worker with other facts would wait at another barrier
            await self._compare(facts)
        barrier, refused = f"optimizer {number}{suffix(space)}", None
        if self._acts_for_all(barrier):
            try:
                await self.configure(optimizer, number, space)
            except Refused as error:
                refused = error
        await self.node.barrier(barrier)
        if refused is not None:
            raise refused
        await self._configure(optimizer, [number, 0, 0], space)

    async def _configure(self, optimizer: Mapping[str, object] | None, order: list[int], space: str) -> None:
        header: dict[str, object] = {"optimizer": optimizer, "order": order}
        if space:
            header["space"] = space
        await asyncio.gather(*(self._servers.call(home, "set_optimizer", header) for home in range(self.servers)))

    async def load_states_together(self, entries: Sequence[KeyState], states: dict[Shard, bytes], barrier: str) -> None:
        """Load the optimizer states of the worker of rank 0 into all parts."""
        if self._acts_for_all(barrier):
            tensors = {shard: Tensor.of(np.frombuffer(content, np.uint8)) for shard, content in states.items()}
            await self._call_for_parts("load_states", {}, entries, tensors)
        await self.node.barrier(barrier)

    def _acts_for_all(self, barrier: str) -> bool:
        """Return whether this worker acts for all: it has rank 0, and the barrier is not over yet."""
        return self.node.rank == 0 and not self.node.is_past(barrier)

    @property
    def leads(self) -> bool:
        """True if this worker has the lowest rank of the live workers."""
        return self.node.rank == min((member.rank for member in self.node.view.workers), default=self.node.rank)

    async def position(self, progress: Sequence[int] | None = None) -> list[int]:
        """Return the furthest reported position of the job in its data: [fit, epoch, step]; empty at its start.

        Args:
            progress: a position to report first.
        """
        header = {} if progress is None else {"position": list(progress)}
        calls = (self._servers.call(home, "position", header) for home in range(self._servers.count))
        return max([list(response.header["position"]) for response in await asyncio.gather(*calls)])

    async def save_states(self, entries: Sequence[KeyState]) -> dict[Shard, bytes]:
        """Return the optimizer states of all parts."""
        states: dict[Shard, bytes] = {}
        for home, shards in _group_by_home(entries):
            parts = [_part(shard, self._number(entries, shard)) for shard in shards]
            response = await self._servers.call(home, "save_states", {"parts": parts})
            states.update((shard, bytes(tensor.data)) for shard, tensor in zip(shards, response.tensors, strict=True))
        return states

    async def stats(self) -> list[dict[str, Any]]:
        """Return the statistics of each server."""
        return [(await self._servers.call(home, "stats", {})).header for home in range(self._servers.count)]

    async def _enrol(self, entries: Sequence[KeyState], tensors: dict[Shard, Tensor], exist: bool = False) -> None:
        member = self.node.view.find(self.node.id)
        joined = member.epoch if isinstance(member, Member) else 0
        header = {"rank": self.node.rank, "joined": joined, "exists": exist}
        counts: dict[Shard, int] = {}
        numbers = await self._call_for_parts("init", header, entries, tensors, counts, ranges=True)
        for entry in entries:
            entry.numbers = [numbers[shard] for shard in entry.shards]
            entry.count = max([counts.get(shard, 0) for shard in entry.shards])

    async def recount(self, entries: Sequence[KeyState]) -> None:
        """Update the number of updates of each key from the servers."""
        if entries:
            await self._enrol(entries, {}, exist=True)

    def _number(self, entries: Sequence[KeyState], shard: Shard) -> int:
        entry = next(entry for entry in entries if entry.shards[0].key == shard.key)
        return entry.numbers[shard.part]

    async def _call_for_parts(
        self, operation: str, header: Mapping[str, object], entries: Sequence[KeyState], tensors: dict[Shard, Tensor],
        counts: dict[Shard, int] | None = None, ranges: bool = False,
    ) -> dict[Shard, int]:  # fmt: skip
        """Call an operation for every part of some keys; return the numbers in the responses.

        Args:
            operation: the operation.
            header: the header, without the parts.
            entries: the keys.
            tensors: tensors to send, by part.
            counts: filled with the counts in the responses.
            ranges: whether to send the range of each part within its key.
        """
        self._turn += 1
        header = {**header, "turn": self._turn}
        numbers: dict[Shard, int] = {}
        shapes = {shard: entry.shape for entry in entries for shard in entry.shards}

        async def ask(home: int, shards: list[Shard]) -> None:
            part_tensors = [tensors[shard] for shard in shards if shard in tensors]
            parts = {**header, "parts": [_part(shard) for shard in shards]}
            if ranges:
                parts["ranges"] = [[shard.start, shard.stop, list(shapes[shard])] for shard in shards]
            response: Message = await self._servers.call(home, operation, parts, part_tensors)
            numbers.update(zip(shards, response.header["numbers"], strict=True))
            if counts is not None:
                counts.update(zip(shards, response.header.get("counts", ()), strict=False))

        await asyncio.gather(*(ask(home, shards) for home, shards in _group_by_home(entries)))
        return numbers


def _list_keys(entries: Sequence[KeyState]) -> str:
    more = f" and {len(entries) - 3} more keys" if len(entries) > 3 else ""
    return ", ".join(format_key(entry.shards[0].key) for entry in entries[:3]) + more


def _group_by_home(entries: Iterable[KeyState]) -> list[tuple[int, list[Shard]]]:
    """Return the shards of keys by home, split into requests."""
    by_home: dict[int, list[Shard]] = {}
    for entry in entries:
        for shard in entry.shards:
            by_home.setdefault(shard.home, []).append(shard)
    return [
        (home, shards[start : start + MAX_SHARDS])
        for home, shards in by_home.items()
        for start in range(0, len(shards), MAX_SHARDS)
    ]


def _part(shard: Shard, number: int = 0) -> list[Any]:
    fields = [shard.key, shard.part, shard.home]
    return [*fields, number] if number else fields


async def _as_coroutine(work: Callable[[], Awaitable[T]]) -> T:
    return await work()
