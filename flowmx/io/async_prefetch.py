"""Prefetching of an iterator's next batch in a thread, for tasks that wait for it."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flowmx.data.pending_batches import Failure, PendingBatch, PendingIterator, ThreadFetch

if TYPE_CHECKING:
    from flowmx.io.data_iter import DataIter

__all__ = ["get_async_prefetch"]


class AsyncPrefetch(PendingIterator[Any]):
    """The next batch of an iterator, while a task waits for it or after a wait was cancelled.

    Args:
        iterator: the iterator.
    """

    def __init__(self, iterator: DataIter) -> None:
        super().__init__()
        self._iterator = weakref.ref(iterator)
        self._fetch: ThreadFetch | None = None

    def is_free(self) -> bool:
        """Return whether the calling thread may use the iterator directly."""
        fetch = self._fetch
        return fetch is None or fetch.runs_here()

    def _head(self) -> PendingBatch | None:
        iterator = self._iterator()
        if self._fetch is None and iterator is not None:
            self._fetch = ThreadFetch(iterator.__next__, iterator.state)
        return self._fetch

    def _is_pending(self, head: PendingBatch) -> bool:
        return self._fetch is head

    def _pop(self, result: object) -> Any:
        if self._fetch is not None and not self._fetch.is_lost():
            self._fetch = None
        if isinstance(result, Failure):
            raise result.error
        return result

    def next(self, _: Callable[[], object]) -> Any:
        """Take the batch."""
        return self._take()

    def iter_next(self, _: Callable[[], object]) -> bool:
        """Take the batch, which becomes the iterator's current one; return whether there is one."""
        try:
            self._take()
        except StopIteration:
            return False
        return True

    def state(self, _: Callable[[], object]) -> Any:
        """Return the state of the iterator before the batch."""
        fetch = self._fetch
        assert fetch is not None
        result = fetch.wait()
        state = result if fetch.is_lost() else fetch.state
        if isinstance(state, Failure):
            raise state.error
        return state

    def drop(self, method: Callable[[], object]) -> Any:
        """Discard the batch, and call a method that moves the iterator."""
        with self._lock:
            fetch, self._fetch = self._fetch, None
        if fetch is not None:
            fetch.wait()
        return method()


_REPLACEMENTS: dict[str, Callable[[AsyncPrefetch, Callable[[], Any]], Any]] = {
    "next": AsyncPrefetch.next, "iter_next": AsyncPrefetch.iter_next, "state": AsyncPrefetch.state,
    "reset": AsyncPrefetch.drop, "hard_reset": AsyncPrefetch.drop, "set_state": AsyncPrefetch.drop,
}  # fmt: skip
"""The behavior of an iterator's methods while a batch is prefetched."""


def get_async_prefetch(iterator: DataIter) -> AsyncPrefetch:
    """Return the prefetched batch of an iterator.

    The first call replaces the iterator's methods by wrappers that consider the prefetched batch. They are replaced on
    the instance, so that iterators without waiting tasks have no overhead.
    """
    prefetch: AsyncPrefetch | None = vars(iterator).get(_NAME)
    if prefetch is None:
        created = AsyncPrefetch(iterator)
        prefetch = vars(iterator).setdefault(_NAME, created)
        if prefetch is created:
            for name, replacement in _REPLACEMENTS.items():
                if callable(getattr(type(iterator), name, None)) and callable(vars(iterator).get(name, callable)):
                    vars(iterator)[name] = _wrap(prefetch, iterator, name, replacement)
    return prefetch


_NAME = "_flowmx_ahead"


def _wrap(
    prefetch: AsyncPrefetch,
    iterator: DataIter,
    name: str,
    replacement: Callable[[AsyncPrefetch, Callable[[], Any]], Any],
) -> Any:
    """Wrap an iterator's method, for use while a batch is prefetched. The wrapper does not keep the iterator alive."""
    instance_method = vars(iterator).get(name)
    method = getattr(type(iterator), name)
    reference = weakref.ref(iterator)

    @functools.wraps(method)
    def wrapper(*arguments: object, **options: object) -> Any:
        call = instance_method or functools.partial(method, reference())
        if prefetch.is_free():
            return call(*arguments, **options)
        return replacement(prefetch, functools.partial(call, *arguments, **options))

    return wrapper
