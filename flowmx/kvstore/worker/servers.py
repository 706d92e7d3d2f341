"""The servers of a job as a worker sees them: who answers for which home, and calls that outlive their peers."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from flowmx.comm.errors import Busy, PeerGone, Refused
from flowmx.comm.frames import Message, Tensor
from flowmx.comm.local import Foreign
from flowmx.comm.notifier import Notifier
from flowmx.comm.outage import Outage
from flowmx.comm.view import Member, View
from flowmx.errors import KVStoreError

__all__ = ["Channel", "Connect", "Servers", "primary"]

log = logging.getLogger("flowmx.kvstore")

_FIRST_DELAY, _LAST_DELAY = 0.01, 0.5
"""Seconds before a call is made again: twice as long each time, or until the view changes."""

_RATE = 1 << 20
"""Bytes a second that sending is expected to reach at first."""


class Channel(Protocol):
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

    def foreign(self, descriptor: int, inode: int, size: int) -> Foreign:
        """Memory of the server."""


Connect = Callable[[str], Channel]
"""Makes the channel to an address."""


def primary(view: View, home: int, servers: int) -> Member | None:
    """The server that answers for a home: the first that is alive from there on, around the ring."""
    alive = {member.rank: member for member in view.servers}
    return next((alive[rank % servers] for rank in range(home, home + servers) if rank % servers in alive), None)


class Servers:
    """Calls the server that answers for a home, again and again, until there is an answer. Belongs to one loop.

    Args:
        count: how many servers the job has.
        connect: makes channels to them.
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
        self._channels: dict[tuple[str, int], Channel] = {}
        self._calls: dict[asyncio.Task[Message], tuple[int, Member, Channel]] = {}
        self._retired: set[Channel] = set()
        self._notifier = Notifier()
        self._error: BaseException | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def know(self, view: View) -> None:
        """Take a view of the job: calls of servers that answer for their home no more are given up, and made anew."""
        self._view = view
        alive = {(member.id, member.incarnation) for member in view.servers}
        for identity in self._channels.keys() - alive:
            self._close_soon(self._channels.pop(identity))
        for call, (home, member, _) in self._calls.items():
            now = primary(view, home, self.count)
            if now is None or (now.id, now.incarnation) != (member.id, member.incarnation):
                call.cancel()
        self._notifier.notify()

    def is_local(self, home: int) -> bool:
        """Tell whether memory is shared with the server of a home; False while that is not known."""
        return self.local_channel(home) is not None

    def local_channel(self, home: int) -> Channel | None:
        """The channel to the server of a home, where memory is shared with it."""
        member = None if self._view is None else primary(self._view, home, self.count)
        channel = None if member is None else self._channels.get((member.id, member.incarnation))
        return channel if channel is not None and channel.is_local else None

    def fail(self, error: BaseException) -> None:
        """Make every call, now and later, raise an error."""
        self._error = error
        for call in self._calls:
            call.cancel()
        self._notifier.notify()

    async def close(self) -> None:
        """Close all channels."""
        channels, self._channels = [*self._channels.values(), *self._retired], {}
        await asyncio.gather(*(channel.close() for channel in channels), *self._closing, return_exceptions=True)

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
                _raise_where_meant()
            except Refused as refused:
                if refused.kind != "moved" and not isinstance(refused, Busy):
                    raise
                log.debug("%s refused %s: %s", member.name, operation, refused)
            except PeerGone as error:
                log.info("%s did not answer %s (%s): again", member.name, operation, error)
                await self._probe(
                    outages[member.id, member.incarnation], home, member, operation, 2 * (seconds + sending), error
                )
            except TimeoutError as error:
                log.info("%s has not answered %s (%s): again", member.name, operation, error)
                seconds, sending = 2 * seconds, 2 * sending
                await self._probe(
                    outages[member.id, member.incarnation], home, member, operation, 2 * (seconds + sending), error
                )
            await self._wait_for_change(delay)
            delay = min(2 * delay, _LAST_DELAY)

    async def _once(
        self, home: int, member: Member, operation: str, header: dict[str, Any], tensors: Sequence[Tensor],
        into: Sequence[np.ndarray[Any, Any]] | None, seconds: float, sent: Callable[[], object],
    ) -> Message:  # fmt: skip
        channel = self._channel(member)
        call = asyncio.ensure_future(channel.call(operation, header, tensors, into, seconds, sent))
        self._calls[call] = (home, member, channel)
        try:
            return await call
        except BaseException as error:
            call.cancel()
            if isinstance(error, TimeoutError):
                self._retire(member, channel)
            raise
        finally:
            del self._calls[call]
            self._close_retired()

    async def _probe(
        self, outage: Outage, home: int, member: Member, operation: str, most: float, error: Exception
    ) -> None:
        """Check whether a server that has not answered, but is alive for the scheduler, can be reached.

        Raises:
            KVStoreError: it could not for too long.
        """
        if await self._answers(home, member):
            outage.over()
            return
        lasted = outage.failed(asyncio.get_running_loop().time(), most + self._timeout)
        if lasted > self._patience:
            raise KVStoreError(
                f"{operation}: {member.name} at {member.address} has not been reached for {lasted:.1f} s "
                f"(FLOWMX_KVSTORE_RECONNECT), although the scheduler hears of it: {error}"
            ) from error

    async def _answers(self, home: int, member: Member) -> bool:
        try:
            with suppress(Refused):  # whatever it says
                await self._once(home, member, "local", {}, (), None, self._timeout, lambda: None)
        except (PeerGone, TimeoutError):
            return False
        except asyncio.CancelledError:
            _raise_where_meant()
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
            await self._wait_for_change(left)

    def _nobody(self, home: int) -> str:
        lost = [] if self._view is None else [each.obituary for each in self._view.gone if each.role == "server"]
        return f"no server has been there for home {home} for {self._patience:g} s (FLOWMX_KVSTORE_RECONNECT): " + (
            "; ".join(lost) or "all have left"
        )

    def _channel(self, member: Member) -> Channel:
        identity = (member.id, member.incarnation)
        if identity not in self._channels:
            self._channels[identity] = self._connect(member.address)
        return self._channels[identity]

    def _retire(self, member: Member, channel: Channel) -> None:
        """Begin no more calls on a channel: its other connections may be as dead as the one that did not answer."""
        if self._channels.get((member.id, member.incarnation)) is channel:
            del self._channels[member.id, member.incarnation]
            self._retired.add(channel)

    def _close_retired(self) -> None:
        for channel in self._retired - {channel for _, _, channel in self._calls.values()}:
            self._retired.discard(channel)
            self._close_soon(channel)

    async def _wait_for_change(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._notifier.next()

    def _close_soon(self, channel: Channel) -> None:
        task = asyncio.get_running_loop().create_task(channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _raise_where_meant() -> None:
    """Go on after a call that :class:`Servers` gave up; raise where the task that waits for it is cancelled itself.

    Raises:
        CancelledError: it is.
    """
    task = asyncio.current_task()
    if task is None or task.cancelling():
        raise asyncio.CancelledError
