"""A bell: many tasks wait until something has changed, and then look again themselves."""

from __future__ import annotations

import asyncio

__all__ = ["Bell"]


class Bell:
    """Wakes all that wait, each time it rings. Belongs to one event loop."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        """Wake all that wait now."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    def heard(self) -> asyncio.Future[None]:
        """The next ring from now on, to be awaited: one that comes before that is not missed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        return future
