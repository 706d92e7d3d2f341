"""The servers of a job as a worker sees them: who answers for which home, and calls that outlive their peers."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from flowmx.comm.bell import Bell
from flowmx.comm.errors import Busy, PeerGone, Refused
from flowmx.comm.frames import Message, Tensor
from flowmx.comm.outage import Outage
from flowmx.comm.view import Member, View
from flowmx.errors import KVStoreError

__all__ = ["Connect", "Line", "Servers", "primary"]

log = logging.getLogger("flowmx.kvstore")

_FIRST_DELAY, _LAST_DELAY = 0.01, 0.5
"""Seconds before a call is made again: twice as long each time, or until the view changes."""

_RATE = 1 << 20
"""Bytes a second that sending is expected to reach at first."""


class Line(Protocol):
    """The methods of :class:`flowmx.comm.client.Peer` that are used here."""

    async def call(
        self,
        operation: str,
        header: dict[str, Any],
        tensors: Sequence[Tensor] = (),
        into: Sequence[np.ndarray[Any, Any]] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
        sent: Callable[[], object] = ...,
    ) -> Message:
        """Call an operation."""

    async def close(self) -> None:
        """Close the connections."""

    @property
    def is_local(self) -> bool:
        """True if memory is shared with the server."""


Connect = Callable[[str], Line]
"""From an address to its line."""


def primary(view: View, home: int, servers: int) -> Member | None:
    """The server that answers for a home: the first that is alive from there on, around the ring."""
    alive = {member.rank: member for member in view.servers}
    return next((alive[rank % servers] for rank in range(home, home + servers) if rank % servers in alive), None)


class Servers:
    """Calls the server that answers for a home, again and again, until there is an answer. Belongs to one loop.

    Args:
        count: how many servers the job has.
        connect: makes lines to them.
        sender: what headers say of this worker: "node" and "incarnation".
        patience: seconds that a home may be without any server, or with one that can not be reached from here.
        timeout: seconds after which a call is made again whose answer has not come: what was sent, or the answer, may
            have got lost with its connection. Servers recognise what they have. Each time it is twice as long, since a
            synchronous round may take for ever; who is gone is for the scheduler to find out.
    """

    def __init__(self, count: int, connect: Connect, sender: dict[str, Any], patience: float, timeout: float) -> None:
        self.count = count
        self._connect = connect
        self._sender = sender
        self._patience = patience
        self._timeout = timeout
        self._view: View | None = None
        self._lines: dict[tuple[str, int], Line] = {}
        self._calls: dict[asyncio.Task[Message], tuple[int, Member, Line]] = {}
        self._retired: set[Line] = set()
        self._bell = Bell()
        self._error: BaseException | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def know(self, view: View) -> None:
        """Take a view of the job: calls of servers that answer for their home no more are given up, and made anew."""
        self._view = view
        alive = {(member.id, member.incarnation) for member in view.servers}
        for identity in self._lines.keys() - alive:
            self._close_soon(self._lines.pop(identity))
        for call, (home, member, _) in self._calls.items():
            now = primary(view, home, self.count)
            if now is None or (now.id, now.incarnation) != (member.id, member.incarnation):
                call.cancel()
        self._bell.ring()

    def is_local(self, home: int) -> bool:
        """Tell whether memory is shared with the server of a home; False while that is not known."""
        member = None if self._view is None else primary(self._view, home, self.count)
        line = None if member is None else self._lines.get((member.id, member.incarnation))
        return line is not None and line.is_local

    def fail(self, error: BaseException) -> None:
        """Nothing can be called any more: every call, now and later, raises this."""
        self._error = error
        for call in self._calls:
            call.cancel()
        self._bell.ring()

    async def close(self) -> None:
        """Close all lines."""
        lines, self._lines = [*self._lines.values(), *self._retired], {}
        await asyncio.gather(*(line.close() for line in lines), *self._closing, return_exceptions=True)

    async def call(
        self,
        home: int,
        operation: str,
        header: dict[str, Any],
        tensors: Sequence[Tensor] = (),
        into: Sequence[np.ndarray[Any, Any]] | None = None,
        sent: Callable[[], object] = lambda: None,
    ) -> Message:
        """Call an operation of whoever answers for a home, until it does; it may be done more than once.

        Raises:
            NodeGone: the job has failed.
            Refused: the server says no.
            KVStoreError: there has been no server for too long.
        """
        header = {**self._sender, **header}
        delay, seconds = _FIRST_DELAY, self._timeout
        sending = sum(tensor.data.nbytes for tensor in tensors) / _RATE
        outages: defaultdict[tuple[str, int], Outage] = defaultdict(Outage)
        while True:
            member = await self._serving(home)
            try:
                return await self._once(home, member, operation, header, tensors, into, seconds + sending, sent)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
            except Refused as refused:
                if refused.kind != "moved" and not isinstance(refused, Busy):
                    raise
                log.debug("%s refused %s: %s", member.name, operation, refused)
            except PeerGone as error:
                log.info("%s did not answer %s (%s): again", member.name, operation, error)
                await self._probe(
                    outages[member.id, member.incarnation], member, operation, 2 * (seconds + sending), error
                )
            except TimeoutError as error:
                log.info("%s has not answered %s (%s): again", member.name, operation, error)
                seconds, sending = 2 * seconds, 2 * sending
                await self._probe(
                    outages[member.id, member.incarnation], member, operation, 2 * (seconds + sending), error
                )
            await self._heard(delay)
            delay = min(2 * delay, _LAST_DELAY)

    async def _once(
        self, home: int, member: Member, operation: str, header: dict[str, Any], tensors: Sequence[Tensor],
        into: Sequence[np.ndarray[Any, Any]] | None, seconds: float, sent: Callable[[], object],
    ) -> Message:  # fmt: skip
        line = self._line(member)
        call = asyncio.ensure_future(line.call(operation, header, tensors, into, seconds, sent))
        self._calls[call] = (home, member, line)
        try:
            return await call
        except BaseException as error:
            call.cancel()
            if isinstance(error, TimeoutError):
                self._retire(member, line)
            raise
        finally:
            del self._calls[call]
            self._close_retired()

    async def _probe(self, outage: Outage, member: Member, operation: str, most: float, error: Exception) -> None:
        """See whether a server that has not answered can be reached at all, as it is alive for the scheduler.

        Raises:
            KVStoreError: it could not for too long.
        """
        if await self._answers(member):
            outage.over()
            return
        lasted = outage.failed(asyncio.get_running_loop().time(), most + self._timeout)
        if lasted > self._patience:
            raise KVStoreError(
                f"{operation}: {member.name} at {member.address} has not been reached for {lasted:.1f} s "
                f"(FLOWMX_KVSTORE_RECONNECT), although the scheduler hears of it: {error}"
            ) from error

    async def _answers(self, member: Member) -> bool:
        try:
            with suppress(Refused):  # whatever it says
                await self._line(member).call("local", {}, timeout=self._timeout)
        except (PeerGone, TimeoutError):
            return False
        return True

    async def _serving(self, home: int) -> Member:
        """Wait for a server that answers for a home."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        while True:
            if self._error is not None:
                raise self._error
            found = None if self._view is None else primary(self._view, home, self.count)
            if found is not None:
                return found
            left = since + self._patience - loop.time()
            if left <= 0:
                raise KVStoreError(self._nobody(home))
            await self._heard(left)

    def _nobody(self, home: int) -> str:
        lost = [] if self._view is None else [each.obituary for each in self._view.gone if each.role == "server"]
        return f"no server has been there for home {home} for {self._patience:g} s (FLOWMX_KVSTORE_RECONNECT): " + (
            "; ".join(lost) or "all have left"
        )

    def _line(self, member: Member) -> Line:
        identity = (member.id, member.incarnation)
        if identity not in self._lines:
            self._lines[identity] = self._connect(member.address)
        return self._lines[identity]

    def _retire(self, member: Member, line: Line) -> None:
        """Begin no more calls on a line: its other connections may be as dead as the one that did not answer."""
        if self._lines.get((member.id, member.incarnation)) is line:
            del self._lines[member.id, member.incarnation]
            self._retired.add(line)

    def _close_retired(self) -> None:
        for line in self._retired - {line for _, _, line in self._calls.values()}:
            self._retired.discard(line)
            self._close_soon(line)

    async def _heard(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._bell.heard()

    def _close_soon(self, line: Line) -> None:
        task = asyncio.get_running_loop().create_task(line.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
