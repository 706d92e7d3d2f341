"""Iterators that wrap other iterators."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any

from flowmx import engine, process_hooks
from flowmx.data.batch_order import check_state
from flowmx.data.pending_batches import Failure, PendingIterator
from flowmx.io.data_iter import BatchIter, DataBatch, DataDesc, DataIter, _next_or_none
from flowmx.overrides import is_replaced

_GETTERS = {name: getattr(BatchIter, name) for name in ("getdata", "getlabel", "getpad", "getindex")}


class ResizeIter(BatchIter):
    """Wraps an iterator so that epochs have a fixed number of batches; it is reset as often as necessary.

    Args:
        data_iter: the iterator.
        size: the number of batches in an epoch.
        reset_internal: whether :meth:`reset` resets ``data_iter`` too.
    """

    def __init__(self, data_iter: DataIter, size: int, reset_internal: bool = True) -> None:
        super().__init__(data_iter.batch_size)
        self.data_iter = data_iter
        self.size = size
        self.reset_internal = reset_internal
        self.cur = 0
        self.provide_data = data_iter.provide_data
        self.provide_label = data_iter.provide_label
        self.is_instant = data_iter.is_instant
        if hasattr(data_iter, "default_bucket_key"):
            self.default_bucket_key = data_iter.default_bucket_key

    def reset(self) -> None:
        self.cur = 0
        if self.reset_internal:
            self.data_iter.reset()

    def next(self) -> DataBatch:
        if not self.iter_next():
            raise StopIteration
        if any(is_replaced(self, name, method) for name, method in _GETTERS.items()):
            return DataBatch(self.getdata(), self.getlabel(), self.getpad(), self.getindex())
        assert self.current_batch is not None
        return self.current_batch

    def iter_next(self) -> bool:
        if self.cur == self.size:
            return False
        batch = _next_or_none(self.data_iter)
        if batch is None:
            self.data_iter.reset()
            batch = _next_or_none(self.data_iter)
            if batch is None:
                raise ValueError("ResizeIter: data_iter is empty, even after a reset")
        self.current_batch = batch
        self.cur += 1
        return True

    def state(self) -> dict[str, Any]:
        return {"cur": self.cur, "size": self.size, "data_iter": self.data_iter.state()}

    def set_state(self, state: dict[str, Any]) -> None:
        check_state(state, {"size": self.size})
        self.data_iter.set_state(state["data_iter"])
        self.cur = int(state["cur"])


class PrefetchingIter(PendingIterator[DataBatch], BatchIter):
    """Fetches the next batch of other iterators in the background, and concatenates their lists of arrays.

    A fetch's error is raised when its batch is requested. The program does not wait at its exit for batches that were
    not requested.

    Args:
        iters: an iterator, or several with equal numbers of batches.
        rename_data: for each iterator, a dict from names of its inputs to new names.
        rename_label: the same, for the labels.

    Raises:
        ValueError: there are no iterators; or, in :meth:`next`, they differ in length.
    """

    def __init__(
        self,
        iters: DataIter | Sequence[DataIter],
        rename_data: Sequence[Mapping[str, str]] | None = None,
        rename_label: Sequence[Mapping[str, str]] | None = None,
    ) -> None:
        self.iters: list[DataIter] = [iters] if isinstance(iters, DataIter) else list(iters)
        if not self.iters:
            raise ValueError("PrefetchingIter: there are no iterators")
        PendingIterator.__init__(self)
        BatchIter.__init__(self, self.iters[0].batch_size)
        self.rename_data = rename_data
        self.rename_label = rename_label
        # One variable per iterator orders its fetches and resets.
        self._variables = [engine.Variable(f"prefetch {index}") for index in range(len(self.iters))]
        self._ahead = self._fetch()

    def _push(self, name: str, calls: Sequence[Sequence[Any]]) -> _HandleGroup:
        """Enqueue a call, as (function, *arguments), for each iterator."""
        return _HandleGroup(
            engine.push(_in_thread(*call), writes=[variable], name=name)
            for call, variable in zip(calls, self._variables, strict=True)
        )

    def _fetch(self) -> _HandleGroup:
        return self._push("prefetch", [(_next_and_state, iterator) for iterator in self.iters])

    @property
    def provide_data(self) -> list[DataDesc]:
        """Names, shapes and dtypes of the inputs of a batch."""
        return _rename([iterator.provide_data for iterator in self.iters], self.rename_data)

    @property
    def provide_label(self) -> list[DataDesc]:
        """Names, shapes and dtypes of the labels of a batch."""
        return _rename([iterator.provide_label for iterator in self.iters], self.rename_label)

    def reset(self) -> None:
        self._push("reset", [(iterator.reset,) for iterator in self.iters])
        self._ahead = self._fetch()

    def next(self) -> DataBatch:
        return self._take()

    async def __anext__(self) -> DataBatch:
        return await self._take_async()

    def _head(self) -> _HandleGroup:
        return self._ahead

    def state(self) -> list[Any]:
        """Return the state of the iterators before the next batch; waits for that batch.

        Raises:
            NotImplementedError: an iterator cannot save its position.
        """
        states = [state for _, state in self._ahead.wait()]
        for state in states:
            if isinstance(state, NotImplementedError):
                raise state
        return states

    def set_state(self, state: list[Any]) -> None:
        if len(state) != len(self.iters):
            raise ValueError(f"PrefetchingIter: the state has {len(state)} iterators, expected {len(self.iters)}")
        calls = [(iterator.set_state, inner) for iterator, inner in zip(self.iters, state, strict=True)]
        self._push("set_state", calls).wait()
        self._ahead = self._fetch()

    def _pop(self, result: Any) -> DataBatch:
        if isinstance(result, Failure):
            raise result.error
        results: list[DataBatch | Exception | None] = [batch for batch, _ in result]
        for batch in results:
            if isinstance(batch, Exception):
                raise batch
        batches = [batch for batch in results if isinstance(batch, DataBatch)]
        if not batches:
            raise StopIteration
        if len(batches) < len(results) or len({batch.pad for batch in batches}) > 1:
            raise ValueError("PrefetchingIter: the iterators differ in their number of samples")
        self._ahead = self._fetch()
        self.current_batch = DataBatch(
            [array for batch in batches for array in batch.data or ()],
            [array for batch in batches for array in batch.label or ()],
            batches[0].pad, batches[0].index, provide_data=self.provide_data, provide_label=self.provide_label,
        )  # fmt: skip
        return self.current_batch


class _HandleGroup(tuple[engine.Handle[Any], ...]):
    """The handles of several operations, awaited together."""

    def __await__(self) -> Generator[Any, None, list[Any]]:
        results = []
        for handle in self:
            results.append((yield from handle.__await__()))
        return results

    def wait(self) -> list[Any]:
        """Block until all operations are complete; return their results."""
        return [handle.wait() for handle in self]


def _next_and_state(iterator: DataIter) -> tuple[DataBatch | Exception | None, Any]:
    """Return the iterator's next batch (or error, or None), and its state before that batch."""
    try:
        state = iterator.state()
    except NotImplementedError as error:
        state = error
    try:
        return _next_or_none(iterator), state
    except Exception as error:  # raised when the batch is requested, if ever
        return error, state


# -- threads -----------------------------------------------------------------------------------------------

_EXIT_TIMEOUT = 1.0
"""Time limit in seconds for running calls at the program's exit."""


class _DaemonCalls:
    """Calls that run in daemon threads.

    Python waits at its exit for pools' threads, but not for daemon threads. A data source may never answer.
    """

    def __init__(self) -> None:
        self._futures: weakref.WeakSet[asyncio.Future[Any]] = weakref.WeakSet()
        self._threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._is_closed = False

    async def call(self, function: Callable[..., object], *args: object) -> Any:
        """Return the result of a function, or raise its error; return `_NOTHING` once the program exits."""
        future = asyncio.get_running_loop().create_future()
        self._futures.add(future)
        if self._is_closed:  # checked after end() can see the response
            return _NOTHING
        thread = threading.Thread(target=_call_into, args=(future, function, args), name="flowmx-prefetch", daemon=True)
        thread.start()
        self._threads.add(thread)
        return await future

    def end(self) -> None:
        """Cancel all waits for calls, and wait briefly for running calls."""
        self._is_closed = True
        for future in list(self._futures):
            _set_result(future, _NOTHING, None)
        end = time.monotonic() + _EXIT_TIMEOUT
        for thread in list(self._threads):
            thread.join(max(0.0, end - time.monotonic()))


_NOTHING = (None, None)
"""No batch and no state."""
_calls = _DaemonCalls()
process_hooks.at_exit(_calls.end)  # before the engine's exit handler, which would wait for these operations


def _call_into(future: asyncio.Future[Any], function: Callable[..., object], args: tuple[object, ...]) -> None:
    try:
        result = function(*args)
    except BaseException as error:  # any error of the user's iterator is the result
        _set_result(future, None, error)
    else:
        _set_result(future, result, None)


def _set_result(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    """Complete a future from another thread, unless it is done or its loop is closed."""

    def complete() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    with contextlib.suppress(RuntimeError):
        future.get_loop().call_soon_threadsafe(complete)


def _in_thread(function: Callable[..., object], *args: object) -> Any:
    """Make a coroutine function that calls a function in a daemon thread."""
    return partial(_calls.call, function, *args)


def _rename(descs: list[list[Any]], names: Sequence[Mapping[str, str]] | None) -> list[DataDesc]:
    results = []
    for index, part in enumerate(descs):
        for item in part:
            desc = item if isinstance(item, DataDesc) else DataDesc(*item)
            name = names[index][desc.name] if names is not None else desc.name
            results.append(DataDesc(name, desc.shape, desc.dtype, desc.layout))
    return results
