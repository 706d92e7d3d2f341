"""A worker of a pool: it accepts connections on the pool's sockets, and answers questions about all workers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple, Self

from flowmx.serve.pool_channel import Channel, ChannelClosed, Method
from flowmx.serve.service import Service

__all__ = ["Member", "MemberOptions"]

_INTERVAL = 1.0
"""Seconds between two reports of the metrics."""


class MemberOptions(NamedTuple):
    """The options of a worker.

    Attributes:
        control: file descriptor of the channel to the pool.
        sockets: file descriptors of the listening sockets.
        is_replacement: whether it replaces a worker that ended; it accepts connections once its models are warm.
        unloaded: names of models that were unloaded from the other workers.
    """

    control: int
    sockets: Sequence[int]
    is_replacement: bool = False
    unloaded: Sequence[str] = ()

    def to_text(self) -> str:
        """Return the options as an argument of a command line."""
        return json.dumps(self)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse :meth:`to_text`."""
        return cls(*json.loads(text))


class Member:
    """The part of a worker that belongs to its pool. Create it with :meth:`join`.

    Args:
        options: the options of the worker.
        service: the worker's service.
    """

    def __init__(self, options: MemberOptions, service: Service) -> None:
        self.options = options
        self.sockets = [socket.socket(fileno=number) for number in options.sockets]
        self._service = service
        self._status: dict[str, int] = {}
        self._is_complete = False
        self._channel: Channel | None = None
        self._loading: asyncio.Task[None] | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def join(cls, options: MemberOptions, service: Service) -> AsyncIterator[Self]:
        """Connect to the pool, and report to it within the context. The end of the pool is a SIGTERM."""
        member = cls(options, service)
        service.join(member)
        methods: dict[str, Method] = {
            "metrics": member._own_metrics, "set_status": member._set_status, "load": service.load_here,
            "unload": service.unload_here,
        }  # fmt: skip
        control = socket.socket(fileno=options.control)
        member._channel = channel = await Channel.open(control, methods)
        channel.closed.add_done_callback(_terminate)
        reporting = asyncio.create_task(member._report())
        try:
            yield member
        finally:
            tasks = [task for task in (reporting, member._loading) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            channel.closed.remove_done_callback(_terminate)
            await channel.close()

    async def begin(self) -> None:
        """Wait until this worker may accept connections."""
        if self.options.is_replacement:
            await self._service.loaded()

    async def started(self) -> None:
        """Report that this worker accepts connections, and when its models are warm."""
        await self._call("started")
        self._loading = asyncio.create_task(self._report_loaded())

    async def metrics(self) -> str:
        """Return the metrics of all workers."""
        text: str = await self._call("metrics")
        return text

    async def load(self, name: str) -> None:
        """Load a model in all workers."""
        await self._call("load", name=name)

    async def unload(self, name: str) -> None:
        """Unload a model from all workers."""
        await self._call("unload", name=name)

    @property
    def unloaded(self) -> Sequence[str]:
        """Names of models that were unloaded from the other workers."""
        return self.options.unloaded

    @property
    def status(self) -> dict[str, int]:
        """Numbers of workers: ``expected``, ``running`` with warm models, and ``replaced``."""
        return self._status

    @property
    def is_complete(self) -> bool:
        """Whether the first workers have loaded their models; replacements do so before they accept connections."""
        return self._is_complete

    async def _call(self, method: str, **arguments: Any) -> Any:
        assert self._channel is not None
        return await self._channel.call(method, **arguments)

    async def _set_status(self, is_complete: bool, **status: int) -> None:
        self._is_complete, self._status = is_complete, status

    async def _report_loaded(self) -> None:
        with contextlib.suppress(ChannelClosed):
            if await self._service.loaded():
                await self._call("loaded")

    async def _own_metrics(self) -> str:
        return self._service.metrics()

    async def _report(self) -> None:
        """Report the metrics regularly, so that those of a worker that is killed are not lost."""
        with contextlib.suppress(ChannelClosed):
            while True:
                await self._call("report", metrics=self._service.metrics())
                await asyncio.sleep(_INTERVAL)


def _terminate(closed: object) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
