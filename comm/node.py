"""A node of a job: it joins, sends heartbeats, follows the view of the job, and leaves."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from flowmx import settings
from flowmx.comm import fields
from flowmx.comm.client import Peer
from flowmx.comm.clock import Clock, within
from flowmx.comm.errors import Busy, PeerGone, Refused
from flowmx.comm.exit_reason import TERMINATED, classify_exit
from flowmx.comm.frames import Message
from flowmx.comm.heartbeat_process import AVAILABLE, HeartbeatProcess
from flowmx.comm.join_wait import JoinWait
from flowmx.comm.limits import limits_for
from flowmx.comm.members import MAX_NUMBER, rounds_from_wire
from flowmx.comm.node_errors import NodeGone, SchedulerGone
from flowmx.comm.notifier import Notifier
from flowmx.comm.outage import Outage
from flowmx.comm.scheduler import LIMITS
from flowmx.comm.security import Security
from flowmx.comm.timing import Timing
from flowmx.comm.view import Member, Role, View

__all__ = ["Node"]

log = logging.getLogger("flowmx.comm")
T = TypeVar("T")

UNREACHABLE = (PeerGone, TimeoutError, Busy)  # errors after which a retry may succeed
MAX_ACTIVITY = 400  # characters in the description of a node's activity


def _size(config: settings.Settings) -> tuple[int, int] | None:
    """Return the numbers of workers and servers of the job, or None unless the environment has both."""
    sources = settings.sources()
    is_set = "default" not in (sources["num_workers"], sources["num_servers"])
    return (config.num_workers, config.num_servers) if is_set else None


class Connection(Protocol):
    """A connection to the scheduler: the methods of :class:`Peer` that a node needs."""

    async def call(
        self,
        operation: str,
        header: dict[str, Any],
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Message:
        """Call an operation."""

    async def close(self) -> None:
        """Close the connection."""


class Node:
    """A node of a job in this process. It belongs to one event loop; ``async with`` joins the job and leaves it.

    Args:
        role: ``"worker"`` or ``"server"``.
        scheduler: the scheduler's address.
        address: the address of this node's service.
        rank: the preferred rank.
        job: the name of the job, the same as the scheduler's; empty if it has none.
        size: the numbers of workers and servers of the job, if known.
        id: its id; by default a new one.
        host: its machine's name.
        security: the same as the scheduler's.
        timing: intervals and timeouts.
        drain: whether SIGTERM makes the node leave: the task that joined is cancelled, and ``async with`` ends
            normally. For the job this is a failure, since it still needs the node.
        heartbeat_process: whether a separate process reports this one as alive while it is too busy to send heartbeats.
        clock: the time.
        connect: opens a connection to the scheduler.

    Attributes:
        rank: its number among the nodes of its role.
        incarnation: the number of this start of the node; it grows with each start.
        draining: whether SIGTERM was received.
        awaited: the barriers at which this node waits, with the workers missing there by the scheduler's last response.

    Example:
        >>> async with Node("worker", "127.0.0.1:9091") as node:
        ...     with node.during("push key 7"):
        ...         await node.unless_gone(push(), node.view.servers[0])
        ...     await node.barrier("epoch")
    """

    def __init__(
        self,
        role: Role,
        scheduler: str,
        *,
        address: str = "",
        rank: int | None = None,
        job: str = "",
        size: tuple[int, int] | None = None,
        id: str = "",
        host: str = "",
        security: Security | None = None,
        timing: Timing | None = None,
        drain: bool = False,
        heartbeat_process: bool = False,
        clock: Clock | None = None,
        connect: Callable[[], Connection] | None = None,
    ) -> None:
        self.role: Role = role
        self.id = id or uuid.uuid4().hex
        self.address = address
        self.host = host or socket.gethostname()
        self.incarnation = time.time_ns()
        self.timing = timing or Timing()
        self.rank = -1
        self.draining = False
        self.awaited: dict[str, list[Member]] = {}
        self._scheduler = scheduler
        self._connect = connect or (
            lambda: Peer(scheduler, security=security, limits=limits_for("job", LIMITS), node=self.id)
        )
        self._preferred_rank = rank
        self._job, self._size = job, size
        self._drain = drain
        interval, timeout = self.timing.heartbeat, self.timing.timeout / 2
        self._heartbeat_process = (
            HeartbeatProcess(scheduler, self.id, self.incarnation, interval, timeout, security)
            if heartbeat_process
            else None
        )
        self._clock = clock or Clock()
        self._connection: Connection | None = None
        self._outage = Outage()
        self._closing: set[asyncio.Task[None]] = set()
        self._view: View | None = None
        self._error: BaseException | None = None
        self._notifier = Notifier()
        self._beat_number = 0
        self._rounds: dict[str, int] = {}
        self._visited: set[str] = set()
        self._locks: dict[str, asyncio.Lock] = {}
        self._doing: Callable[[], str] = str
        self._activities: dict[object, str] = {}
        self._logged_losses: set[tuple[str, int]] = set()
        self._on_gone: list[Callable[[Member], object]] = []
        self._on_change: list[Callable[[View], object]] = []
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._owner: asyncio.Task[Any] | None = None

    @classmethod
    def from_settings(cls, role: Role | None = None, **options: object) -> Node:
        """Return the node that the environment defines.

        Raises:
            SettingError: no scheduler is set, or the role is that of a scheduler.
        """
        config = settings.get()
        if not config.scheduler:
            raise settings.SettingError(
                "this process belongs to no job: set FLOWMX_SCHEDULER (or DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT) to "
                "the scheduler's address; `python -m flowmx launch` does so"
            )
        node_role = role or config.role
        if node_role == "scheduler":
            raise settings.SettingError("FLOWMX_ROLE is scheduler: start it with `python -m flowmx scheduler`")
        defaults: dict[str, Any] = {
            "rank": config.rank,
            "job": config.job,
            "size": _size(config),
            "id": config.node_id,
            "security": Security.from_settings(),
            "timing": Timing.from_settings(),
            "heartbeat_process": AVAILABLE,
        }
        return cls(node_role, config.scheduler, **(defaults | options))

    # Joining and leaving

    async def __aenter__(self) -> Self:
        """Join the job, and wait until it runs.

        Raises:
            NodeGone: the scheduler cannot be reached, or the job has failed.
            Refused: the job has no place for this node.
        """
        self._connection = self._connect()
        try:
            await self._register()
            self._heartbeat_task = asyncio.create_task(self._send_heartbeats())
            if self._heartbeat_process is not None:
                self._heartbeat_process.start()
            await self._wait_until_running()
        except BaseException as error:  # also cancelled: the scheduler must hear of it
            await self._leave(error)
            raise
        if self._drain:
            self._owner = asyncio.current_task()
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._drain_now)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._owner is not None:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
        was_drained = self.draining and isinstance(error, asyncio.CancelledError)
        if was_drained and self._owner is not None:
            was_drained = self._owner.uncancel() == 0
        await self._leave(SystemExit(TERMINATED) if was_drained else error)
        return was_drained

    async def _leave(self, error: BaseException | None) -> None:
        """Leave the job, or report the failure, and close the connection."""
        assert self._connection is not None
        if self._heartbeat_task is not None:
            self._heartbeat_task.cancel()
            await asyncio.gather(self._heartbeat_task, return_exceptions=True)
        try:
            if self.rank >= 0 and self._error is None:
                if not await within(self._clock, self.timing.timeout, lambda: self._send_leave(error)):
                    self._error = SchedulerGone(f"the scheduler at {self._scheduler} did not answer a leave message")
            elif self._view is not None and self._view.over:  # the scheduler waits until all nodes know
                await within(self._clock, self.timing.heartbeat, lambda: self._send_leave(None))
        finally:
            if self._heartbeat_process is not None:
                self._heartbeat_process.stop()  # no thread can be started at the exit of the interpreter
            await self._connection.close()
            await asyncio.gather(*self._closing, return_exceptions=True)

    async def _send_leave(self, error: BaseException | None) -> None:
        reason = classify_exit(error=error)
        operation = "fail" if reason.failed else "leave"
        header: dict[str, object] = {"why": reason.why} if reason.failed else {}
        while True:
            try:
                await self._call(operation, header)
                return
            except Refused as refused:
                if refused.kind != "unregistered":
                    return
                await self._register()
            except UNREACHABLE:
                await self._clock.sleep(self.timing.heartbeat / 4)

    def _drain_now(self) -> None:
        if not self.draining and self._owner is not None:
            log.info("%s was asked to end and is leaving the job", self.name)
            self.draining = True
            self._notifier.notify()
            self._owner.cancel()

    # State

    @property
    def name(self) -> str:
        """The node's display name: ``"worker 1"``."""
        return f"{self.role} {self.rank}" if self.rank >= 0 else self.role

    @property
    def view(self) -> View:
        """The newest known view of the job.

        Raises:
            RuntimeError: the node has not joined yet.
        """
        if self._view is None:
            raise RuntimeError("the node has not joined its job yet: use it with `async with Node(...) as node`")
        return self._view

    def check(self) -> None:
        """Raise the error that removed this node from the job, if any.

        Raises:
            NodeGone: the job has failed, or has dropped this node.
        """
        if self._error is not None:
            raise self._error

    async def wait_for_change(self, epoch: int | None = None) -> View:
        """Wait until the view's epoch differs from `epoch` (by default the current one); return the view.

        Raises:
            NodeGone: as in :meth:`check`.
        """
        epoch = self.view.epoch if epoch is None else epoch
        while self.view.epoch == epoch:
            self.check()
            await self._notifier.next()
        self.check()
        return self.view

    def on_gone(self, callback: Callable[[Member], object]) -> None:
        """Register a function to be called with each node that is lost from now on."""
        self._on_gone.append(callback)

    def on_change(self, callback: Callable[[View], object]) -> None:
        """Register a function to be called with each new view."""
        self._on_change.append(callback)

    async def unless_gone(self, awaitable: Awaitable[T], *peers: Member) -> T:
        """Await an operation that needs the job and some of its members; return its result.

        Raises:
            NodeGone: the job failed, or one of `peers` is gone or was restarted; the operation is cancelled.
        """
        work = asyncio.ensure_future(awaitable)
        watch = asyncio.create_task(self._raise_if_lost(peers))
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                watch.result()
            return await work
        finally:
            work.cancel()
            watch.cancel()
            await asyncio.gather(work, watch, return_exceptions=True)

    async def _raise_if_lost(self, peers: tuple[Member, ...]) -> None:
        """Wait until the job has failed or a peer is lost, and raise."""
        while True:
            self.check()
            for peer in peers:
                holder = self.view.at(peer.role, peer.rank)
                if holder is None or (holder.id, holder.incarnation, holder.state) != (
                    peer.id,
                    peer.incarnation,
                    "alive",
                ):
                    lost = next(
                        (m for m in self.view.lost if (m.id, m.incarnation) == (peer.id, peer.incarnation)), peer
                    )
                    text = lost.loss_message if lost.state == "gone" else f"{peer.name} has left or was restarted"
                    raise NodeGone(text, [lost])
            await self._notifier.next()

    async def report_lost(self, member: Member, why: str) -> None:
        """Report a node as lost to the scheduler, which then drops it from the job."""
        try:
            await self._call("fail", {"who": member.id, "why": why[:1000]})
        except (Refused, *UNREACHABLE) as error:
            log.info("%s could not report the loss of %s: %s", self.name, member.name, error)

    # Activity

    def doing(self, text: str | Callable[[], str]) -> None:
        """Set the description of this node's activity, or a function that returns it; errors of other nodes show it."""
        self._doing = (lambda: text) if isinstance(text, str) else text

    @contextmanager
    def during(self, text: str) -> Iterator[None]:
        """Describe this node's activity while the context lasts; the newest of several activities is shown."""
        token = object()
        self._activities[token] = text
        try:
            yield
        finally:
            del self._activities[token]

    @property
    def activity(self) -> str:
        """The description of this node's current activity, for other nodes to display."""
        text = next(reversed(self._activities.values()), None) or self._doing()
        more = f" (and {len(self._activities) - 1} more)" if len(self._activities) > 1 else ""
        return text[: MAX_ACTIVITY - len(more)] + more

    # Barriers

    async def barrier(
        self,
        name: str,
        timeout: float | None = None,  # noqa: ASYNC109 (the message names the missing workers)
        meet: bool = False,
    ) -> int:
        """Wait until every worker of the job has reached this barrier as often as this worker.

        Args:
            name: the barrier's name.
            timeout: the timeout in seconds.
            meet: whether this is a meeting, such as the end of an epoch. A meeting waits for a worker that joined late
                only after the worker's first arrival. (Such a worker passes other barriers immediately if the job has
                passed them before.)

        Returns:
            The number of ended rounds of the barrier.

        Raises:
            NodeGone: the job failed.
            TimeoutError: some workers did not come; the message names them and their activities.
            Refused: this node is not a worker.
        """
        missing: list[Member] = []
        async with self._locks.setdefault(name, asyncio.Lock()):
            try:
                with self.during(f"barrier {name!r}"), self._awaiting(name, missing):
                    arrived = await self._within(
                        timeout, lambda: self.unless_gone(self._enter_barrier(name, missing, meet))
                    )
            except asyncio.CancelledError:
                asyncio.get_running_loop().create_task(self._withdraw(name))
                raise
            if not arrived:
                await self._withdraw(name)
                who = "; ".join(f"{member.name} ({member.doing or 'unknown activity'})" for member in missing)
                raise TimeoutError(f"after {timeout:g} s the barrier {name!r} still waits for {who or 'the scheduler'}")
            return self._rounds[name]

    async def attend(self, name: str) -> int:
        """Add this node to those that a meeting waits for, although it joined late and has not come there.

        Args:
            name: the meeting's name.

        Returns:
            The last round that this node missed because it joined late; otherwise 0.

        Raises:
            NodeGone: the job failed.
            Refused: this node is not a worker.
        """
        response = await self.unless_gone(self._ask_barrier({"name": name, "attend": True}))
        return fields.integer(response, "round", maximum=MAX_NUMBER)

    @contextmanager
    def _awaiting(self, name: str, missing: list[Member]) -> Iterator[None]:
        self.awaited[name] = missing
        try:
            yield
        finally:
            del self.awaited[name]

    def is_past(self, name: str) -> bool:
        """Return whether the job passed a barrier before this node joined and this node has not reached it yet."""
        return name in self._rounds and name not in self._visited

    def has_ended(self, name: str) -> bool:
        """Return whether this node knows that a round of a barrier has ended."""
        return name in self._rounds

    async def _within(self, seconds: float | None, wait: Callable[[], Awaitable[object]]) -> bool:
        if seconds is not None:
            return await within(self._clock, seconds, wait)
        await wait()
        return True

    async def _enter_barrier(self, name: str, missing: list[Member], meet: bool) -> None:
        first = name not in self._visited
        while True:
            request = {"name": name, "after": self._rounds.get(name, 0), "first": first, "meet": meet}
            response = await self._ask_barrier(request)
            missing[:] = [Member.from_wire(entry) for entry in response.get("missing", [])]
            if isinstance(response.get("round"), int):
                self._rounds[name] = response["round"]
                self._visited.add(name)
                return

    async def _ask_barrier(self, request: Mapping[str, object]) -> Mapping[str, Any]:
        """Send a barrier request to the scheduler until it answers."""
        while True:
            try:
                return (await self._call("barrier", {**request, "term": self.view.term})).header
            except Refused as refused:
                if refused.kind != "unregistered" and not isinstance(refused, Busy):
                    is_over = refused.kind == "over"  # the refusal arrived before the new view
                    error = NodeGone(f"the job has failed: {refused}", self.view.lost) if is_over else refused
                    raise self._error or error from None
                await self._clock.sleep(self.timing.heartbeat / 4)  # the heartbeat task registers again
            except UNREACHABLE:
                await self._clock.sleep(self.timing.heartbeat / 4)

    async def _withdraw(self, name: str) -> None:
        try:
            await self._call("barrier", {"name": name, "withdraw": True})
        except (Refused, *UNREACHABLE) as error:
            log.debug("%s could not withdraw from barrier %r: %s", self.name, name, error)

    # The scheduler

    async def _call(self, operation: str, header: Mapping[str, object]) -> Message:
        assert self._connection is not None
        common = {"node": self.id, "incarnation": self.incarnation}
        connection = self._connection
        try:
            # Less than the time after which this node would be gone, so that a stuck connection is closed before.
            return await connection.call(operation, {**common, **header}, timeout=self.timing.timeout / 2)
        except TimeoutError:
            if self._connection is connection:  # other connections of this client may be dead too
                self._connection = self._connect()
                closing = asyncio.create_task(connection.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
            raise

    async def _register(self) -> None:
        """Join the job, or join it again after a restart of the scheduler; retry until the reconnect time has passed.

        Raises:
            SchedulerGone: the scheduler could not be reached.
            Refused: the scheduler refused this node.
        """
        start, pause = self._clock.now(), min(0.05, self.timing.heartbeat / 4)
        wait = JoinWait(self.role, self._scheduler, self.timing.reconnect)
        while True:
            try:
                self._adopt_registration((await self._call("join", self._join_header())).header)
                return
            except Refused as refused:
                if refused.kind != "full" and not isinstance(refused, Busy):
                    raise
                problem: Exception = refused
            except UNREACHABLE as error:
                problem = error
            seconds = self._clock.now() - start
            wait.record(problem, seconds)
            if seconds > self.timing.reconnect:
                raise wait.error(problem, self.timing.search_time(problem)) from None  # it names the problem
            await self._clock.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, self.timing.heartbeat)

    def _join_header(self) -> dict[str, object]:
        header: dict[str, object] = {
            "role": self.role,
            "address": self.address,
            "host": self.host,
            "beat": self._next_beat(),
            "view": None,
            "rounds": dict(self._rounds),
            "job": self._job,
        }
        if self._size is not None:
            header["size"] = list(self._size)
        if self._view is not None:
            header["view"] = self._view.to_wire()
        rank = self.rank if self.rank >= 0 else self._preferred_rank
        return header if rank is None else {**header, "rank": rank}

    def _adopt_registration(self, response: Mapping[str, Any]) -> None:
        if self.rank < 0:
            self._rounds = rounds_from_wire(response)
        self.rank = int(response["rank"])
        self._adopt_view(response)

    def _next_beat(self) -> int:
        self._beat_number += 1
        return self._beat_number

    async def _send_heartbeats(self) -> None:
        """Send heartbeats and receive changes of the view until this node is out of the job."""
        while self._error is None:
            try:
                self._adopt_view((await self._call("heartbeat", self._heartbeat())).header)
                self._outage.end()
            except Refused as refused:
                await self._handle_refusal(refused)
            except UNREACHABLE as error:
                await self._handle_outage(error)
            except Exception as error:  # an invalid response, or an error of the user's callback
                log.exception("%s: a heartbeat failed: %s", self.name, error)
                await self._clock.sleep(self.timing.heartbeat)

    def _heartbeat(self) -> dict[str, object]:
        view = self.view
        return {"beat": self._next_beat(), "term": view.term, "epoch": view.epoch, "doing": self.activity}

    async def _handle_refusal(self, refused: Refused) -> None:
        if isinstance(refused, Busy):
            await self._handle_outage(refused)
            return
        self._outage.end()
        if refused.kind != "unregistered":
            self._fail(NodeGone(f"{self.name} is out of the job: {refused}"))
            return
        try:
            await self._register()
            log.warning("the scheduler at %s was restarted, and %s has registered again", self._scheduler, self.name)
        except (Refused, NodeGone) as error:
            self._fail(error if isinstance(error, NodeGone) else NodeGone(f"{self.name} is out of the job: {error}"))

    async def _handle_outage(self, error: Exception) -> None:
        if not self._outage:
            log.warning(
                "the scheduler at %s does not answer %s, which retries for %g s: %s",
                self._scheduler, self.name, self.timing.search_time(error), error,
            )  # fmt: skip
        if self._outage.record_failure(self._clock.now(), self.timing.timeout) > self.timing.search_time(error):
            self._fail(self._outage_error(error))
        await self._clock.sleep(self.timing.heartbeat / 4)

    def _outage_error(self, problem: Exception) -> Exception:
        if isinstance(problem, Refused):
            return problem
        seconds = self.timing.search_time(problem)
        return SchedulerGone(f"the scheduler at {self._scheduler} could not be reached for {seconds:g} s: {problem}")

    def _fail(self, error: BaseException) -> None:
        log.error("%s", error)
        self._error = error
        self._notifier.notify()

    def _adopt_view(self, response: Mapping[str, object]) -> None:
        """Adopt the view of a response if it is newer."""
        if response.get("view") is None:
            return
        view = View.from_wire(response["view"])
        if self._view is not None and view.order <= self._view.order:
            return
        self._view = view
        self._report_losses(view)
        if view.phase == "failed":
            self._error = self._error or NodeGone(f"the job has failed: {view.failure}", view.lost)
        self._notifier.notify()
        for callback in self._on_change:
            callback(view)

    def _report_losses(self, view: View) -> None:
        for member in view.lost:
            if (member.id, member.incarnation) not in self._logged_losses:
                self._logged_losses.add((member.id, member.incarnation))
                log.error("%s was notified: %s", self.name, member.loss_message)
                for callback in self._on_gone:
                    callback(member)

    async def _wait_until_running(self) -> None:
        """Wait until the job runs; log the missing nodes now and then."""
        while self.view.phase == "forming":
            self.check()
            here = len(self.view.workers), len(self.view.servers)
            if not await within(self._clock, 10.0, self._notifier.next):
                log.info("%s waits for the job to be complete: %d workers and %d servers have joined", self.name, *here)
        self.check()
