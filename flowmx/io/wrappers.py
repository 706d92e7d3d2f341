"""Iterators over other iterators."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
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

    def _put_together(self, batches: list[DataBatch | None], stop: type[Exception]) -> DataBatch:
        found = [batch for batch in batches if batch is not None]
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


def _next_and_state(iterator: DataIter) -> tuple[DataBatch | None, Any]:
    """The next batch, and where the iterator stood before."""
    try:
        state = iterator.state()
    except NotImplementedError as error:
        state = error
    return _next_or_none(iterator), state


def _aside(function: Any, *args: Any) -> Any:
    """A coroutine function that calls it in a thread of its own: neither the engine nor a loop waits for it."""

    async def run() -> Any:
        return await asyncio.to_thread(function, *args)

    return run


def _renamed(described: list[list[Any]], names: Sequence[Mapping[str, str]] | None) -> list[DataDesc]:
    found = []
    for index, part in enumerate(described):
        for each in part:
            one = each if isinstance(each, DataDesc) else DataDesc(*each)
            name = names[index][one.name] if names is not None else one.name
            found.append(DataDesc(name, one.shape, one.dtype, one.layout))
    return found
