"""Frames as server-sent events. Frames are not queued: a slow viewer receives the newest state next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import TracebackType

from aiohttp import web

from flowmx.observability.dashboard.sampler_thread import SamplingThread

__all__ = ["Viewer", "send", "stream"]

_WRITE_TIMEOUT = 30.0
"""Seconds without progress after which a viewer is disconnected."""


class Viewer:
    """A viewer's subscription on the running event loop; a context manager.

    Args:
        sampling_thread: the source of the frames.
    """

    def __init__(self, sampling_thread: SamplingThread) -> None:
        self._thread = sampling_thread
        self._loop = asyncio.get_running_loop()
        self._fresh = asyncio.Event()
        self._last_seq = -1
        self._closed = False

    def __enter__(self) -> Viewer:
        self._thread.join(self._wake)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.leave(self._wake)

    def close(self) -> None:
        """Make :meth:`next` return None."""
        self._closed = True
        self._fresh.set()

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._fresh.set)
        except RuntimeError:  # the loop is closed
            self._thread.leave(self._wake)

    async def next(self) -> bytes | None:
        """Await the next frame: the changes, or the whole state if frames were missed; None once closed."""
        await self._fresh.wait()
        self._fresh.clear()
        if self._closed:
            return None
        self._last_seq, text = self._thread.newest(self._last_seq)
        return text


async def stream(response: web.StreamResponse, viewer: Viewer) -> None:
    """Write frames until the viewer disconnects or stops reading.

    Args:
        response: the prepared response.
        viewer: a viewer that has joined.
    """

    async def frames() -> AsyncGenerator[bytes]:
        while (text := await viewer.next()) is not None:
            yield text

    await send(response, frames())


async def send(response: web.StreamResponse, texts: AsyncGenerator[bytes]) -> None:
    """Write texts as events until they end, or the viewer disconnects or stops reading.

    Args:
        response: the prepared response.
        texts: texts without line breaks.
    """
    try:
        async for text in texts:
            await asyncio.wait_for(response.write(b"data: " + text + b"\n\n"), _WRITE_TIMEOUT)
    except (ConnectionError, TimeoutError):
        pass
