"""Iterators over other iterators."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from flowmx import engine
from flowmx.data.batch_order import check_state
from flowmx.io.base import BatchIter, DataBatch, DataDesc, DataIter, _next_or_none


class ResizeIter(BatchIter):
    """Another iterator with a set number of batches in an epoch; it starts over as often as needed.

    Args:
        data_iter: the other iterator.
        size: batches in an epoch.
        reset_internal: reset the other iterator with this one.
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
        if self.cur == self.size:
            raise StopIteration
        batch = _next_or_none(self.data_iter)
        if batch is None:
            self.data_iter.reset()
            batch = _next_or_none(self.data_iter)
            if batch is None:
                raise ValueError("ResizeIter: the other iterator is empty, even after a reset")
        self.current_batch = batch
        self.cur += 1
        return batch

    def state(self) -> dict[str, Any]:
        return {"cur": self.cur, "size": self.size, "data_iter": self.data_iter.state()}

    def set_state(self, state: dict[str, Any]) -> None:
        check_state(state, {"size": self.size})
        self.data_iter.set_state(state["data_iter"])
        self.cur = int(state["cur"])


class PrefetchingIter(BatchIter):
    """Other iterators, whose next batch is always fetched in the background; their batches are put together.

    A fetch that fails does so where its batch is asked for. The end of the program waits for no batch that nobody
    has asked for.

    Args:
        iters: an iterator, or several with equal numbers of batches.
        rename_data: for each iterator, from names of its inputs to new names.
        rename_label: likewise for the labels.

    Raises:
        ValueError: no iterator; later, iterators of different lengths.
    """

    def __init__(
        self,
        iters: DataIter | Sequence[DataIter],
        rename_data: Sequence[Mapping[str, str]] | None = None,
        rename_label: Sequence[Mapping[str, str]] | None = None,
    ) -> None:
        self.iters: list[DataIter] = [iters] if isinstance(iters, DataIter) else list(iters)
        if not self.iters:
            raise ValueError("PrefetchingIter: there is no iterator")
        super().__init__(self.iters[0].batch_size)
        self.rename_data = rename_data
        self.rename_label = rename_label
        # A variable for each iterator: its fetches and resets happen one after the other, in order.
        self._variables = [engine.Variable(f"prefetch {index}") for index in range(len(self.iters))]
        self._ahead = self._fetch()

    def _push(self, name: str, calls: Sequence[Sequence[Any]]) -> list[engine.Handle]:
        """Enqueue a call, as (function, *arguments), for each iterator."""
        return [
            engine.push(_aside(*call), writes=[variable], name=name)
            for call, variable in zip(calls, self._variables, strict=True)
        ]

    def _fetch(self) -> list[engine.Handle]:
        return self._push("prefetch", [(_next_and_state, each) for each in self.iters])

    @property
    def provide_data(self) -> list[DataDesc]:
        """Describes the inputs of a batch."""
        return _renamed([each.provide_data for each in self.iters], self.rename_data)

    @property
    def provide_label(self) -> list[DataDesc]:
        """Describes the labels of a batch."""
        return _renamed([each.provide_label for each in self.iters], self.rename_label)

    def reset(self) -> None:
        self._push("reset", [(each.reset,) for each in self.iters])
        self._ahead = self._fetch()

    def next(self) -> DataBatch:
        return self._put_together([handle.wait()[0] for handle in self._ahead], StopIteration)

    async def __anext__(self) -> DataBatch:
        return self._put_together([(await handle)[0] for handle in self._ahead], StopAsyncIteration)

    def state(self) -> list[Any]:
        """The state of the iterators before the next batch; waits for that batch.

        Raises:
            NotImplementedError: one of them does not say where it stands.
        """
        found = [handle.wait()[1] for handle in self._ahead]
        for state in found:
            if isinstance(state, NotImplementedError):
                raise state
        return found

    def set_state(self, state: list[Any]) -> None:
        if len(state) != len(self.iters):
            raise ValueError(f"PrefetchingIter: the state is of {len(state)} iterators, expected {len(self.iters)}")
        calls = [(each.set_state, own) for each, own in zip(self.iters, state, strict=True)]
        for handle in self._push("set_state", calls):
            handle.wait()
        self._ahead = self._fetch()

    def _put_together(self, batches: list[DataBatch | Exception | None], stop: type[Exception]) -> DataBatch:
        for batch in batches:
            if isinstance(batch, Exception):
                raise batch
        found = [batch for batch in batches if isinstance(batch, DataBatch)]
        if not found:
            raise stop
        if len(found) < len(batches) or len({batch.pad for batch in found}) > 1:
            raise ValueError("PrefetchingIter: the iterators differ in their number of instances")
        self._ahead = self._fetch()
        self.current_batch = DataBatch(
            [array for batch in found for array in batch.data or ()],
            [array for batch in found for array in batch.label or ()],
            found[0].pad, found[0].index, provide_data=self.provide_data, provide_label=self.provide_label,
        )  # fmt: skip
        return self.current_batch


def _next_and_state(iterator: DataIter) -> tuple[DataBatch | Exception | None, Any]:
    """The next batch, or why there is none, and where the iterator stood before."""
    try:
        state = iterator.state()
    except NotImplementedError as error:
        state = error
    try:
        return _next_or_none(iterator), state
    except Exception as error:  # for whoever asks for the batch: it may be nobody
        return error, state


# -- threads -----------------------------------------------------------------------------------------------

_LAST_CALLS = 1.0
"""Seconds that the program's end waits for calls that run."""


class _Calls:
    """The calls that run in threads of their own.

    Python waits at its exit for the threads of pools, but not for these: a source of data may never answer.
    """

    def __init__(self) -> None:
        self._answers: weakref.WeakSet[asyncio.Future[Any]] = weakref.WeakSet()
        self._threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._ended = False

    async def make(self, function: Callable[..., Any], *args: Any) -> Any:
        """The result or the error of the function; nothing, once the program ends."""
        answer = asyncio.get_running_loop().create_future()
        self._answers.add(answer)
        if self._ended:  # looked at once end() can see the answer
            return _NOTHING
        thread = threading.Thread(target=_answer, args=(answer, function, args), name="flowmx-prefetch", daemon=True)
        thread.start()
        self._threads.add(thread)
        return await answer

    def end(self) -> None:
        """Let nobody wait for the calls, and those that run come to their end, where that takes but a moment."""
        self._ended = True
        for answer in list(self._answers):
            _tell(answer, _NOTHING, None)
        end = time.monotonic() + _LAST_CALLS
        for thread in list(self._threads):
            thread.join(max(0.0, end - time.monotonic()))


_NOTHING = (None, None)
"""No batch and no state."""
_calls = _Calls()
atexit.register(_calls.end)  # before the engine's end, which would wait for these operations


def _answer(answer: asyncio.Future[Any], function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        result = function(*args)
    except BaseException as error:
        _tell(answer, None, error)
    else:
        _tell(answer, result, None)


def _tell(answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Answer from another thread, unless it is answered or cancelled or its loop has ended."""

    def tell() -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    with contextlib.suppress(RuntimeError):
        answer.get_loop().call_soon_threadsafe(tell)


def _aside(function: Callable[..., Any], *args: Any) -> Any:
    """A coroutine function that calls it in a thread of its own: neither the engine nor a loop waits for it."""
    return partial(_calls.make, function, *args)


def _renamed(described: list[list[Any]], names: Sequence[Mapping[str, str]] | None) -> list[DataDesc]:
    found = []
    for index, part in enumerate(described):
        for each in part:
            one = each if isinstance(each, DataDesc) else DataDesc(*each)
            name = names[index][one.name] if names is not None else one.name
            found.append(DataDesc(name, one.shape, one.dtype, one.layout))
    return found
