"""A worker's calls of the job's servers: finding the server of a home, and retrying calls until they are answered."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from flowmx.comm.errors import Busy, PeerGone, Refused
from flowmx.comm.frames import Message, Tensor
from flowmx.comm.notifier import Notifier
from flowmx.comm.outage import Outage
from flowmx.comm.shared_memory import PeerMemory
from flowmx.comm.view import Member, View
from flowmx.errors import KVStoreError
from flowmx.ops.registry.operators import Array

__all__ = ["Channel", "Connect", "Servers", "primary"]

log = logging.getLogger("flowmx.kvstore")

_FIRST_DELAY, _LAST_DELAY = 0.01, 0.5
"""The retry delay of a call in seconds: doubled each time up to the second value, and cut short by a new view."""

_TRANSIENT = ("moved", "not_member")
"""Kinds of refusals that end with a newer view: the server's, or this worker's, whose node then raises NodeGone."""

_RATE = 1 << 20
"""Bytes per second that the first timeout of a call assumes."""


class Channel(Protocol):
    """The methods of :class:`flowmx.comm.client.Peer` that are used here."""

    async def call(
        self,
        operation: str,
        header: dict[str, Any],
        tensors: Sequence[Tensor] = (),
        into: Sequence[Array] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
        sent: Callable[[], object] = ...,
    ) -> Message:
        """Call an operation."""

    async def close(self) -> None:
        """Close the connections."""

    @property
    def is_local(self) -> bool:
        """True if memory is shared with the server."""

    def map_memory(self, descriptor: int, inode: int, size: int) -> PeerMemory:
        """Return shared memory of the server."""


Connect = Callable[[str], Channel]
"""Returns a channel to an address."""


def primary(view: View, home: int, servers: int) -> Member | None:
    """Return the server that answers for a home: the first live one from that rank on, around the ring."""
    alive = {member.rank: member for member in view.servers}
    return next((alive[rank % servers] for rank in range(home, home + servers) if rank % servers in alive), None)


class Servers:
    """Calls the server that answers for a home, and retries until there is a response. It belongs to one event loop.

    Args:
        count: the number of servers of the job.
        connect: returns a channel to an address.
        sender: the fields "node" and "incarnation" of this worker, for headers.
        patience: maximum seconds without a server for a home, or with an unreachable server.
        timeout: seconds after which an unanswered call is retried: the request or the response may be lost with its
            connection. Servers recognize repeated requests. The timeout doubles each time, since a synchronous round
            may take arbitrarily long; the scheduler detects lost nodes.
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

    def update_view(self, view: View) -> None:
        """Use a new view of the job; calls to servers that do not answer for their home now are retried."""
        self._view = view
        alive = {(member.id, member.incarnation) for member in view.servers}
        for identity in self._channels.keys() - alive:
            self._close_soon(self._channels.pop(identity))
        for call, (home, member, _) in self._calls.items():
            current = primary(view, home, self.count)
            if current is None or (current.id, current.incarnation) != (member.id, member.incarnation):
                call.cancel()
        self._notifier.notify()

    def is_local(self, home: int) -> bool:
        """Return whether memory is shared with the server of a home; False while that is unknown."""
        return self.local_channel(home) is not None

    def local_channel(self, home: int) -> Channel | None:
        """Return the channel to the server of a home if memory is shared with it, else None."""
        member = None if self._view is None else primary(self._view, home, self.count)
        channel = None if member is None else self._channels.get((member.id, member.incarnation))
        return channel if channel is not None and channel.is_local else None

    def fail(self, error: BaseException) -> None:
        """Make all current and later calls raise an error."""
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
        into: Sequence[Array] | None = None,
        sent: Callable[[], object] = lambda: None,
    ) -> Message:
        """Call an operation of the server of a home; retry until it answers, so the operation may run more than once.

        Raises:
            NodeGone: the job has failed.
            Refused: the server refused the request.
            KVStoreError: no server could be reached for too long.
        """
        header = {**self._sender, **header}
        delay, timeout = _FIRST_DELAY, self._timeout
        send_time = sum(tensor.data.nbytes for tensor in tensors) / _RATE
        outages: defaultdict[tuple[str, int], Outage] = defaultdict(Outage)
        while True:
            member = await self._wait_for_server(home)
            try:
                return await self._try_call(home, member, operation, header, tensors, into, timeout + send_time, sent)
            except asyncio.CancelledError:
                _raise_if_cancelled()
            except Refused as refused:
                if refused.kind not in _TRANSIENT and not isinstance(refused, Busy):
                    raise
                log.debug("%s refused %s: %s", member.name, operation, refused)
            except PeerGone as error:
                log.info("%s did not answer %s (%s): retrying", member.name, operation, error)
                await self._probe(
                    outages[member.id, member.incarnation], home, member, operation, 2 * (timeout + send_time), error
                )
            except TimeoutError as error:
                log.info("%s has not answered %s (%s): retrying", member.name, operation, error)
                timeout, send_time = 2 * timeout, 2 * send_time
                await self._probe(
                    outages[member.id, member.incarnation], home, member, operation, 2 * (timeout + send_time), error
                )
            await self._wait_for_change(delay)
            delay = min(2 * delay, _LAST_DELAY)

    async def _try_call(
        self, home: int, member: Member, operation: str, header: dict[str, Any], tensors: Sequence[Tensor],
        into: Sequence[Array] | None, seconds: float, sent: Callable[[], object],
    ) -> Message:  # fmt: skip
        channel = self._channel(member)
        call = asyncio.ensure_future(channel.call(operation, header, tensors, into, seconds, sent))
        self._calls[call] = (home, member, channel)
        try:
            return await call
        except BaseException as error:  # cancelled too, the call must not go on
            call.cancel()
            if isinstance(error, TimeoutError):
                self._retire(member, channel)
            raise
        finally:
            del self._calls[call]
            self._close_retired()

    async def _probe(
        self, outage: Outage, home: int, member: Member, operation: str, max_gap: float, error: Exception
    ) -> None:
        """Check whether a server that has not responded, but that the scheduler considers alive, can be reached.

        Raises:
            KVStoreError: it could not be reached for too long.
        """
        if await self._is_reachable(home, member):
            outage.end()
            return
        outage_seconds = outage.record_failure(asyncio.get_running_loop().time(), max_gap + self._timeout)
        if outage_seconds > self._patience:
            raise KVStoreError(
                f"{operation}: {member.name} at {member.address} has not been reached for {outage_seconds:.1f} s "
                f"(FLOWMX_KVSTORE_RECONNECT), although the scheduler considers it alive: {error}"
            ) from error

    async def _is_reachable(self, home: int, member: Member) -> bool:
        try:
            with suppress(Refused):  # any response shows that it is reachable
                await self._try_call(home, member, "local", {}, (), None, self._timeout, lambda: None)
        except (PeerGone, TimeoutError):
            return False
        except asyncio.CancelledError:
            _raise_if_cancelled()
            return False
        return True

    async def _wait_for_server(self, home: int) -> Member:
        """Wait for a server that answers for a home."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        while True:
            if self._error is not None:
                raise self._error
            member = None if self._view is None else primary(self._view, home, self.count)
            if member is not None:
                return member
            remaining = start + self._patience - loop.time()
            if remaining <= 0:
                raise KVStoreError(self._no_server_message(home))
            await self._wait_for_change(remaining)

    def _no_server_message(self, home: int) -> str:
        loss_messages = (
            [] if self._view is None else [member.loss_message for member in self._view.lost if member.role == "server"]
        )
        return f"there was no server for home {home} for {self._patience:g} s (FLOWMX_KVSTORE_RECONNECT): " + (
            "; ".join(loss_messages) or "all have left"
        )

    def _channel(self, member: Member) -> Channel:
        identity = (member.id, member.incarnation)
        if identity not in self._channels:
            self._channels[identity] = self._connect(member.address)
        return self._channels[identity]

    def _retire(self, member: Member, channel: Channel) -> None:
        """Start no more calls on a channel: its other connections may be dead too."""
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


def _raise_if_cancelled() -> None:
    """Raise if the current task is cancelled; return if :class:`Servers` cancelled only the call.

    Raises:
        CancelledError: the task is cancelled.
    """
    task = asyncio.current_task()
    if task is None or task.cancelling():
        raise asyncio.CancelledError
