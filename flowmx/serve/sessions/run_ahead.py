"""The items of a stream whose results have not been read, in bounded number."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

__all__ = ["RunAhead"]


T = TypeVar("T")


class RunAhead(Generic[T]):
    """A queue of the items of a stream. One task puts them, another gets them and reads their results.

    Args:
        limit: the maximum number of items whose results have not been read.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[T] = deque()
        self._unread = 0
        self._has_ended = False
        self._getter: asyncio.Future[None] | None = None
        self._putter: asyncio.Future[None] | None = None

    async def wait_for_room(self) -> None:
        """Wait until an item may be put."""
        while self._unread >= self._limit:
            self._putter = asyncio.get_running_loop().create_future()
            await self._putter

    def put(self, item: T) -> None:
        """Add an item."""
        self._unread += 1
        self._items.append(item)
        _wake(self._getter)

    def end(self) -> None:
        """Add no further items."""
        self._has_ended = True
        _wake(self._getter)

    async def get(self) -> T | None:
        """Return the next item; None after the last."""
        while not self._items:
            if self._has_ended:
                return None
            self._getter = asyncio.get_running_loop().create_future()
            await self._getter
        return self._items.popleft()

    def record_read(self) -> None:
        """Make room for another item, because the result of one has been read."""
        self._unread -= 1
        _wake(self._putter)

    def clear(self) -> list[T]:
        """Remove and return the items that have not been got."""
        items = list(self._items)
        self._items.clear()
        return items


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
