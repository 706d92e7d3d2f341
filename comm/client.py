"""A client of a service in another process or on another machine."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from yarl import URL

from flowmx import settings
from flowmx.comm.call import Call, ClientConfig
from flowmx.comm.errors import PeerGone, Refused, WireError
from flowmx.comm.frames import Message, Tensor
from flowmx.comm.limits import Limits, limits_for
from flowmx.comm.routes import Routes
from flowmx.comm.security import Security, check_node
from flowmx.comm.shared_memory import NotLocal, PeerMemory

__all__ = ["Peer"]

log = logging.getLogger("flowmx.comm")


class Peer:
    """A service in another process or on another machine. A peer belongs to the event loop of its first call.

    Args:
        address: ``"host:port"`` or ``"http://host:port"``, with a path if the service is mounted under one.
        security: the credentials that the service uses too.
        limits: limits on messages; by default those of a job's nodes.
        node: the caller's node name, for the signatures of calls.
        local: whether to use a unix socket and shared memory if the service is on this machine; only if
            ``FLOWMX_KVSTORE_LOCAL`` allows it.
        stream: whether small calls may share a stream, if the service offers one; only if ``FLOWMX_KVSTORE_STREAMS``
            allows it.

    Raises:
        ValueError: the address or node name is invalid.

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
        self.limits = limits or limits_for("job")
        self._config = ClientConfig(self.address, url, node, security, self.limits)
        config = settings.get()
        self._routes = Routes(self._config, local and config.kvstore_local, stream and config.kvstore_streams)
        self._response_sizes: dict[str, int] = {}  # bytes of each operation's last response

    @property
    def is_local(self) -> bool:
        """True if tensors are sent in shared memory; known after the first call."""
        return self._routes.is_local

    @property
    def is_streaming(self) -> bool:
        """True while a stream for small calls is open."""
        return self._routes.is_streaming

    def map_memory(self, descriptor: int, inode: int, size: int) -> PeerMemory:
        """Map memory of the service's process for reading.

        Raises:
            NotLocal: the service is on another machine, or its memory cannot be mapped.
        """
        process = self._routes.process()
        if process is None:
            raise NotLocal(f"{self.address} shares no memory with this process")
        return PeerMemory(process, descriptor, inode, size)

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; calls in progress fail."""
        await self._routes.close()

    async def call(
        self,
        operation: str,
        header: dict[str, Any],
        tensors: Sequence[Tensor | np.ndarray[Any, Any]] = (),
        into: Sequence[memoryview | np.ndarray[Any, Any]] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 (the message names the operation)
        on_sent: Callable[[], object] = lambda: None,
    ) -> Message:
        """Call an operation once; the caller decides whether to retry.

        Args:
            operation: its name.
            header: the request's fields, with "id", "node" and "incarnation" if the operation requires them.
            tensors: the request's tensors; they must not change until the call is over.
            into: memory for the tensors of the response. If the call fails, it may have been partly overwritten.
            timeout: seconds (default: the timeout of the limits); infinity for no timeout.
            on_sent: called when the whole request has been sent, possibly more than once.

        Raises:
            PeerGone: the connection failed or broke; the operation may or may not have been carried out.
            Refused: the service refused the call. Subclasses such as `Unauthorized` give the reason.
            WireError: the request or the response is invalid.
            TimeoutError: the call took too long; the operation may or may not have been carried out.
        """
        fields = {"node": self.node, **header} if self.node else header
        message = Message(fields, [tensor if isinstance(tensor, Tensor) else Tensor.of(tensor) for tensor in tensors])
        targets = None if into is None else [_writable_bytes(index, target) for index, target in enumerate(into)]
        seconds = self.limits.timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(None if math.isinf(seconds) else seconds):
                return await self._call(operation, message, targets, on_sent)
        except TimeoutError:
            self._routes.retire_streams()
            raise TimeoutError(f"{operation} on {self.address} took longer than {seconds:g} s") from None

    async def _call(
        self, operation: str, message: Message, into: list[memoryview] | None, on_sent: Callable[[], object]
    ) -> Message:
        route = await self._routes.best()
        try:
            return await Call(
                self._config, route, operation, message, into, self._response_sizes, on_sent=on_sent
            ).run()
        except PeerGone:
            self._routes.drop_local(route)
            raise
        except Refused as error:
            if route.segments is None or error.kind != NotLocal.kind:
                raise
        # The service could not map the memory, and has done nothing yet.
        self._routes.use_tcp("its memory cannot be mapped")
        return await Call(
            self._config, self._routes.tcp(), operation, message, into, self._response_sizes, on_sent=on_sent
        ).run()


def _url(address: str, security: Security | None) -> URL:
    if "//" not in address:
        address = f"http{'s' if security is not None and security.tls is not None else ''}://{address}"
    url = URL(address)
    if url.scheme not in ("http", "https") or not url.host or not url.explicit_port:
        raise ValueError(f"a peer's address is 'host:port' or 'http://host:port', not {address!r}")
    return url


def _writable_bytes(index: int, target: memoryview | np.ndarray[Any, Any]) -> memoryview:
    if isinstance(target, np.ndarray):
        if not target.flags.c_contiguous or not target.flags.writeable:
            raise WireError(f"memory {index} for the response must be contiguous and writable")
        target = target.reshape(-1).view(np.uint8).data
    return target.cast("B") if target.nbytes else memoryview(bytearray())
