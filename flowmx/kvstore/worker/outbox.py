"""A priority queue of items for the server of one home, which bundles small shards into one request.

This module does no I/O.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flowmx.comm.frames import Tensor
from flowmx.kvstore.shards import Shard
from flowmx.kvstore.worker.actor import Deferred
from flowmx.ops.registry.operators import Array

if TYPE_CHECKING:
    from flowmx.kvstore.worker.coalescing import Group

__all__ = ["MAX_SHARDS", "Exchange", "Item", "Outbox"]

MAX_SHARDS = 2048
"""Maximum number of shards of a request: less than the limit of tensors in a message."""


class Exchange(Deferred):
    """An operation of the engine that ends when all of its parts are answered.

    Args:
        parts: the number of parts.
        finish: called at the end, to process the responses.
    """

    def __init__(self, parts: int, finish: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._unanswered = parts
        self._finish = finish
        self.count_responses(0)

    def count_responses(self, parts: int = 1) -> None:
        """Count answered parts."""
        self._unanswered -= parts
        if self._unanswered > 0 or self.ended:
            return
        try:
            self._finish()
        except Exception as error:  # it becomes the error of the operation
            self.end(error)
        else:
            self.end()


@dataclass(slots=True, eq=False)
class Item:
    """A shard of a key, or a group of small keys, to be sent.

    Attributes:
        operation: ``"push"``, ``"pull"``, ``"pushpull"`` or ``"row_sparse_pull"``.
        shard: the shard.
        number: the number of the push, or of the last push that must be in the value; for a group, one for each key or
            for all.
        priority: items with higher priority are sent earlier.
        exchanges: the operations that wait for the response.
        tensor: the gradient, or row ids.
        packing: the compression of the gradient.
        target: the array for the response.
        group: the keys of a group; its shard is only a placeholder.
        before: the optimizer's state before a push, where it depends on other keys; for a group a list with one for
            each key, or None.
    """

    operation: str
    shard: Shard
    number: int | tuple[int, ...]
    priority: int
    exchanges: list[Exchange]
    tensor: Tensor | None = None
    packing: Mapping[str, Any] | None = None
    target: Array | None = None
    group: Group | None = None
    before: list[Any] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that are sent to the server."""
        return 0 if self.tensor is None else self.tensor.data.nbytes


@dataclass
class Outbox:
    """The waiting items of one home.

    Attributes:
        limit: maximum size of a bundle of small items in bytes; an item of at least this size is sent alone.
    """

    limit: int
    _heap: list[tuple[int, int, Item]] = field(default_factory=list)
    nbytes: int = 0
    """The size of the waiting items in bytes: of what is sent or of what is received, whichever is larger."""
    _serial: int = 0
    _pushes: dict[tuple[Any, int], Item] = field(default_factory=dict)
    """The unsent push of each shard."""

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Item]:
        return (item for _, _, item in self._heap)

    def put(self, item: Item) -> None:
        """Add an item; a pull of the result of an unsent push is merged into that push."""
        part = item.shard[:2]
        if item.operation == "pull" and (push := self._pushes.pop(part, None)) is not None:
            if push.number == item.number:
                push.operation, push.target = "pushpull", item.target
                push.exchanges += item.exchanges
                self.nbytes += max(_answer_bytes(push) - push.nbytes, 0)
                return
            self._pushes[part] = push
        if item.operation == "push":
            self._pushes[part] = item
        self._serial += 1
        self.nbytes += _max_bytes(item)
        heapq.heappush(self._heap, (-item.priority, self._serial, item))

    @property
    def is_full(self) -> bool:
        """True if the waiting items fill a request of the largest size."""
        return self.nbytes >= self.limit or len(self._heap) >= MAX_SHARDS

    def take(self) -> list[Item]:
        """Remove and return the items of the next request, all of one operation; empty if nothing waits."""
        if not self._heap:
            return []
        first = self._pop()
        bundle, nbytes = [first], _max_bytes(first)
        while self._heap and len(bundle) < MAX_SHARDS and first.group is None:
            item = self._heap[0][2]
            nbytes += _max_bytes(item)
            if item.operation != first.operation or item.group is not None or nbytes > self.limit:
                break
            bundle.append(self._pop())
        return bundle

    def _pop(self) -> Item:
        item = heapq.heappop(self._heap)[2]
        self.nbytes -= _max_bytes(item)
        if self._pushes.get(item.shard[:2]) is item:
            del self._pushes[item.shard[:2]]
        return item


def _answer_bytes(item: Item) -> int:
    return 0 if item.target is None else item.target.nbytes


def _max_bytes(item: Item) -> int:
    return max(item.nbytes, _answer_bytes(item))
