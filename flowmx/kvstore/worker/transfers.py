"""Operations on keys: they make items to send out of arrays. They run on the session's loop."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from flowmx.comm.frames import Tensor
from flowmx.engine import Operation
from flowmx.errors import KVStoreError
from flowmx.kvstore.shards import Shard
from flowmx.kvstore.worker.coalescing import Group
from flowmx.kvstore.worker.keys import KeyState
from flowmx.kvstore.worker.outbox import Exchange, Item
from flowmx.kvstore.worker.push_compression import Packed
from flowmx.kvstore.worker.push_order import PushOrder, PushRecord
from flowmx.kvstore.worker.shared_windows import Windows
from flowmx.ndarray.core import BaseArray
from flowmx.ops.registry.dtypes import name_of
from flowmx.ops.sparse.shapes import SparseShape

__all__ = ["SMALL", "Transfers", "check_dtype", "nbytes_of"]

SMALL = 64 << 10
"""A pushed gradient of at most this many bytes is copied, so that its array is released at once."""

Targets = Sequence[Sequence[BaseArray]]


class Transfers:
    """Makes items to send out of arrays.

    Args:
        submit: sends items, from any thread.
        windows: the windows to values on this machine.
    """

    def __init__(self, submit: Callable[[list[Item]], object], windows: Windows) -> None:
        self._submit = submit
        self._windows = windows
        self.order = PushOrder()
        self.broken: BaseException | None = None
        """The error of ``set_optimizer``, raised by every push and pull until another call of it succeeds."""

    def _check(self, entry: KeyState | None = None, source: object = None) -> None:
        """Check that ``set_optimizer`` has not failed, and that a pushed array has the key's dtype."""
        if self.broken is not None:
            raise KVStoreError(str(self.broken)) from self.broken
        if entry is not None and source is not None:
            check_dtype(entry, source)

    def _states_before(self, pushes: Sequence[PushRecord]) -> list[Any] | None:
        """Return the optimizer's state before each of some pushes, or None if servers know it."""
        states = self.order.before(pushes) if pushes else []
        return states if any(state is not None for state in states) else None

    def count_failed_pushes(self, operation: Operation) -> Iterator[tuple[Shard, int]]:
        """Count the pushes of an operation that failed before sending them; yield each shard and its number."""
        if getattr(operation.function, "__func__", None) not in _PUSHES:
            return
        target: KeyState | Group = operation.arguments[0]
        target.advance()
        for argument in operation.arguments:
            if isinstance(argument, tuple) and argument and isinstance(argument[0], PushRecord):
                self.order.skip(argument)
        for entry in (target,) if isinstance(target, KeyState) else target.entries:
            yield from zip(entry.shards, entry.numbers, strict=True)

    # -- one key ---------------------------------------------------------------------------------------

    def push(
        self, entry: KeyState, source: object, exchange: Exchange, priority: int, records: Sequence[PushRecord] = ()
    ) -> None:  # fmt: skip
        """Send a push; a small operation runs on the pushing thread."""
        self._check(entry, source)
        tensors = _tensors(entry, source, np.array if nbytes_of(source) <= SMALL else np.asarray)
        entry.advance()
        self._send("push", entry, exchange, priority, tensors, source, before=self._states_before(records))

    def pushpull(
        self, entry: KeyState, source: object, target: BaseArray, priority: int, records: Sequence[PushRecord] = ()
    ) -> Exchange:  # fmt: skip
        """Send a push, and receive the value into an array."""
        self._check(entry, source)
        exchange = Exchange(len(entry.shards))
        tensors, targets = _tensors(entry, source, np.asarray), entry.pieces(target.raw_for_writing())
        entry.advance()
        self._send("pushpull", entry, exchange, priority, tensors, source, targets, self._states_before(records))
        return exchange

    def pull(self, entry: KeyState, target: BaseArray, priority: int) -> Exchange:
        """Receive the value into an array."""
        self._check(entry)
        exchange = Exchange(len(entry.shards))
        self._send("pull", entry, exchange, priority, targets=entry.pieces(target.raw_for_writing()))
        return exchange

    def pull_rows(self, entry: KeyState, target: BaseArray, rows: BaseArray, priority: int) -> Exchange:
        """Receive selected rows into an array; its other rows become zero, or are not stored if it is row_sparse."""
        self._check(entry)
        row_ids = rows.raw().astype(np.int64).reshape(-1)
        if not (row_ids[1:] > row_ids[:-1]).all():
            row_ids = np.unique(row_ids)
        count = entry.shape[0]
        if row_ids.size and (row_ids[0] < 0 or row_ids[-1] >= count):
            out_of_range = row_ids[(row_ids < 0) | (row_ids >= count)]
            raise IndexError(
                f"row_sparse_pull: row {int(out_of_range[0])} of key {entry.key!r} is out of range: it has {count} rows"
            )
        take = partial(_store_rows if isinstance(target.dims, SparseShape) else _scatter, target, row_ids)
        if entry.has_rows:
            return self._receive_rows(entry, take, row_ids, priority)
        value = np.empty(entry.shape, entry.dtype)  # split within rows: pull the whole key
        exchange = Exchange(len(entry.shards), lambda: take(value[row_ids]))
        self._send("pull", entry, exchange, priority, targets=entry.pieces(value))
        return exchange

    def _receive_rows(self, entry: KeyState, take: Callable[[Any], object], row_ids: Any, priority: int) -> Exchange:
        values = np.empty((len(row_ids), *entry.shape[1:]), entry.dtype)
        items, exchange = [], Exchange(1, lambda: take(values))
        for shard, number in zip(entry.shards, entry.numbers, strict=True):
            first, last = shard.start // max(entry.row, 1), shard.stop // max(entry.row, 1)
            begin, end = np.searchsorted(row_ids, [first, last])
            ids = row_ids[begin:end] - first
            if begin < end and not self._windows.read(shard, number, ids, values[begin:end]):
                self._windows.request(shard, entry.shape_of(shard), entry.dtype)
                tensor, target = Tensor.of(ids), values[begin:end]
                items.append(Item("row_sparse_pull", shard, number, priority, [exchange], tensor, None, target))
        exchange.count_responses(1 - len(items))
        if items:
            self._submit(items)
        return exchange

    def _send(
        self, operation: str, entry: KeyState, exchange: Exchange, priority: int, tensors: Sequence[Tensor] = (),
        source: Any = None, targets: Sequence[Any] = (), before: list[Any] | None = None,
    ) -> None:  # fmt: skip
        before = None if before is None else before[0]
        packing, items = getattr(source, "config", None), []
        for piece, (shard, number) in enumerate(zip(entry.shards, entry.numbers, strict=True)):
            tensor, target = tensors[piece] if tensors else None, targets[piece] if targets else None
            items.append(Item(operation, shard, number, priority, [exchange], tensor, packing, target, None, before))
        self._submit(items)

    # -- many small keys -------------------------------------------------------------------------------

    def push_group(
        self, group: Group, sources: Sequence[BaseArray], exchange: Exchange, priority: int,
        records: Sequence[PushRecord] = (),
    ) -> None:  # fmt: skip
        """Send pushes of all keys of a group; small gradients are copied, as in :meth:`push`."""
        self._check()
        tensor = group.gather(sources)
        group.advance()
        self._submit([group.item("push", exchange, priority, tensor, before=self._states_before(records))])

    def pushpull_group(
        self, group: Group, sources: Sequence[BaseArray], targets: Targets, priority: int,
        records: Sequence[PushRecord] = (),
    ) -> Exchange:  # fmt: skip
        """Send pushes of all keys of a group, and receive their values into arrays."""
        self._check()
        tensor = group.gather(sources)
        group.advance()
        return self._receive_group("pushpull", group, targets, priority, tensor, self._states_before(records))

    def pull_group(self, group: Group, targets: Targets, priority: int) -> Exchange:
        """Receive the values of all keys of a group into arrays."""
        self._check()
        return self._receive_group("pull", group, targets, priority, None)

    def _receive_group(
        self, operation: str, group: Group, targets: Targets, priority: int, tensor: Tensor | None,
        before: list[Any] | None = None,
    ) -> Exchange:  # fmt: skip
        values = np.empty(group.size, group.dtype)
        exchange = Exchange(1, lambda: group.scatter(values, targets))
        self._submit([group.item(operation, exchange, priority, tensor, values, before)])
        return exchange


_PUSHES = (Transfers.push, Transfers.pushpull, Transfers.push_group, Transfers.pushpull_group)


def nbytes_of(source: object) -> int:
    """Return the size of a pushed array in bytes; 0 for a compressed gradient, whose memory nothing else uses."""
    return source.element_type.itemsize * math.prod(source.dims) if isinstance(source, BaseArray) else 0


def check_dtype(entry: KeyState, source: object) -> None:
    """Check the dtype of a pushed array here: if a server rejected a counted push, a pull would wait for it forever."""
    if isinstance(source, BaseArray) and source.element_type != entry.dtype:
        raise KVStoreError(
            f"push: an array of {name_of(source.element_type)} cannot be pushed to the value of key {entry.key!r}, "
            f"which is {name_of(entry.dtype)}: cast it with astype"
        )


def _tensors(entry: KeyState, source: Any, convert: Callable[[Any], Any]) -> Sequence[Tensor]:
    if isinstance(source, Packed):
        return source.tensors
    return [Tensor.of(piece) for piece in entry.pieces(convert(source.raw()))]


def _scatter(target: BaseArray, rows: object, values: object) -> None:
    result = target.raw_for_writing()
    result[...] = 0
    result[rows] = values


def _store_rows(target: BaseArray, rows: Any, values: Any) -> None:
    content = importlib.import_module("flowmx.ops.sparse.content").Rows
    target.storage.array = content(values.astype(target.element_type, copy=False), rows)
