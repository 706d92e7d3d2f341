"""Operations on keys: arrays become items to send. Runs on the session's loop."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from flowmx.comm.frames import Tensor
from flowmx.errors import KVStoreError
from flowmx.kvstore.worker.groups import Group
from flowmx.kvstore.worker.keys import KeyState
from flowmx.kvstore.worker.outbox import Exchange, Item
from flowmx.kvstore.worker.windows import Windows
from flowmx.ndarray.core import BaseArray
from flowmx.ops.registry.dtypes import name_of
from flowmx.ops.sparse.shapes import SparseShape

__all__ = ["SMALL", "Transfers", "check_dtype", "nbytes_of"]

SMALL = 64 << 10
"""Bytes up to which a pushed gradient is copied, so that its array is free at once."""

Targets = Sequence[Sequence[BaseArray]]


class Transfers:
    """Makes items of arrays.

    Args:
        submit: sends items; from any thread.
        windows: to values that can be read here.
    """

    def __init__(self, submit: Callable[[list[Item]], object], windows: Windows) -> None:
        self._submit = submit
        self._windows = windows

    # -- one key ---------------------------------------------------------------------------------------

    def push(self, entry: KeyState, source: Any, exchange: Exchange, priority: int) -> None:
        """Send a push; where it is run at once, on the thread that pushes."""
        check_dtype(entry, source)
        entry.advance()
        tensors = _tensors(entry, source, np.array if nbytes_of(source) <= SMALL else np.asarray)
        self._send("push", entry, exchange, priority, tensors, source)

    def pushpull(self, entry: KeyState, source: Any, target: BaseArray, priority: int) -> Exchange:
        """Send a push, and receive the value into an array."""
        check_dtype(entry, source)
        entry.advance()
        exchange = Exchange(len(entry.shards))
        tensors = _tensors(entry, source, np.asarray)
        self._send("pushpull", entry, exchange, priority, tensors, source, entry.pieces(target._written()))
        return exchange

    def pull(self, entry: KeyState, target: BaseArray, priority: int) -> Exchange:
        """Receive the value into an array."""
        exchange = Exchange(len(entry.shards))
        self._send("pull", entry, exchange, priority, targets=entry.pieces(target._written()))
        return exchange

    def pull_rows(self, entry: KeyState, target: BaseArray, rows: BaseArray, priority: int) -> Exchange:
        """Receive chosen rows into an array; its other rows become zeros, or are not stored where it is row_sparse."""
        wanted = rows._read().astype(np.int64).reshape(-1)
        if not (wanted[1:] > wanted[:-1]).all():
            wanted = np.unique(wanted)
        count = entry.shape[0]
        if wanted.size and (wanted[0] < 0 or wanted[-1] >= count):
            wrong = wanted[(wanted < 0) | (wanted >= count)]
            raise IndexError(f"row_sparse_pull: row {int(wrong[0])} of key {entry.key!r}, which has {count} rows")
        take = partial(_store_rows if isinstance(target._shape, SparseShape) else _scatter, target, wanted)
        if entry.has_rows:
            return self._receive_rows(entry, take, wanted, priority)
        whole = np.empty(entry.shape, entry.dtype)  # cut between rows: all of it comes
        exchange = Exchange(len(entry.shards), lambda: take(whole[wanted]))
        self._send("pull", entry, exchange, priority, targets=entry.pieces(whole))
        return exchange

    def _receive_rows(self, entry: KeyState, take: Callable[[Any], object], wanted: Any, priority: int) -> Exchange:
        chosen = np.empty((len(wanted), *entry.shape[1:]), entry.dtype)
        items, exchange = [], Exchange(1, lambda: take(chosen))
        for shard, number in zip(entry.shards, entry.numbers, strict=True):
            first, last = shard.start // max(entry.row, 1), shard.stop // max(entry.row, 1)
            begin, end = np.searchsorted(wanted, [first, last])
            ids = wanted[begin:end] - first
            if begin < end and not self._windows.read(shard, number, ids, chosen[begin:end]):
                self._windows.want(shard, entry.shape_of(shard), entry.dtype)
                tensor, target = Tensor.of(ids), chosen[begin:end]
                items.append(Item("row_sparse_pull", shard, number, priority, [exchange], tensor, None, target))
        exchange.answered(1 - len(items))
        if items:
            self._submit(items)
        return exchange

    def _send(
        self, operation: str, entry: KeyState, exchange: Exchange, priority: int, tensors: Sequence[Tensor] = (),
        source: Any = None, targets: Sequence[Any] = (),
    ) -> None:  # fmt: skip
        packing, items = getattr(source, "config", None), []
        for piece, (shard, number) in enumerate(zip(entry.shards, entry.numbers, strict=True)):
            tensor, target = tensors[piece] if tensors else None, targets[piece] if targets else None
            items.append(Item(operation, shard, number, priority, [exchange], tensor, packing, target))
        self._submit(items)

    # -- many small keys -------------------------------------------------------------------------------

    def push_group(self, group: Group, sources: Sequence[BaseArray], exchange: Exchange, priority: int) -> None:
        """Send pushes of all keys of a group; copies, as :meth:`push` does."""
        group.advance()
        self._submit([group.item("push", exchange, priority, group.gathered(sources))])

    def pushpull_group(self, group: Group, sources: Sequence[BaseArray], targets: Targets, priority: int) -> Exchange:
        """Send pushes of all keys of a group, and receive their values, each into any number of arrays."""
        group.advance()
        return self._receive_group("pushpull", group, targets, priority, group.gathered(sources))

    def pull_group(self, group: Group, targets: Targets, priority: int) -> Exchange:
        """Receive the values of all keys of a group, each into any number of arrays."""
        return self._receive_group("pull", group, targets, priority, None)

    def _receive_group(
        self, operation: str, group: Group, targets: Targets, priority: int, tensor: Tensor | None
    ) -> Exchange:
        values = np.empty(group.size, group.dtype)
        exchange = Exchange(1, lambda: group.scatter(values, targets))
        self._submit([group.item(operation, exchange, priority, tensor, values)])
        return exchange


def nbytes_of(source: Any) -> int:
    """Bytes of an array that is pushed; 0 for one that was compressed, whose memory is nobody else's."""
    return source._dtype.itemsize * math.prod(source._shape) if isinstance(source, BaseArray) else 0


def check_dtype(entry: KeyState, source: Any) -> None:
    """Refuse what a server would, before the push counts: a pull would wait for it for ever."""
    if isinstance(source, BaseArray) and source._dtype != entry.dtype:
        raise KVStoreError(
            f"push: an array of {name_of(source._dtype)} can not be pushed to a value of {name_of(entry.dtype)}, "
            f"that of key {entry.key!r}: cast it with astype"
        )


def _tensors(entry: KeyState, source: Any, taken: Callable[[Any], Any]) -> Sequence[Tensor]:
    if not isinstance(source, BaseArray):
        return source.tensors  # type: ignore[no-any-return]
    return [Tensor.of(piece) for piece in entry.pieces(taken(source._read()))]


def _scatter(target: BaseArray, rows: Any, chosen: Any) -> None:
    result = target._written()
    result[...] = 0
    result[rows] = chosen


def _store_rows(target: BaseArray, rows: Any, chosen: Any) -> None:
    content = importlib.import_module("flowmx.ops.sparse.content").Rows
    target._storage.array = content(chosen.astype(target._dtype, copy=False), rows)
