"""The scheduler node: :class:`~flowmx.comm.members.Members` behind a service.

Operations (header fields in ``docs/wire.md``): ``join``, ``heartbeat`` (answers when the view changes, or after an
interval), ``pulse``, ``leave``, ``fail``, ``barrier`` (answers when it opens, or after an interval: the worker asks
again), ``view`` (with an epoch it answers like ``heartbeat``). A refusal's kind is the code of
:class:`~flowmx.comm.members.Denied`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgpack

from flowmx.comm import fields
from flowmx.comm.clock import Clock, within
from flowmx.comm.errors import Refused
from flowmx.comm.frames import Message
from flowmx.comm.limits import Limits, limits_for
from flowmx.comm.members import MAX_NAME, MAX_NUMBER, Denied, Job, JoinRequest, Members, rounds_from_wire
from flowmx.comm.notifier import Notifier
from flowmx.comm.security import Security
from flowmx.comm.server import Caller, Service
from flowmx.comm.view import ROLES, Role, View

__all__ = ["LIMITS", "Scheduler"]

log = logging.getLogger("flowmx.comm")

# Small messages and many callers: all nodes of a machine may call from one address, with calls that wait.
LIMITS = Limits(
    header=16 << 20, tensors=1, tensor=1, total=17 << 20, in_flight=1 << 30, requests=65536, requests_by_peer=65536,
    requests_per_second=65536.0,
)  # fmt: skip

Handler = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]


class Scheduler:
    """The scheduler of a job: its membership, the detection of lost nodes, and its barriers.

    Args:
        job: the job's size and policy.
        snapshot: a file from which a restarted scheduler resumes; it is written after every change.
        interval: maximum seconds for which a response is delayed while nothing changes.
        security: authenticates nodes.
        clock: the clock for timeouts.
        service: the service for the operations; by default a new one.

    Attributes:
        members: the state.
        service: the service.

    Raises:
        ValueError: the snapshot file is invalid.
    """

    def __init__(
        self,
        job: Job,
        *,
        snapshot: str | Path | None = None,
        interval: float = 1.0,
        security: Security | None = None,
        clock: Clock | None = None,
        service: Service | None = None,
    ) -> None:
        self.clock = clock or Clock()
        self.interval = min(interval, job.timeout / 3)
        self.service = service or Service("scheduler", security=security, limits=limits_for("job", LIMITS))
        self.members = Members(job, self.clock.now(), term=time.time_ns(), name=secrets.token_hex(8))
        self._file = Path(snapshot) if snapshot else None
        self._changes = Notifier()
        self._logged: set[tuple[str, int]] = set()
        self._phase = ""
        self._notified_version = -1
        self._tasks: list[asyncio.Task[None]] = []
        self._restore()
        for name in ("join", "heartbeat", "pulse", "leave", "fail", "barrier", "view"):
            self.service.operation(name, self._operation(getattr(self, f"_{name}")))

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Serve; return the address.

        Raises:
            OSError: the address is in use.
        """
        address = await self.service.start(host, port)
        self.watch()
        return address

    def watch(self) -> None:
        """Start the tasks that watch the nodes: called by :meth:`start`, or by code that mounts the service."""
        self._tasks = [asyncio.create_task(self._tick()), asyncio.create_task(self._write_snapshots())]

    async def stop(self) -> None:
        """Stop serving; the job can continue with another scheduler."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self.service.stop()
        await asyncio.to_thread(self._write_final_snapshot)

    async def wait_until_over(self) -> View:
        """Wait until the job has ended and all its nodes have left or fallen silent; return the view."""
        while not (self.members.view.over and not self.members.view.workers and not self.members.view.servers):
            await self._changes.next()
        return self.members.view

    # Operations

    async def _join(self, header: Mapping[str, object]) -> dict[str, object]:
        view = View.from_wire(header["view"]) if header.get("view") is not None else None
        request = JoinRequest(
            id=_node(header),
            role=cast("Role", fields.choice(header, "role", ROLES)),
            incarnation=fields.integer(header, "incarnation"),
            address=fields.text(header, "address", 300),
            host=fields.text(header, "host", 300),
            rank=None if header.get("rank") is None else fields.integer(header, "rank"),
            beat=fields.integer(header, "beat"),
            view=view,
            rounds=rounds_from_wire(header),
            job=fields.text(header, "job", MAX_NAME),
            size=None if header.get("size") is None else _size(fields.sequence(header, "size", 2)),
        )
        member = self.members.join(self.clock.now(), request)
        return {"rank": member.rank, "rounds": self.members.barriers.to_wire(), **self._state()}

    async def _heartbeat(self, header: Mapping[str, object]) -> dict[str, object]:
        self.members.heartbeat(
            self.clock.now(),
            _node(header),
            fields.integer(header, "incarnation"),
            fields.integer(header, "beat"),
            fields.integer(header, "term"),
            fields.text(header, "doing", 400),
        )
        epoch = fields.integer(header, "epoch")
        if self.members.epoch == epoch:
            await within(self.clock, self.interval, self._wait_until(lambda: self.members.epoch != epoch))
        return self._state() if self.members.epoch != epoch else {}

    async def _pulse(self, header: Mapping[str, object]) -> dict[str, object]:
        incarnation, count = fields.integer(header, "incarnation"), fields.integer(header, "count", maximum=MAX_NUMBER)
        self.members.pulse(self.clock.now(), _node(header), incarnation, count)
        return {}

    async def _leave(self, header: Mapping[str, object]) -> dict[str, object]:
        self.members.leave(self.clock.now(), *_subject(header))
        return self._state()

    async def _fail(self, header: Mapping[str, object]) -> dict[str, Any]:
        why = fields.text(header, "why", 1000)
        self.members.fail(self.clock.now(), *_subject(header), why)
        return self._state()

    async def _barrier(self, header: Mapping[str, object]) -> dict[str, object]:
        node, incarnation = _node(header), fields.integer(header, "incarnation")
        name = fields.text(header, "name", 200, min_length=1)
        if fields.flag(header, "withdraw"):
            self.members.withdraw(node, incarnation, name)
            return {}
        after, term = fields.integer(header, "after", maximum=MAX_NUMBER), fields.integer(header, "term")
        if fields.flag(header, "attend"):
            return {"round": self.members.attend(self.clock.now(), node, incarnation, term, name)}
        first = fields.flag(header, "first")
        is_meeting = fields.flag(header, "meet")

        def enter() -> int | None:
            return self.members.barrier(self.clock.now(), node, incarnation, term, name, after, first, is_meeting)

        passed_round = enter()
        if passed_round is None:
            self._notify_changes()
            await within(self.clock, self.interval, self._wait_until(lambda: enter() is not None))
            passed_round = enter()
        missing = [] if passed_round is not None else [member.to_wire() for member in self.members.missing(name)[:8]]
        return {"round": passed_round, "missing": missing}

    async def _view(self, header: Mapping[str, object]) -> dict[str, object]:
        epoch = fields.integer(header, "epoch")
        if "epoch" in header:
            await within(self.clock, self.interval, self._wait_until(lambda: self.members.epoch != epoch))
        return self._state()

    # Implementation of operations

    def _operation(self, handler: Handler) -> Callable[[Caller, Message], Awaitable[Message]]:
        async def response(caller: Caller, message: Message) -> Message:
            try:
                return Message(await handler(message.header), [])
            except Denied as denied:
                raise Refused(str(denied), denied.code) from None
            finally:
                self._notify_changes()

        return response

    def _state(self) -> dict[str, object]:
        return {"view": self.members.view.to_wire()}

    def _wait_until(self, condition: Callable[[], bool]) -> Callable[[], Awaitable[None]]:
        async def wait() -> None:
            while not condition():
                await self._changes.next()

        return wait

    def _notify_changes(self) -> None:
        """Wake waiting requests and log events if the state has changed."""
        if self.members.version != self._notified_version:
            self._notified_version = self.members.version
            self._log_changes()
            self._changes.notify()

    def _log_changes(self) -> None:
        view = self.members.view
        for member in view.lost:
            if (member.id, member.incarnation) not in self._logged:
                self._logged.add((member.id, member.incarnation))
                log.error("%s", member.loss_message)
        if view.phase != self._phase:
            self._phase = view.phase
            level = logging.ERROR if view.phase == "failed" else logging.INFO
            log.log(level, "the job is %s%s", view.phase, f": {view.failure}" if view.failure else "")

    async def _tick(self) -> None:
        while True:
            await self.clock.sleep(min(self.interval, self.members.job.timeout / 8))
            self.members.tick(self.clock.now())
            self._notify_changes()

    # The snapshot file

    def _restore(self) -> None:
        if self._file is None or not self._file.exists():
            return
        try:
            self.members.restore(self.clock.now(), msgpack.unpackb(self._file.read_bytes()))
        except Denied as denied:
            raise ValueError(f"{self._file}: {denied}: use another file, or remove this one") from denied
        except (ValueError, msgpack.UnpackException) as error:
            raise ValueError(f"{self._file} is not a snapshot of a scheduler: {error}") from error

    def _write_final_snapshot(self) -> None:
        """Write the last snapshot, or remove the file if the job has ended."""
        if self._file is None:
            return
        if self.members.view.over:
            self._file.unlink(missing_ok=True)
        else:
            _try_replace(self._file, msgpack.packb(self.members.snapshot()))

    async def _write_snapshots(self) -> None:
        written_version = -1
        while self._file is not None:
            if self.members.version == written_version:
                await self._changes.next()
                continue
            written_version = self.members.version
            content = msgpack.packb(self.members.snapshot())
            writing = asyncio.ensure_future(asyncio.to_thread(_try_replace, self._file, content))
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                await writing  # two concurrent writes might finish in the wrong order
                raise


def _node(header: Mapping[str, object]) -> str:
    return fields.text(header, "node", 64, min_length=1)


def _size(counts: Sequence[Any]) -> tuple[int, int]:
    """Return the numbers of workers and servers that a node expects."""
    if [type(count) for count in counts] != [int, int]:
        raise ValueError(f"size is {str(counts)[:80]}, expected the numbers of workers and servers")
    return counts[0], counts[1]


def _subject(header: Mapping[str, object]) -> tuple[str, int | None]:
    """Return the node of a request: another node, with None, or the caller with its incarnation."""
    if "who" in header:
        return fields.text(header, "who", 64, min_length=1), None
    return _node(header), fields.integer(header, "incarnation")


def _try_replace(path: Path, content: bytes) -> None:
    """Replace a file; a failure is only logged, since the nodes of the job have the same information."""
    try:
        _replace(path, content)
    except OSError as error:
        log.error("the scheduler's file %s cannot be written; the job continues without it: %s", path, error)


def _replace(path: Path, content: bytes) -> None:
    """Replace a file atomically."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        scratch.write_bytes(content)
        scratch.replace(path)
    except BaseException:  # cleanup, also when interrupted
        scratch.unlink(missing_ok=True)
        raise
