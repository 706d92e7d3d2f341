"""A peer: the operations of a service of another process or machine, to be called."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from yarl import URL

from flowmx import settings
from flowmx.comm.call import Call, Who
from flowmx.comm.errors import PeerGone, Refused, WireError
from flowmx.comm.frames import Message, Tensor
from flowmx.comm.limits import Limits, in_force
from flowmx.comm.local import Foreign, NotLocal
from flowmx.comm.routes import Routes
from flowmx.comm.security import Security, check_node

__all__ = ["Peer"]

log = logging.getLogger("flowmx.comm")


class Peer:
    """A service of another process or machine. Belongs to the event loop that first calls it.

    Args:
        address: ``"http://host:port"``, with a path where the service is mounted under one, or ``"host:port"``.
        security: as the service's.
        limits: what is allowed; by default what a job's nodes may send.
        node: the caller's own name, which calls are signed with.
        local: whether to use the faster way between processes of one machine where there is one, and where
            ``FLOWMX_KVSTORE_LOCAL`` lets it.
        stream: whether small calls may share a connection, a stream, where the service has those and
            ``FLOWMX_KVSTORE_STREAMS`` lets them.

    Raises:
        ValueError: the address or the node is none.

    Example:
        >>> async with Peer("127.0.0.1:40123") as peer:
        ...     answer = await peer.call("echo", {"id": "1"}, [np.ones(3)])
    """

    def __init__(
        self,
        address: str,
        *,
        security: Security | None = None,
        limits: Limits | None = None,
        node: str = "",
        local: bool = True,
        stream: bool = True,
    ) -> None:
        url = _url(address, security)
        self.address = str(url).rstrip("/")
        self.node = check_node(node)
        self.limits = limits or in_force("job")
        self._who = Who(self.address, url, node, security, self.limits)
        config = settings.get()
        self._routes = Routes(self._who, local and config.kvstore_local, stream and config.kvstore_streams)
        self._rooms: dict[str, int] = {}  # bytes of an operation's last answer

    @property
    def is_local(self) -> bool:
        """True when tensors go by shared memory; known after the first call."""
        return self._routes.is_local

    @property
    def is_streaming(self) -> bool:
        """True while a stream is open, over which small calls go."""
        return self._routes.is_streaming

    def foreign(self, descriptor: int, inode: int, size: int) -> Foreign:
        """Memory of the service's process, which it lets this one read.

        Raises:
            NotLocal: it is on another machine, or its memory can not be reached.
        """
        process = self._routes.process()
        if process is None:
            raise NotLocal(f"{self.address} shares no memory with this process")
        return Foreign(process, descriptor, inode, size)

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; calls that are under way fail."""
        await self._routes.close()

    async def call(
        self,
        operation: str,
        header: dict[str, Any],
        tensors: Sequence[Tensor | np.ndarray[Any, Any]] = (),
        into: Sequence[memoryview | np.ndarray[Any, Any]] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 (the message names what took so long)
        sent: Callable[[], object] = lambda: None,
    ) -> Message:
        """Call an operation, once: whether to call again is for the caller to decide.

        Args:
            operation: its name.
            header: what it takes; with "id", "node" and "incarnation" where it requires them.
            tensors: what it takes; they must stay as they are until it is over.
            into: memory for each tensor of the answer, whose tensors are these then. Where the call fails it may have
                been written in part.
            timeout: seconds; by default those of the limits; infinity for an answer that may take for ever.
            sent: is called when the request is on its way as a whole, perhaps more than once.

        Raises:
            PeerGone: there is no connection, or it broke: perhaps the operation was done, perhaps not.
            Refused: by the service; `Unauthorized` and others are more specific.
            WireError: the message, or the answer, is none that is allowed.
            TimeoutError: it took too long: perhaps the operation was done, perhaps not.
        """
        named = {"node": self.node, **header} if self.node else header
        message = Message(named, [tensor if isinstance(tensor, Tensor) else Tensor.of(tensor) for tensor in tensors])
        targets = None if into is None else [_bytes_of(index, target) for index, target in enumerate(into)]
        seconds = self.limits.timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(None if math.isinf(seconds) else seconds):
                return await self._call(operation, message, targets, sent)
        except TimeoutError:
            self._routes.retire_streams()
            raise TimeoutError(f"{operation} on {self.address} took longer than {seconds:g} s") from None

    async def _call(
        self, operation: str, message: Message, into: list[memoryview] | None, sent: Callable[[], object]
    ) -> Message:
        route = await self._routes.best()
        try:
            return await Call(self._who, route, operation, message, into, self._rooms, sent=sent).run()
        except PeerGone:
            self._routes.forget(route)
            raise
        except Refused as error:
            if route.segments is None or error.kind != NotLocal.kind:
                raise
        # The service did not get at the memory, and so has done nothing yet.
        self._routes.give_up("its memory can not be reached")
        return await Call(self._who, self._routes.tcp(), operation, message, into, self._rooms, sent=sent).run()


def _url(address: str, security: Security | None) -> URL:
    if "//" not in address:
        address = f"http{'s' if security is not None and security.tls is not None else ''}://{address}"
    url = URL(address)
    if url.scheme not in ("http", "https") or not url.host or not url.explicit_port:
        raise ValueError(f"a peer's address is 'host:port' or 'http://host:port', and not {address!r}")
    return url


def _bytes_of(index: int, target: memoryview | np.ndarray[Any, Any]) -> memoryview:
    if isinstance(target, np.ndarray):
        if not target.flags.c_contiguous or not target.flags.writeable:
            raise WireError(f"memory {index} for the answer must be contiguous and writable")
        target = target.reshape(-1).view(np.uint8).data
    return target.cast("B") if target.nbytes else memoryview(bytearray())
