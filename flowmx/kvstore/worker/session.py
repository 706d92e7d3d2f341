"""A worker's part in its job: the node, the calls of the servers, and the loop on which both live."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

import numpy as np

from flowmx import settings
from flowmx.comm.client import Peer
from flowmx.comm.endings import NodeGone, SchedulerGone
from flowmx.comm.frames import Message, Tensor
from flowmx.comm.limits import Limits, in_force
from flowmx.comm.node import Node
from flowmx.comm.security import Security
from flowmx.comm.verdict import ProgramFailed
from flowmx.comm.view import Member
from flowmx.engine.loops import LoopThread
from flowmx.engine.runtime import engine
from flowmx.errors import KVStoreError, OperationCancelled
from flowmx.kvstore import report
from flowmx.kvstore.shards import Key, Shard
from flowmx.kvstore.worker import facts
from flowmx.kvstore.worker.actor import Deferred, NetworkActor
from flowmx.kvstore.worker.keys import KeyState
from flowmx.kvstore.worker.outbox import MOST, Item
from flowmx.kvstore.worker.sender import Sender
from flowmx.kvstore.worker.servers import Connect, Servers
from flowmx.kvstore.worker.windows import Windows
from flowmx.observability import flight

__all__ = ["Session"]

log = logging.getLogger("flowmx.kvstore")
T = TypeVar("T")

LIMITS = Limits(connections=4096)
"""Each key may wait for its round in a request of its own: none may wait for another's connection."""

Mode = tuple[str, int | None]


class Session:
    """The connection of this process to a job.

    Args:
        mode: the kind of consistency (``"sync"``, ``"async"``, ``"stale"``), and the bound of the last.
        node: this process in the job.
        servers: how many servers the job has.
        connect: makes lines to servers.

    Attributes:
        servers: how many servers the job has.
        actor: the engine's actor whose operations travel.
        error: what ended it, if anything did.
        lost: the end of the job, where that came before the session had left it.
        windows: to values on this machine.
        met: how many rounds of :meth:`barrier` have ended.
    """

    def __init__(self, mode: Mode, node: Node, servers: int, connect: Connect) -> None:
        if servers < 1:
            raise KVStoreError("a distributed store needs at least one server: FLOWMX_NUM_SERVERS is 0")
        self.mode = mode
        self.node = node
        self.servers = servers
        self.error: BaseException | None = None
        self.lost: BaseException | None = None
        self.closed = False
        self.met = 0
        self._home = LoopThread("flowmx-kvstore", settings.get().uvloop)
        self._loop = self._home.loop
        self.actor = NetworkActor(f"kvstore worker {id(self):x}", self._loop)
        sender = {"node": node.id, "incarnation": node.incarnation}
        self._servers = Servers(servers, connect, sender, node.timing.reconnect, node.timing.timeout)
        self._acknowledged: dict[tuple[Key, int], int] = {}
        self._sender = Sender(self._servers, self._acknowledged)
        self.windows = Windows(self._servers, self._acknowledged)
        self._inbox: deque[list[Item]] = deque()
        self._leaving = asyncio.Event()
        self._joined: Future[None] = Future()
        self._life: Future[None] | None = None
        self._turn = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._activity = ""
        self._process = os.getpid()

    @classmethod
    def from_settings(cls, mode: Mode) -> Session:
        """The session that the environment describes.

        Raises:
            SettingError: no job is described.
        """
        config = settings.get()
        node, security, limits = Node.from_settings("worker"), Security.from_settings(), in_force("job", LIMITS)
        return cls(
            mode, node, max(config.num_servers, 1), lambda at: Peer(at, security=security, node=node.id, limits=limits)
        )

    # -- its life --------------------------------------------------------------------------------------

    def start(self) -> Future[None]:
        """Join the job; the future ends when the job runs."""
        self._home.start()
        self._life = asyncio.run_coroutine_threadsafe(self._live(), self._loop)
        return self._joined

    def close(self, seconds: float) -> None:
        """Leave the job; blocks until that is done, so many seconds at most."""
        if self.closed or not self.is_own:
            return
        self.closed = True
        self._loop.call_soon_threadsafe(self._leaving.set)
        try:  # whoever waits for an operation sees the error
            if self._life is not None:
                self._life.result(seconds)
        except TimeoutError:
            self.lost = self.lost or SchedulerGone(f"the scheduler did not answer for {seconds:g} s")
        except CancelledError:
            pass
        if not self._has_work():
            engine.retire(self.actor)
            self._home.stop()
            self._home.thread.join(seconds)
        else:
            self._loop.call_soon_threadsafe(self._stop_later)

    def _has_work(self) -> bool:
        """Tell whether operations still wait for their turn, which will then be refused."""
        with engine.lock:
            return any(op.actor is self.actor for op in engine.pending)

    def _stop_later(self) -> None:
        if self._has_work():
            self._loop.call_later(0.05, self._stop_later)
        else:
            engine.retire(self.actor)
            self._loop.stop()

    @property
    def is_own(self) -> bool:
        """True if the session was made in this process, not in one that forked this one."""
        return self._process == os.getpid()

    def check(self) -> None:
        """Raise the error that ended this session, if there is one.

        Raises:
            KVStoreError: it is closed, or belongs to the parent of this process.
            NodeGone: the job has failed.
        """
        if not self.is_own:
            raise KVStoreError("this store belongs to the process that forked this one: create one here")
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
                    await self._leaving.wait()
                finally:
                    flight.forget("kvstore")
                    follow.cancel()
                    await asyncio.gather(follow, return_exceptions=True)
                    await self._end()
                if self.failed:
                    raise ProgramFailed(self.failed)
            self.node.check()
        except BaseException as error:
            self.lost = error if isinstance(error, NodeGone) else None
            self._fail(error)
            if not self._joined.done():  # nobody will close it
                self._joined.set_exception(error)
                self._loop.call_soon(self._stop_later)

    failed = ""
    """Why the program fails, reported to the job at its end."""

    def _report(self) -> dict[str, Any]:
        """This worker's part of flight reports."""
        return report.of_node(self.node, facts.of_process()[0])

    async def _follow(self) -> None:
        """Pass each new view to the servers' calls, until the job ends."""
        view = self.node.view
        try:
            while True:
                self._servers.know(view)
                self.windows.forget()
                view = await self.node.changed(view.epoch)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            log.error("%s: %s", self.node.name, error)
            self._fail(error)

    async def _open(self) -> None:
        """Open the store on all servers, which compare this worker's facts with the others'."""
        said, hints = facts.of_process()
        for home in range(self._servers.count):
            await facts.tell(self._servers, home, self._kind, said, hints if home == 0 else {})

    @property
    def _kind(self) -> dict[str, Any]:
        name, bound = self.mode
        return {"mode": name} if bound is None else {"mode": name, "max_staleness": bound}

    async def _compare(self, entries: Sequence[KeyState]) -> None:
        """Compare the keys' shapes and dtypes with the other workers'; a difference fails the whole job."""
        try:
            await facts.tell(self._servers, 0, self._kind, facts.of_keys(entries), {})
        except KVStoreError as error:
            self.failed = str(error)
            self._fail(error)
            self._leaving.set()
            raise

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
        self.windows.forget()

    # -- what is sent ----------------------------------------------------------------------------------

    def submit(self, items: list[Item]) -> None:
        """Enqueue items for sending; from any thread."""
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
            self._activity = f"{items[0].operation} of key {items[0].shard.key!r}, number {items[0].number}"
            self._sender.put(items)

    def doing(self) -> str:
        """Description of what this worker waits for, which the others are shown if it fails."""
        waiting = self._sender.under_way()
        if not waiting:
            return f"computing since {self._activity}" if self._activity else "starting"
        first = waiting[0]
        more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
        return f"{first.operation} of key {first.shard.key!r}, number {first.number}{more}"

    def spawn(self, work: Callable[[], Awaitable[object]]) -> Deferred:
        """Run a coroutine function, as an operation of the actor (on the loop)."""
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
            except Exception as error:
                if isinstance(error, NodeGone):  # heard here before the news of it: nothing more may be sent
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

    async def init(self, entries: Sequence[KeyState], values: Sequence[np.ndarray[Any, Any]], barrier: str) -> None:
        """Take part in keys: give them their first values, or wait until another worker did.

        Args:
            entries: the keys.
            values: their values. Those of the leading worker count.
            barrier: what all workers wait at before anyone pushes.
        """
        await self._compare(entries)
        if self.node.is_past(barrier):
            await self._enrol(entries, {}, exist=True)
        else:
            await self._begin(entries, values)
        await self.node.barrier(barrier)

    async def _begin(self, entries: Sequence[KeyState], values: Sequence[np.ndarray[Any, Any]]) -> None:
        """Give keys their values, if this worker leads, or once it does; return when they have them."""
        waiting = None if self.leads else asyncio.create_task(self._enrol(entries, {}))
        if waiting is not None and await self._unless_leading(waiting):
            return
        tensors: dict[Shard, Tensor] = {}
        for entry, value in zip(entries, values, strict=True):
            tensors.update(zip(entry.shards, map(Tensor.of, entry.pieces(value)), strict=True))
        await self._enrol(entries, tensors)

    async def _unless_leading(self, waiting: asyncio.Task[None]) -> bool:
        """Await something that needs the leading worker; return whether it came, and not that worker's end."""
        leading = asyncio.create_task(self._lead())
        try:
            await asyncio.wait({waiting, leading}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                await waiting
                return True
            leading.result()
            return False
        finally:
            waiting.cancel()
            leading.cancel()
            await asyncio.gather(waiting, leading, return_exceptions=True)

    async def _lead(self) -> None:
        """Wait until this worker leads."""
        while not self.leads:
            await self.node.changed()

    async def barrier(self, entries: Sequence[KeyState], then: Callable[[], Awaitable[object]] | None = None) -> None:
        """Wait until every worker has come here; who still has batches left is not held up meanwhile.

        Args:
            entries: the keys.
            then: what is done when all have come, and before anyone goes on.
        """
        await self.rest(entries)
        self.met = await self.node.barrier("kvstore", meet=True)
        # Nobody may push before all take part again.
        await self._enrol(entries, {}, exist=True)
        if then is not None:
            await then()
        await self.node.barrier(f"kvstore {self.met}", meet=True)

    async def attend(self) -> None:
        """Let the others wait for this worker at :meth:`barrier` from now on, if it joined late.

        Those that ended a round of it before this call have passed all of it when this returns.
        """
        met = 0 if self.met else await self.node.attend("kvstore")
        if met and not self.node.has_ended(f"kvstore {met}"):
            await self.node.barrier(f"kvstore {met}", meet=True)

    async def rest(self, entries: Sequence[KeyState]) -> None:
        """Let rounds proceed without this worker, which has nothing more to push for now."""
        await self._administer("rest", {}, entries, {})

    async def configure(self, optimizer: dict[str, Any] | None, number: int) -> None:
        """Let all servers update by an optimizer.

        Args:
            optimizer: its configuration.
            number: counts the optimizers of the job. What comes late of an earlier one, or was sent before, is ignored.
        """
        self._turn += 1
        await self._configure(optimizer, [number, self.node.incarnation, self._turn])

    async def configure_together(self, optimizer: dict[str, Any] | None, number: int) -> None:
        """As :meth:`configure`, by the worker of rank 0; the others wait until it has, and do it if it was lost."""
        barrier = f"optimizer {number}"
        if self._begins(barrier):
            await self.configure(optimizer, number)
        await self.node.barrier(barrier)
        await self._configure(optimizer, [number, 0, 0])

    async def _configure(self, optimizer: dict[str, Any] | None, order: list[int]) -> None:
        header = {"optimizer": optimizer, "order": order}
        await asyncio.gather(*(self._servers.call(home, "set_optimizer", header) for home in range(self.servers)))

    async def load_states_together(self, entries: Sequence[KeyState], states: dict[Shard, bytes], barrier: str) -> None:
        """Let the optimizers of all parts go on from the states that the worker of rank 0 has."""
        if self._begins(barrier):
            tensors = {shard: Tensor.of(np.frombuffer(found, np.uint8)) for shard, found in states.items()}
            await self._administer("load_states", {}, entries, tensors)
        await self.node.barrier(barrier)

    def _begins(self, barrier: str) -> bool:
        """Tell whether this worker must do what one does for all: it has rank 0, and was there before it was done."""
        return self.node.rank == 0 and not self.node.is_past(barrier)

    @property
    def leads(self) -> bool:
        """True if this worker has the lowest rank of those alive."""
        return self.node.rank == min((member.rank for member in self.node.view.workers), default=self.node.rank)

    async def position(self, reached: Sequence[int] | None = None) -> list[int]:
        """The job's position in its data, the furthest that was reported: [fit, epoch, step]; empty at its start.

        Args:
            reached: how far it has come, as this worker knows.
        """
        header = {} if reached is None else {"position": list(reached)}
        calls = (self._servers.call(home, "position", header) for home in range(self._servers.count))
        return max([list(answer.header["position"]) for answer in await asyncio.gather(*calls)])

    async def save_states(self, entries: Sequence[KeyState]) -> dict[Shard, bytes]:
        """The states of the optimizers of all parts."""
        found: dict[Shard, bytes] = {}
        for home, shards in _by_home(entries):
            parts = [_part(shard, self._number(entries, shard)) for shard in shards]
            answer = await self._servers.call(home, "save_states", {"parts": parts})
            found.update((shard, bytes(tensor.data)) for shard, tensor in zip(shards, answer.tensors, strict=True))
        return found

    async def stats(self) -> list[dict[str, Any]]:
        """Statistics of each server."""
        return [(await self._servers.call(home, "stats", {})).header for home in range(self._servers.count)]

    async def _enrol(self, entries: Sequence[KeyState], tensors: dict[Shard, Tensor], exist: bool = False) -> None:
        member = self.node.view.find(self.node.id)
        joined = member.epoch if isinstance(member, Member) else 0
        header = {"rank": self.node.rank, "joined": joined, "exists": exist}
        numbers = await self._administer("init", header, entries, tensors)
        for entry in entries:
            entry.numbers = [numbers[shard] for shard in entry.shards]

    def _number(self, entries: Sequence[KeyState], shard: Shard) -> int:
        entry = next(entry for entry in entries if entry.key == shard.key)
        return entry.numbers[shard.part]

    async def _administer(
        self, operation: str, header: dict[str, Any], entries: Sequence[KeyState], tensors: dict[Shard, Tensor]
    ) -> dict[Shard, int]:
        """Call an operation for every part of some keys; returns the numbers of the answers."""
        self._turn += 1
        header = {**header, "turn": self._turn}
        numbers: dict[Shard, int] = {}

        async def ask(home: int, shards: list[Shard]) -> None:
            given = [tensors[shard] for shard in shards if shard in tensors]
            parts = {**header, "parts": [_part(shard) for shard in shards]}
            answer: Message = await self._servers.call(home, operation, parts, given)
            numbers.update(zip(shards, answer.header["numbers"], strict=True))

        await asyncio.gather(*(ask(home, shards) for home, shards in _by_home(entries)))
        return numbers


def _by_home(entries: Iterable[KeyState]) -> list[tuple[int, list[Shard]]]:
    """The parts of keys by the server that keeps them, as many as a request may have."""
    found: dict[int, list[Shard]] = {}
    for entry in entries:
        for shard in entry.shards:
            found.setdefault(shard.home, []).append(shard)
    return [
        (home, shards[start : start + MOST]) for home, shards in found.items() for start in range(0, len(shards), MOST)
    ]


def _part(shard: Shard, number: int = 0) -> list[Any]:
    found = [shard.key, shard.part, shard.home]
    return [*found, number] if number else found


async def _as_coroutine(work: Callable[[], Awaitable[T]]) -> T:
    return await work()
