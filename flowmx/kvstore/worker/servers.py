"""The servers of a job as a worker sees them: who answers for which home, and calls that outlive their peers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from flowmx.comm.bell import Bell
from flowmx.comm.errors import Busy, PeerGone, Refused
from flowmx.comm.frames import Message, Tensor
from flowmx.comm.view import Member, View
from flowmx.errors import KVStoreError

__all__ = ["Connect", "Line", "Servers", "primary"]

log = logging.getLogger("flowmx.kvstore")

_FIRST_DELAY, _LAST_DELAY = 0.01, 0.5
"""Seconds before a call is made again: twice as long each time, or until the view changes."""


class Line(Protocol):
    """What is needed of a :class:`flowmx.comm.client.Peer`."""

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
        patience: seconds that a home may be without any server.
    """

    def __init__(self, count: int, connect: Connect, sender: dict[str, Any], patience: float) -> None:
        self.count = count
        self._connect = connect
        self._sender = sender
        self._patience = patience
        self._view: View | None = None
        self._lines: dict[tuple[str, int], Line] = {}
        self._calls: dict[asyncio.Task[Message], tuple[int, Member]] = {}
        self._bell = Bell()
        self._error: BaseException | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def know(self, view: View) -> None:
        """Take a view of the job: calls of servers that answer for their home no more are given up, and made anew."""
        self._view = view
        alive = {(member.id, member.incarnation) for member in view.servers}
        for identity in self._lines.keys() - alive:
            self._close_soon(self._lines.pop(identity))
        for call, (home, member) in self._calls.items():
            now = primary(view, home, self.count)
            if now is None or (now.id, now.incarnation) != (member.id, member.incarnation):
                call.cancel()
        self._bell.ring()

    def fail(self, error: BaseException) -> None:
        """Nothing can be called any more: every call, now and later, raises this."""
        self._error = error
        for call in self._calls:
            call.cancel()
        self._bell.ring()

    async def close(self) -> None:
        """Close all lines."""
        lines, self._lines = list(self._lines.values()), {}
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
        delay = _FIRST_DELAY
        while True:
            member = await self._serving(home)
            try:
                return await self._once(home, member, operation, header, tensors, into, sent)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
            except Refused as refused:
                if refused.kind != "moved" and not isinstance(refused, Busy):
                    raise
                log.debug("%s refused %s: %s", member.name, operation, refused)
            except (PeerGone, TimeoutError) as error:
                log.info("%s did not answer %s (%s): again", member.name, operation, error)
            await self._heard(delay)
            delay = min(2 * delay, _LAST_DELAY)

    async def _once(
        self, home: int, member: Member, operation: str, header: dict[str, Any], tensors: Sequence[Tensor],
        into: Sequence[np.ndarray[Any, Any]] | None, sent: Callable[[], object],
    ) -> Message:  # fmt: skip
        line = self._line(member)
        # A round may take for ever: who is gone is for the scheduler to find out.
        calling = line.call(operation, header, tensors, into, float("inf"), sent)
        call = asyncio.ensure_future(calling)
        self._calls[call] = (home, member)
        try:
            return await call
        except BaseException:
            call.cancel()
            raise
        finally:
            del self._calls[call]

    async def _serving(self, home: int) -> Member:
        """Who answers for a home, as soon as somebody does."""
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

    async def _heard(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._bell.heard()

    def _close_soon(self, line: Line) -> None:
        task = asyncio.get_running_loop().create_task(line.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
