"""An event without state, for tasks that wait for a change and then check for it themselves."""

from __future__ import annotations

import asyncio

__all__ = ["Notifier"]


class Notifier:
    """An event for many tasks: `notify` wakes all waiting tasks. It belongs to one event loop."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Wake all waiting tasks."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    def next(self) -> asyncio.Future[None]:
        """Return a future for the next notification, including one that comes before the future is awaited."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        return future
