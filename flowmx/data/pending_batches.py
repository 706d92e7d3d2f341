"""Iterators over pending batches: each batch goes to one caller, and a cancelled wait takes none.

An iterator with pending batches is a :class:`PendingIterator`. Any number of threads, and of tasks on any event loops,
may take batches from it. If its source has no pending batches, a :class:`ThreadFetch` gets the next one in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from flowmx import forks
from flowmx.errors import StateError
from flowmx.event_loops import running_loop

__all__ = ["Failure", "PendingIterator", "TaskFetch", "ThreadFetch", "ThreadedIterator"]

T = TypeVar("T")


class Failure(NamedTuple):
    """An error as a value, because a future cannot hold some exceptions."""

    error: BaseException


class PendingBatch(Protocol):
    """A pending batch. Cancelling a wait for it has no effect on it."""

    def __await__(self) -> Generator[Any, None, Any]: ...

    def wait(self) -> Any:
        """Block until the batch is ready."""


class ThreadFetch:
    """A function call in another thread. Any number of tasks and threads may wait for its result.

    Args:
        function: computes the result; an error becomes a :class:`Failure`.
        before: called before ``function``.

    Attributes:
        function: the function.
        state: the result of ``before``.
    """

    def __init__(self, function: Callable[[], Any], before: Callable[[], Any] | None = None) -> None:
        self.function = function
        self.state: Any = None
        self._before = before
        self._result: Any = None
        self._is_done = False
        self._waiters: list[Callable[[], None]] = []
        self._thread: int | None = None
        self._fork_generation = forks.generation()
        _threads().submit(contextvars.copy_context().run, self._run)

    def _run(self) -> None:
        self._thread = threading.get_ident()
        if self._before is not None:
            self.state = outcome(self._before)
        self._result = outcome(self.function)
        self._thread = None
        self._is_done = True
        for wake in self._waiters:  # later waiters see `_is_done`
            wake()

    def runs_here(self) -> bool:
        """Return whether the calling thread computes the result."""
        return self._thread == threading.get_ident()

    def is_lost(self) -> bool:
        """Return whether this is the child of a fork, in which no thread computes the result."""
        return self._fork_generation != forks.generation() and not self._is_done

    def __await__(self) -> Generator[Any, None, Any]:
        if not (self._is_done or self.is_lost()):
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()

            def wake() -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing waits
                    loop.call_soon_threadsafe(_resolve, waiter)

            self._waiters.append(wake)
            if not self._is_done:
                yield from waiter
        return self.wait()

    def wait(self) -> Any:
        """Block until the result is ready."""
        if self.is_lost():
            return _LOST
        if not self._is_done:
            done = threading.Event()
            self._waiters.append(done.set)
            if not self._is_done:
                done.wait()
        return self._result


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


_MAX_THREADS = 32
_pool: tuple[int, ThreadPoolExecutor] | None = None


def _threads() -> ThreadPoolExecutor:
    """Return the pool of fetching threads; the child of a fork starts a new one."""
    global _pool
    if _pool is None or _pool[0] != forks.generation():
        _pool = forks.generation(), ThreadPoolExecutor(_MAX_THREADS, "flowmx-fetch")
    return _pool[1]


class TaskFetch:
    """A coroutine that runs as a task of the running loop; cancelled waits do not cancel it.

    Args:
        coroutine: computes the result.
    """

    def __init__(self, coroutine: Awaitable[Any]) -> None:
        self._task = asyncio.get_running_loop().create_task(_await_outcome(coroutine))

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.shield(self._task).__await__()

    def wait(self) -> Any:
        """Raise StateError: only tasks can wait for the result."""
        raise StateError("this iterator supports only `async for`")


_LOST = Failure(
    StateError("the next batch was being fetched when this process was forked: call reset() on the iterator here")
)


def outcome(function: Callable[[], T]) -> T | Failure:
    """Return the result of a function, or its error as a value."""
    try:
        return function()
    except BaseException as error:  # any error of the user's code is the result
        return Failure(error)


async def _await_outcome(coroutine: Awaitable[Any]) -> Any:
    try:
        return await coroutine
    except Exception as error:  # the user's iterator may raise anything
        return Failure(error)


class PendingIterator(Generic[T]):
    """Base class of iterators over pending batches.

    A subclass implements :meth:`_head` and :meth:`_pop`, which are called with ``_lock`` held.
    """

    def __init__(self) -> None:
        self._lock = forks.lock()

    def _head(self) -> PendingBatch | None:
        """Return the next batch, starting it if necessary; None at the end."""
        raise NotImplementedError

    def _is_pending(self, head: PendingBatch) -> bool:
        """Return whether this batch has not been taken."""
        return self._head() is head

    def _pop(self, result: object) -> T:
        """Remove the head and return the batch.

        Args:
            result: the head's result, or a :class:`Failure` if the wait raised.

        Raises:
            StopIteration: the iterator is at its end.
        """
        raise NotImplementedError

    def _take(self) -> T:
        """Take the next batch, blocking.

        Raises:
            StopIteration: there are no more batches.
        """
        while True:
            with self._lock:
                head = self._head()
            if head is None:
                raise StopIteration
            try:
                result = head.wait()
            except Exception as error:  # the user's iterator may raise anything
                result = Failure(error)
            with self._lock:
                if self._is_pending(head):
                    return self._pop(result)

    async def _take_async(self) -> T:
        """Take the next batch, awaiting it.

        Raises:
            StopAsyncIteration: there are no more batches.
            EngineError: no asyncio event loop runs this code.
        """
        running_loop()
        while True:
            with self._lock:
                head = self._head()
            if head is None:
                raise StopAsyncIteration
            try:
                result = await head
            except Exception as error:  # the user's iterator may raise anything
                result = Failure(error)
            try:
                with self._lock:
                    if self._is_pending(head):
                        return self._pop(result)
            except StopIteration:
                raise StopAsyncIteration from None


class ThreadedIterator(PendingIterator[T]):
    """An asynchronous iterator over the items of a plain iterator, which runs in another thread.

    Args:
        items: the plain iterator.
    """

    def __init__(self, items: Iterator[T]) -> None:
        super().__init__()
        self._items = items
        self._fetch: ThreadFetch | None = None

    def __aiter__(self) -> ThreadedIterator[T]:
        return self

    async def __anext__(self) -> T:
        return await self._take_async()

    def _head(self) -> ThreadFetch:
        if self._fetch is None:
            self._fetch = ThreadFetch(lambda: next(self._items))
        return self._fetch

    def _is_pending(self, head: PendingBatch) -> bool:
        return self._fetch is head

    def _pop(self, result: Any) -> T:
        self._fetch = None
        if isinstance(result, Failure):
            raise result.error
        item: T = result
        return item
