"""The scheduler node: :class:`~flowmx.comm.members.Members` behind a service.

Operations (header fields in ``docs/wire.md``): ``join``, ``heartbeat`` (answers when the view changes, or after an
interval), ``pulse``, ``leave``, ``fail``, ``barrier`` (answers when it opens, or after an interval: the worker asks
again), ``view`` (given an epoch, as ``heartbeat``). A refusal's kind is the code of
:class:`~flowmx.comm.members.Denied`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, cast

import msgpack

from flowmx.comm import fields
from flowmx.comm.clock import Clock, within
from flowmx.comm.errors import Refused
from flowmx.comm.frames import Message
from flowmx.comm.limits import Limits, in_force
from flowmx.comm.members import LAST, Denied, Hello, Job, Members, rounds_from_wire
from flowmx.comm.notifier import Notifier
from flowmx.comm.security import Security
from flowmx.comm.server import Caller, Service
from flowmx.comm.view import ROLES, Role, View

__all__ = ["LIMITS", "Scheduler"]

log = logging.getLogger("flowmx.comm")

# Small messages, many callers: all nodes of a machine may call from one address, each with calls that wait.
LIMITS = Limits(
    header=16 << 20, tensors=1, tensor=1, total=17 << 20, in_flight=1 << 30, requests=65536, requests_by_peer=65536,
    requests_per_second=65536.0,
)  # fmt: skip

Handler = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]


class Scheduler:
    """The scheduler of a job: its membership, the detection of lost nodes, and its barriers.

    Args:
        job: what the job consists of.
        snapshot: a file from which it resumes when it starts anew; it is written after every change.
        interval: most seconds that an answer is held back while nothing changes.
        security: who may take part.
        clock: the time.
        service: where the operations go; by default a service of its own.

    Attributes:
        members: the state.
        service: what answers.

    Raises:
        ValueError: the snapshot is none.
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
        self.service = service or Service("scheduler", security=security, limits=in_force("job", LIMITS))
        self.members = Members(job, self.clock.now(), term=time.time_ns(), name=secrets.token_hex(8))
        self._file = Path(snapshot) if snapshot else None
        self._changes = Notifier()
        self._logged: set[tuple[str, int]] = set()
        self._phase = ""
        self._seen = -1
        self._tasks: list[asyncio.Task[None]] = []
        self._restore()
        for name in ("join", "heartbeat", "pulse", "leave", "fail", "barrier", "view"):
            self.service.operation(name, self._operation(getattr(self, f"_{name}")))

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Serve; return the address.

        Raises:
            OSError: the address is taken.
        """
        address = await self.service.start(host, port)
        self.watch()
        return address

    def watch(self) -> None:
        """Start the tasks that watch the nodes: :meth:`start` calls it, and code that mounts the service must."""
        self._tasks = [asyncio.create_task(self._tick()), asyncio.create_task(self._write())]

    async def stop(self) -> None:
        """Stop serving; the job can go on with another scheduler."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self.service.stop()
        await asyncio.to_thread(self._finish_file)

    async def over(self) -> View:
        """Wait until the job has ended and all its nodes know (they have left, or fell silent); return the view."""
        while not (self.members.view.over and not self.members.view.workers and not self.members.view.servers):
            await self._changes.next()
        return self.members.view

    # Operations

    async def _join(self, header: Mapping[str, Any]) -> dict[str, Any]:
        known = View.from_wire(header["view"]) if header.get("view") is not None else None
        hello = Hello(
            id=_node(header),
            role=cast("Role", fields.choice(header, "role", ROLES)),
            incarnation=fields.whole(header, "incarnation"),
            address=fields.text(header, "address", 300),
            host=fields.text(header, "host", 300),
            rank=None if header.get("rank") is None else fields.whole(header, "rank"),
            beat=fields.whole(header, "beat"),
            known=known,
            rounds=rounds_from_wire(header),
        )
        member = self.members.join(self.clock.now(), hello)
        return {"rank": member.rank, "rounds": self.members.barriers.to_wire(), **self._state()}

    async def _heartbeat(self, header: Mapping[str, Any]) -> dict[str, Any]:
        self.members.heartbeat(
            self.clock.now(),
            _node(header),
            fields.whole(header, "incarnation"),
            fields.whole(header, "beat"),
            fields.whole(header, "term"),
            fields.text(header, "doing", 400),
        )
        epoch = fields.whole(header, "epoch")
        if self.members.epoch == epoch:
            await within(self.clock, self.interval, self._changed(lambda: self.members.epoch != epoch))
        return self._state() if self.members.epoch != epoch else {}

    async def _pulse(self, header: Mapping[str, Any]) -> dict[str, Any]:
        incarnation, count = fields.whole(header, "incarnation"), fields.whole(header, "count", most=LAST)
        self.members.pulse(self.clock.now(), _node(header), incarnation, count)
        return {}

    async def _leave(self, header: Mapping[str, Any]) -> dict[str, Any]:
        self.members.leave(self.clock.now(), *_subject(header))
        return self._state()

    async def _fail(self, header: Mapping[str, Any]) -> dict[str, Any]:
        why = fields.text(header, "why", 1000)
        self.members.fail(self.clock.now(), *_subject(header), why)
        return self._state()

    async def _barrier(self, header: Mapping[str, Any]) -> dict[str, Any]:
        node, incarnation = _node(header), fields.whole(header, "incarnation")
        name = fields.text(header, "name", 200, least=1)
        if fields.flag(header, "withdraw"):
            self.members.withdraw(node, incarnation, name)
            return {}
        after, term = fields.whole(header, "after", most=LAST), fields.whole(header, "term")
        if fields.flag(header, "attend"):
            return {"round": self.members.attend(self.clock.now(), node, incarnation, term, name)}
        first = fields.flag(header, "first")
        meet = fields.flag(header, "meet")

        def passed() -> int | None:
            return self.members.barrier(self.clock.now(), node, incarnation, term, name, after, first, meet)

        found = passed()
        if found is None:
            self._look()
            await within(self.clock, self.interval, self._changed(lambda: passed() is not None))
            found = passed()
        missing = [] if found is not None else [member.to_wire() for member in self.members.missing(name)[:8]]
        return {"round": found, "missing": missing}

    async def _view(self, header: Mapping[str, Any]) -> dict[str, Any]:
        epoch = fields.whole(header, "epoch")
        if "epoch" in header:
            await within(self.clock, self.interval, self._changed(lambda: self.members.epoch != epoch))
        return self._state()

    # How they are carried out

    def _operation(self, handler: Handler) -> Callable[[Caller, Message], Awaitable[Message]]:
        async def answer(caller: Caller, message: Message) -> Message:
            try:
                return Message(await handler(message.header), [])
            except Denied as denied:
                raise Refused(str(denied), denied.code) from None
            finally:
                self._look()

        return answer

    def _state(self) -> dict[str, Any]:
        return {"view": self.members.view.to_wire()}

    def _changed(self, holds: Callable[[], bool]) -> Callable[[], Awaitable[None]]:
        async def wait() -> None:
            while not holds():
                await self._changes.next()

        return wait

    def _look(self) -> None:
        """Wake the waiting requests, and log, where something has changed."""
        if self.members.version != self._seen:
            self._seen = self.members.version
            self._tell()
            self._changes.notify()

    def _tell(self) -> None:
        view = self.members.view
        for member in view.gone:
            if (member.id, member.incarnation) not in self._logged:
                self._logged.add((member.id, member.incarnation))
                log.error("%s", member.obituary)
        if view.phase != self._phase:
            self._phase = view.phase
            level = logging.ERROR if view.phase == "failed" else logging.INFO
            log.log(level, "the job is %s%s", view.phase, f": {view.failure}" if view.failure else "")

    async def _tick(self) -> None:
        while True:
            await self.clock.sleep(min(self.interval, self.members.job.timeout / 8))
            self.members.tick(self.clock.now())
            self._look()

    # The file

    def _restore(self) -> None:
        if self._file is None or not self._file.exists():
            return
        try:
            found = msgpack.unpackb(self._file.read_bytes())
            self.members.restore(self.clock.now(), found)
        except (ValueError, msgpack.UnpackException) as error:
            raise ValueError(f"{self._file} is no snapshot of a scheduler: {error}") from error

    def _finish_file(self) -> None:
        """Leave a file to go on from, unless there is nothing to go on with."""
        if self._file is None:
            return
        if self.members.view.over:
            self._file.unlink(missing_ok=True)
        else:
            _try_replace(self._file, msgpack.packb(self.members.snapshot()))

    async def _write(self) -> None:
        written = -1
        while self._file is not None:
            if self.members.version == written:
                await self._changes.next()
                continue
            written = self.members.version
            content = msgpack.packb(self.members.snapshot())
            writing = asyncio.ensure_future(asyncio.to_thread(_try_replace, self._file, content))
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                await writing  # two writes at once might end in the wrong order
                raise


def _node(header: Mapping[str, Any]) -> str:
    return fields.text(header, "node", 64, least=1)


def _subject(header: Mapping[str, Any]) -> tuple[str, int | None]:
    """The node that a request is about and its incarnation: another node (then None), or the caller itself."""
    if "who" in header:
        return fields.text(header, "who", 64, least=1), None
    return _node(header), fields.whole(header, "incarnation")


def _try_replace(path: Path, content: bytes) -> None:
    """Replace a file; a failure is logged and does not end the job, whose nodes know what the file would say."""
    try:
        _replace(path, content)
    except OSError as error:
        log.error("the scheduler's file %s can not be written, and the job goes on without: %s", path, error)


def _replace(path: Path, content: bytes) -> None:
    """Write a file so that it holds the old content or the new, never a part."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        scratch.write_bytes(content)
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
