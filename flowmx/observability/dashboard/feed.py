"""Frames as server-sent events; a slow viewer gets the newest state next, and never a queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import TracebackType

from aiohttp import web

from flowmx.observability.dashboard.sampler_thread import SamplingThread

__all__ = ["Viewer", "send", "stream"]

_PATIENCE = 30.0
"""Seconds for which a viewer may take nothing before it is left."""


class Viewer:
    """A viewer's subscription on the running event loop; a context manager.

    Args:
        sampling_thread: whose frames.
    """

    def __init__(self, sampling_thread: SamplingThread) -> None:
        self._thread = sampling_thread
        self._loop = asyncio.get_running_loop()
        self._fresh = asyncio.Event()
        self._seen = -1
        self._closed = False

    def __enter__(self) -> Viewer:
        self._thread.join(self._wake)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.leave(self._wake)

    def close(self) -> None:
        """Let :meth:`next` end."""
        self._closed = True
        self._fresh.set()

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._fresh.set)
        except RuntimeError:  # the loop is closed
            self._thread.leave(self._wake)

    async def next(self) -> bytes | None:
        """Await a frame that was not seen: what is new in it, or all where others were missed; None: closed."""
        await self._fresh.wait()
        self._fresh.clear()
        if self._closed:
            return None
        self._seen, text = self._thread.newest(self._seen)
        return text


async def stream(response: web.StreamResponse, viewer: Viewer) -> None:
    """Write frames until the viewer goes away, or takes nothing any more.

    Args:
        response: prepared.
        viewer: has joined.
    """

    async def frames() -> AsyncGenerator[bytes]:
        while (text := await viewer.next()) is not None:
            yield text

    await send(response, frames())


async def send(response: web.StreamResponse, texts: AsyncGenerator[bytes]) -> None:
    """Write texts as events until there are no more, or the viewer goes away or takes nothing any more.

    Args:
        response: prepared.
        texts: without line ends.
    """
    try:
        async for text in texts:
            await asyncio.wait_for(response.write(b"data: " + text + b"\n\n"), _PATIENCE)
    except (ConnectionError, TimeoutError):
        pass
