"""An event without a state, for tasks that wait until something has changed and then check it themselves."""

from __future__ import annotations

import asyncio

__all__ = ["Notifier"]


class Notifier:
    """A wake-up for many tasks: each call of `notify` wakes all that wait. Belongs to one event loop."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Wake all that wait now."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    def next(self) -> asyncio.Future[None]:
        """A future of the next notification from now on; one that comes before it is awaited is not missed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        return future
