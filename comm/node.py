"""A node of a job: it joins, sends heartbeats, follows the view of the job, and leaves."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import random
import signal
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from flowmx import settings
from flowmx.comm import fields
from flowmx.comm.client import Peer
from flowmx.comm.clock import Clock, within
from flowmx.comm.endings import NodeGone, SchedulerGone
from flowmx.comm.errors import Busy, PeerGone, Refused
from flowmx.comm.frames import Message
from flowmx.comm.limits import in_force
from flowmx.comm.members import LAST, rounds_from_wire
from flowmx.comm.notifier import Notifier
from flowmx.comm.outage import Outage
from flowmx.comm.pulse import AVAILABLE, Pulse
from flowmx.comm.scheduler import LIMITS
from flowmx.comm.security import Security
from flowmx.comm.verdict import TERMINATED, Evidence, judge
from flowmx.comm.view import Member, Role, View

__all__ = ["Node", "Timing"]

log = logging.getLogger("flowmx.comm")
T = TypeVar("T")

UNREACHED = (PeerGone, TimeoutError, Busy)  # what trying again may help against
REFUSED = 3.0
"""Seconds after which a scheduler that is not started again is known to have ended."""
LONGEST = 400  # characters of a node's description of its activity


@dataclass(frozen=True)
class Timing:
    """A node's intervals and timeouts, in seconds.

    Args:
        heartbeat: seconds between signs of life.
        timeout: seconds of silence after which a node is gone; the scheduler has the same.
        reconnect: seconds that the scheduler is looked for.
        refused: seconds of them in which its machine may say that nothing listens there.

    Raises:
        ValueError: the timeout is no longer than two heartbeats.
    """

    heartbeat: float = 1.0
    timeout: float = 10.0
    reconnect: float = 30.0
    refused: float = math.inf

    def __post_init__(self) -> None:
        if not self.timeout > 2 * self.heartbeat > 0:
            raise ValueError(
                f"a node that gives a sign of life every {self.heartbeat} s can not be gone after {self.timeout} s: "
                "FLOWMX_KVSTORE_TIMEOUT must be more than twice FLOWMX_KVSTORE_HEARTBEAT"
            )

    @classmethod
    def from_settings(cls) -> Timing:
        """The timing that the settings say."""
        config = settings.get()
        reconnect = config.kvstore_reconnect
        refused = math.inf if config.kvstore_scheduler_returns else REFUSED
        return cls(config.kvstore_heartbeat, config.kvstore_timeout, reconnect, refused)

    def patience(self, problem: BaseException) -> float:
        """Seconds that a scheduler is looked for that can not be reached for a reason."""
        return min(self.refused, self.reconnect) if _is_refused(problem) else self.reconnect


def _is_refused(problem: BaseException | None) -> bool:
    """Tell whether the machine of a peer has said that nothing listens there."""
    while problem is not None:
        if getattr(problem, "errno", None) == errno.ECONNREFUSED:
            return True
        problem = problem.__cause__ or problem.__context__
    return False


class Connection(Protocol):
    """The interface of a connection to the scheduler, the part of :class:`Peer` that a node needs."""

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
    """This process in its job. Belongs to one event loop; ``async with`` joins the job and leaves it.

    Args:
        role: ``"worker"`` or ``"server"``.
        scheduler: the scheduler's address.
        address: where this node answers, for the others.
        rank: the rank to ask for.
        id: its name for itself, by default a new one.
        host: its machine's name.
        security: as the scheduler's.
        timing: how long it waits for what.
        drain: whether SIGTERM makes it go: the task that joined is cancelled, and ``async with`` ends as if its
            body had. The others hear of a failure: a job that still runs needs it.
        pulse: whether a process of its own says that this one runs while it is too busy to say so.
        clock: the time.
        connect: makes the connection to the scheduler.

    Attributes:
        rank: its number among those of its role.
        incarnation: which start of the node this is.
        draining: whether SIGTERM came.
        awaited: the barriers at which this node waits, and the workers missing there by the scheduler's last answer.

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
        id: str = "",
        host: str = "",
        security: Security | None = None,
        timing: Timing | None = None,
        drain: bool = False,
        pulse: bool = False,
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
            lambda: Peer(scheduler, security=security, limits=in_force("job", LIMITS), node=self.id)
        )
        self._wanted = rank
        self._drain = drain
        every, timeout = self.timing.heartbeat, self.timing.timeout / 2
        self._pulse = Pulse(scheduler, self.id, self.incarnation, every, timeout, security) if pulse else None
        self._clock = clock or Clock()
        self._line: Connection | None = None
        self._outage = Outage()
        self._closing: set[asyncio.Task[None]] = set()
        self._view: View | None = None
        self._error: BaseException | None = None
        self._notifier = Notifier()
        self._beats = 0
        self._rounds: dict[str, int] = {}
        self._passed: set[str] = set()
        self._locks: dict[str, asyncio.Lock] = {}
        self._doing: Callable[[], str] = str
        self._during: dict[object, str] = {}
        self._reported: set[tuple[str, int]] = set()
        self._on_gone: list[Callable[[Member], object]] = []
        self._on_change: list[Callable[[View], object]] = []
        self._beating: asyncio.Task[None] | None = None
        self._owner: asyncio.Task[Any] | None = None

    @classmethod
    def from_settings(cls, role: Role | None = None, **options: Any) -> Node:
        """The node that the environment describes.

        Raises:
            SettingError: no scheduler is named, or this process is to be one.
        """
        config = settings.get()
        if not config.scheduler:
            raise settings.SettingError(
                "this process belongs to no job: FLOWMX_SCHEDULER (or DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT) names "
                "the scheduler's address; `python -m flowmx launch` sets it"
            )
        found = role or config.role
        if found == "scheduler":
            raise settings.SettingError("FLOWMX_ROLE is scheduler: `python -m flowmx scheduler` is one")
        named: dict[str, Any] = {
            "rank": config.rank,
            "id": config.node_id,
            "security": Security.from_settings(),
            "timing": Timing.from_settings(),
            "pulse": AVAILABLE,
        }
        return cls(found, config.scheduler, **(named | options))

    # Joining and leaving

    async def __aenter__(self) -> Self:
        """Join, and wait until the job runs.

        Raises:
            NodeGone: the scheduler is not there, or the job has failed.
            Refused: there is no place in the job for this node.
        """
        self._line = self._connect()
        try:
            await self._register()
            self._beating = asyncio.create_task(self._beat())
            if self._pulse is not None:
                self._pulse.start()
            await self._formed()
        except BaseException as error:
            await self._end(error)
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
        drained = self.draining and isinstance(error, asyncio.CancelledError)
        if drained and self._owner is not None:
            drained = self._owner.uncancel() == 0
        await self._end(SystemExit(TERMINATED) if drained else error)
        return drained

    async def _end(self, error: BaseException | None) -> None:
        """Leave the job, or report the failure, and close the connection."""
        assert self._line is not None
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        try:
            if self.rank >= 0 and self._error is None:
                if not await within(self._clock, self.timing.timeout, lambda: self._goodbye(error)):
                    self._error = SchedulerGone(f"the scheduler at {self._scheduler} did not answer a goodbye")
            elif self._view is not None and self._view.over:  # the scheduler waits until all know
                await within(self._clock, self.timing.heartbeat, lambda: self._goodbye(None))
        finally:
            if self._pulse is not None:
                self._pulse.stop()  # threads can not be had at the exit of the interpreter
            await self._line.close()
            await asyncio.gather(*self._closing, return_exceptions=True)

    async def _goodbye(self, error: BaseException | None) -> None:
        verdict = judge(Evidence(error=error))
        operation = "fail" if verdict.failed else "leave"
        header: dict[str, Any] = {"why": verdict.why} if verdict.failed else {}
        while True:
            try:
                await self._call(operation, header)
                return
            except Refused as refused:
                if refused.kind != "unregistered":
                    return
                await self._register()
            except UNREACHED:
                await self._clock.sleep(self.timing.heartbeat / 4)

    def _drain_now(self) -> None:
        if not self.draining and self._owner is not None:
            log.info("%s was asked to end, and leaves the job", self.name)
            self.draining = True
            self._notifier.notify()
            self._owner.cancel()

    # What there is to see

    @property
    def name(self) -> str:
        """The node's display name: ``"worker 1"``."""
        return f"{self.role} {self.rank}" if self.rank >= 0 else self.role

    @property
    def view(self) -> View:
        """The job, as far as this node knows.

        Raises:
            RuntimeError: it has not joined yet.
        """
        if self._view is None:
            raise RuntimeError("the node has not joined its job yet: use it with `async with Node(...) as node`")
        return self._view

    def check(self) -> None:
        """Raise the error that ended this node's part in the job, if there is one.

        Raises:
            NodeGone: the job has failed, or this node is out of it.
        """
        if self._error is not None:
            raise self._error

    async def changed(self, epoch: int | None = None) -> View:
        """Wait until the view is of another epoch than `epoch` (by default, than it is now); return it.

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
        """Have a function called with each node that is lost from now on."""
        self._on_gone.append(callback)

    def on_change(self, callback: Callable[[View], object]) -> None:
        """Have a function called with each new view."""
        self._on_change.append(callback)

    async def unless_gone(self, awaitable: Awaitable[T], *peers: Member) -> T:
        """Await something that needs the job and these members of it; return its result.

        Raises:
            NodeGone: the job failed, or one of `peers` is gone (or was started anew); what was awaited is cancelled.
        """
        work = asyncio.ensure_future(awaitable)
        watch = asyncio.create_task(self._doom(peers))
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                watch.result()
            return await work
        finally:
            work.cancel()
            watch.cancel()
            await asyncio.gather(work, watch, return_exceptions=True)

    async def _doom(self, peers: tuple[Member, ...]) -> None:
        """Wait until the job has failed or a peer is lost, and raise."""
        while True:
            self.check()
            for peer in peers:
                held = self.view.at(peer.role, peer.rank)
                if held is None or (held.id, held.incarnation, held.state) != (peer.id, peer.incarnation, "alive"):
                    lost = next(
                        (m for m in self.view.gone if (m.id, m.incarnation) == (peer.id, peer.incarnation)), peer
                    )
                    text = lost.obituary if lost.state == "gone" else f"{peer.name} has left, or was started anew"
                    raise NodeGone(text, [lost])
            await self._notifier.next()

    async def accuse(self, member: Member, why: str) -> None:
        """Report a node as lost to the scheduler, which then drops it for all nodes."""
        try:
            await self._call("fail", {"who": member.id, "why": why[:1000]})
        except (Refused, *UNREACHED) as error:
            log.info("%s could not say that %s is gone: %s", self.name, member.name, error)

    # What this node is doing

    def doing(self, text: str | Callable[[], str]) -> None:
        """Set the description of this node's activity, or a function that returns it; others show it in errors."""
        self._doing = (lambda: text) if isinstance(text, str) else text

    @contextmanager
    def during(self, text: str) -> Iterator[None]:
        """Describe this node's activity while the context lasts; of several at once the newest is shown."""
        token = object()
        self._during[token] = text
        try:
            yield
        finally:
            del self._during[token]

    @property
    def activity(self) -> str:
        """The description of what this node is doing, for others to display."""
        text = next(reversed(self._during.values()), None) or self._doing()
        more = f" (and {len(self._during) - 1} more)" if len(self._during) > 1 else ""
        return text[: LONGEST - len(more)] + more

    # Barriers

    async def barrier(
        self,
        name: str,
        timeout: float | None = None,  # noqa: ASYNC109 (the message says who)
        meet: bool = False,
    ) -> int:
        """Wait until every worker of the job has come to this barrier as often as this one.

        Args:
            name: the barrier's.
            timeout: seconds after which to give up.
            meet: whether this is a meeting, such as the end of an epoch: a worker that joined late is not waited for
                until it comes by itself, and meets the others then. (At other barriers it passes at once where they
                have been before.)

        Returns:
            How many rounds of it have ended.

        Raises:
            NodeGone: the job failed meanwhile.
            TimeoutError: not all came; the message names those that did not, and what they do.
            Refused: this node is no worker.
        """
        missing: list[Member] = []
        async with self._locks.setdefault(name, asyncio.Lock()):
            try:
                with self.during(f"barrier {name!r}"), self._awaiting(name, missing):
                    came = await self._within(timeout, lambda: self.unless_gone(self._pass(name, missing, meet)))
            except asyncio.CancelledError:
                asyncio.get_running_loop().create_task(self._withdraw(name))
                raise
            if not came:
                await self._withdraw(name)
                who = "; ".join(f"{member.name} ({member.doing or 'no word of what it does'})" for member in missing)
                raise TimeoutError(f"after {timeout:g} s the barrier {name!r} still waits for {who or 'the scheduler'}")
            return self._rounds[name]

    async def attend(self, name: str) -> int:
        """Be waited for at a meeting from now on, though this node joined late and has not come to it.

        Args:
            name: the meeting's.

        Returns:
            The last round that it is no part of, since it joined late; otherwise 0.

        Raises:
            NodeGone: the job failed meanwhile.
            Refused: this node is no worker.
        """
        answer = await self.unless_gone(self._ask_barrier({"name": name, "attend": True}))
        return fields.whole(answer, "round", most=LAST)

    @contextmanager
    def _awaiting(self, name: str, missing: list[Member]) -> Iterator[None]:
        self.awaited[name] = missing
        try:
            yield
        finally:
            del self.awaited[name]

    def is_past(self, name: str) -> bool:
        """True where the other nodes passed a barrier before this one joined, and it has not reached it itself yet."""
        return name in self._rounds and name not in self._passed

    def has_ended(self, name: str) -> bool:
        """True where a round of a barrier has ended, as this node knows: by itself, or since it joined later."""
        return name in self._rounds

    async def _within(self, seconds: float | None, wait: Callable[[], Awaitable[object]]) -> bool:
        if seconds is not None:
            return await within(self._clock, seconds, wait)
        await wait()
        return True

    async def _pass(self, name: str, missing: list[Member], meet: bool) -> None:
        first = name not in self._passed
        while True:
            asked = {"name": name, "after": self._rounds.get(name, 0), "first": first, "meet": meet}
            answer = await self._ask_barrier(asked)
            missing[:] = [Member.from_wire(found) for found in answer.get("missing", [])]
            if isinstance(answer.get("round"), int):
                self._rounds[name] = answer["round"]
                self._passed.add(name)
                return

    async def _ask_barrier(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask the scheduler about a barrier until it answers."""
        while True:
            try:
                return (await self._call("barrier", {**asked, "term": self.view.term})).header
            except Refused as refused:
                if refused.kind != "unregistered" and not isinstance(refused, Busy):
                    failed = refused.kind == "over"  # refused before the new view has come
                    found = NodeGone(f"the job has failed: {refused}", self.view.gone) if failed else refused
                    raise self._error or found from None
                await self._clock.sleep(self.timing.heartbeat / 4)  # the heartbeat registers again
            except UNREACHED:
                await self._clock.sleep(self.timing.heartbeat / 4)

    async def _withdraw(self, name: str) -> None:
        try:
            await self._call("barrier", {"name": name, "withdraw": True})
        except (Refused, *UNREACHED) as error:
            log.debug("%s could not withdraw from barrier %r: %s", self.name, name, error)

    # The scheduler

    async def _call(self, operation: str, header: Mapping[str, Any]) -> Message:
        assert self._line is not None
        common = {"node": self.id, "incarnation": self.incarnation}
        line = self._line
        try:
            # Shorter than the time after which this node would be gone: a connection that is stuck is given up before.
            return await line.call(operation, {**common, **header}, timeout=self.timing.timeout / 2)
        except TimeoutError:
            if self._line is line:  # its other connections may be as dead as this one
                self._line = self._connect()
                closing = asyncio.create_task(line.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
            raise

    async def _register(self) -> None:
        """Join, or join again a scheduler that has started anew; retry until the reconnect time is over.

        Raises:
            SchedulerGone: it was not there for as long as nodes wait.
            Refused: it does not take this node.
        """
        start, pause = self._clock.now(), min(0.05, self.timing.heartbeat / 4)
        while True:
            try:
                self._joined((await self._call("join", self._hello())).header)
                return
            except Refused as refused:
                if refused.kind != "full" and not isinstance(refused, Busy):
                    raise
                problem: Exception = refused
            except UNREACHED as error:
                problem = error
            if self._clock.now() - start > self.timing.reconnect:
                raise self._hopeless(problem) from problem
            await self._clock.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, self.timing.heartbeat)

    def _hello(self) -> dict[str, Any]:
        hello: dict[str, Any] = {
            "role": self.role,
            "address": self.address,
            "host": self.host,
            "beat": self._next_beat(),
            "view": None,
            "rounds": dict(self._rounds),
        }
        if self._view is not None:
            hello["view"] = self._view.to_wire()
        wanted = self.rank if self.rank >= 0 else self._wanted
        return hello if wanted is None else {**hello, "rank": wanted}

    def _hopeless(self, problem: Exception) -> Exception:
        if isinstance(problem, Refused):
            return problem
        seconds = self.timing.patience(problem)
        return SchedulerGone(f"the scheduler at {self._scheduler} could not be reached for {seconds:g} s: {problem}")

    def _joined(self, answer: Mapping[str, Any]) -> None:
        if self.rank < 0:
            self._rounds = rounds_from_wire(answer)
        self.rank = int(answer["rank"])
        self._take(answer)

    def _next_beat(self) -> int:
        self._beats += 1
        return self._beats

    async def _beat(self) -> None:
        """Send heartbeats, and receive changes of the view, until this node is out of the job."""
        while self._error is None:
            try:
                self._take((await self._call("heartbeat", self._sign())).header)
                self._outage.over()
            except Refused as refused:
                await self._refused(refused)
            except UNREACHED as error:
                await self._unreached(error)
            except (
                Exception
            ) as error:  # an answer that is none, or a callback of the user's: the node must not die of it
                log.exception("%s: a heartbeat failed: %s", self.name, error)
                await self._clock.sleep(self.timing.heartbeat)

    def _sign(self) -> dict[str, Any]:
        view = self.view
        return {"beat": self._next_beat(), "term": view.term, "epoch": view.epoch, "doing": self.activity}

    async def _refused(self, refused: Refused) -> None:
        if isinstance(refused, Busy):
            await self._unreached(refused)
            return
        self._outage.over()
        if refused.kind != "unregistered":
            self._out(NodeGone(f"{self.name} is out of the job: {refused}"))
            return
        try:
            await self._register()
            log.warning("the scheduler at %s started anew, and %s has registered again", self._scheduler, self.name)
        except (Refused, NodeGone) as error:
            self._out(error if isinstance(error, NodeGone) else NodeGone(f"{self.name} is out of the job: {error}"))

    async def _unreached(self, error: Exception) -> None:
        if not self._outage:
            log.warning(
                "the scheduler at %s does not answer %s, which looks for it for %g s: %s",
                self._scheduler, self.name, self.timing.patience(error), error,
            )  # fmt: skip
        if self._outage.failed(self._clock.now(), self.timing.timeout) > self.timing.patience(error):
            self._out(self._hopeless(error))
        await self._clock.sleep(self.timing.heartbeat / 4)

    def _out(self, error: BaseException) -> None:
        log.error("%s", error)
        self._error = error
        self._notifier.notify()

    def _take(self, answer: Mapping[str, Any]) -> None:
        """Take over the view of an answer, if it has a newer one."""
        if answer.get("view") is None:
            return
        view = View.from_wire(answer["view"])
        if self._view is not None and view.order <= self._view.order:
            return
        self._view = view
        self._mourn(view)
        if view.phase == "failed":
            self._error = self._error or NodeGone(f"the job has failed: {view.failure}", view.gone)
        self._notifier.notify()
        for callback in self._on_change:
            callback(view)

    def _mourn(self, view: View) -> None:
        for member in view.gone:
            if (member.id, member.incarnation) not in self._reported:
                self._reported.add((member.id, member.incarnation))
                log.error("%s hears that %s", self.name, member.obituary)
                for callback in self._on_gone:
                    callback(member)

    async def _formed(self) -> None:
        """Wait until the job runs, and tell the log now and then for whom."""
        while self.view.phase == "forming":
            self.check()
            here = len(self.view.workers), len(self.view.servers)
            if not await within(self._clock, 10.0, self._notifier.next):
                log.info("%s waits for the job to be complete: %d workers and %d servers are here", self.name, *here)
        self.check()
