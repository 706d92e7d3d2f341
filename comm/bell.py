"""An event without a state, for tasks that wait until something has changed and then check it themselves."""

from __future__ import annotations

import asyncio

__all__ = ["Bell"]


class Bell:
    """A wake-up for many tasks: each ring wakes all that wait. Belongs to one event loop."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        """Wake all that wait now."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    def heard(self) -> asyncio.Future[None]:
        """A future of the next ring from now on; a ring before it is awaited is not missed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        return future
