"""Messages to the other servers: sent in order, in batches, until they arrive or the receiver is lost."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from flowmx import settings
from flowmx.comm.errors import CommError
from flowmx.comm.frames import Tensor
from flowmx.comm.outage import Outage
from flowmx.kvstore.server.wire import Packed

__all__ = ["Caller", "Connect", "Links"]

log = logging.getLogger("flowmx.kvstore")

_BYTES = 64 << 20
"""A batch of at least this many bytes gets no further message."""
_RATE = 1 << 20
"""Bytes per second that the first timeout of a call assumes; a connection that is stuck times out."""
_FIRST_DELAY, _LAST_DELAY = 0.02, 1.0
"""Seconds before a failed call is retried: doubled each time, up to the second value."""


class Caller(Protocol):
    """The methods of :class:`flowmx.comm.client.Peer` that links use."""

    async def call(
        self,
        operation: str,
        header: dict[str, Any],
        tensors: list[Tensor] = ...,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Any:
        """Call an operation."""

    async def close(self) -> None:
        """Close the connections."""


Connect = Callable[[str], Caller]
"""Returns the peer at an address."""


class Links:
    """A queue and a task for each of the other servers.

    Args:
        connect: makes peers.
        sender: the fields "node" and "incarnation" of this server, for headers.

    Attributes:
        unreached: called with the identity of a server that has received nothing for ``FLOWMX_KVSTORE_RECONNECT``
            seconds, and the reason: parts that it backs up cannot be acknowledged.
    """

    def __init__(self, connect: Connect, sender: Mapping[str, object]) -> None:
        self.unreached: Callable[[str, str], object] = lambda identity, why: None
        self._connect = connect
        self._sender = dict(sender)
        self._links: dict[str, _Link] = {}

    def set_addresses(self, addresses: Mapping[str, str]) -> None:
        """Set the addresses of live servers, by identity; drop messages for other servers."""
        for identity in list(self._links.keys() - addresses.keys()):
            self._links.pop(identity).end()
        for identity in addresses.keys() - self._links.keys():
            self._links[identity] = _Link(
                self._connect(addresses[identity]), identity, self._sender, self._report_unreached
            )

    def send(self, to: str, message: Packed) -> None:
        """Send a message, if the receiver is alive."""
        if to in self._links:
            self._links[to].send(message)

    def _report_unreached(self, identity: str, why: str) -> None:
        self.unreached(identity, why)

    async def close(self) -> None:
        """Drop all queued messages."""
        tasks = [link.end() for link in self._links.values()]
        self._links.clear()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Link:
    def __init__(
        self, peer: Caller, identity: str, sender: dict[str, Any], unreached: Callable[[str, str], object]
    ) -> None:
        self._unreached = unreached
        self._peer = peer
        self._sender = sender
        self._identity = identity
        self._queue: deque[Packed] = deque()
        self._filled = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"messages to server {identity}")

    def send(self, message: Packed) -> None:
        self._queue.append(message)
        self._filled.set()

    def end(self) -> asyncio.Task[None]:
        self._task.cancel()
        return self._task

    async def _run(self) -> None:
        try:
            while True:
                await self._filled.wait()
                self._filled.clear()
                while self._queue:
                    await self._deliver(self._batch())
        finally:
            await self._peer.close()

    def _batch(self) -> list[Packed]:
        batch = [self._queue.popleft()]
        nbytes = sum(tensor.data.nbytes for tensor in batch[0][1])
        while self._queue and nbytes < _BYTES:
            batch.append(self._queue.popleft())
            nbytes += sum(tensor.data.nbytes for tensor in batch[-1][1])
        return batch

    async def _deliver(self, batch: list[Packed]) -> None:
        header = {**self._sender, "messages": [[message, len(tensors)] for message, tensors in batch]}
        tensors = [tensor for _, tensors in batch for tensor in tensors]
        delay, outage = _FIRST_DELAY, Outage()
        timeout = settings.get().kvstore_timeout + sum(tensor.data.nbytes for tensor in tensors) / _RATE
        while True:
            try:
                await self._peer.call("messages", header, tensors, timeout=timeout)
                return
            except (CommError, TimeoutError) as error:
                # It may come back until the scheduler declares it lost.
                log.info("server %s did not receive %d messages (%s): retrying", self._identity, len(batch), error)
                if isinstance(error, TimeoutError):
                    timeout *= 2
                outage_seconds = outage.record_failure(asyncio.get_running_loop().time(), 2 * timeout)
                if outage_seconds > settings.get().kvstore_reconnect:
                    self._unreached(self._identity, str(error))
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LAST_DELAY)
