"""Priority queue of items for the server of one home, which joins small parts into one request. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from flowmx.comm.frames import Tensor
from flowmx.kvstore.shards import Shard
from flowmx.kvstore.worker.actor import Deferred

if TYPE_CHECKING:
    from flowmx.kvstore.worker.groups import Group

__all__ = ["MOST", "Exchange", "Item", "Outbox"]

MOST = 2048
"""Parts of one request: fewer than a message may have tensors."""


class Exchange(Deferred):
    """An operation of the engine that is over when all of its parts were answered.

    Args:
        parts: how many there are.
        finish: is called then, to make something of the answers.
    """

    def __init__(self, parts: int, finish: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._left = parts
        self._finish = finish
        self.answered(0)

    def answered(self, parts: int = 1) -> None:
        """Count answered parts."""
        self._left -= parts
        if self._left > 0 or self.ended:
            return
        try:
            self._finish()
        except Exception as error:
            self.end(error)
        else:
            self.end()


@dataclass(slots=True, eq=False)
class Item:
    """One part of one key, or a group of small keys, to be sent.

    Attributes:
        operation: ``"push"``, ``"pull"``, ``"pushpull"`` or ``"row_sparse_pull"``.
        shard: which part.
        number: of the push, or of the last one that must be in the value; of a group, one for each key, or for all.
        priority: higher is sent earlier.
        exchanges: whom to tell of the answer.
        tensor: what is pushed (or row ids).
        packing: how it was compressed.
        target: where the answer goes.
        group: the keys, where this is one; the shard then only stands for them.
    """

    operation: str
    shard: Shard
    number: int | tuple[int, ...]
    priority: int
    exchanges: list[Exchange]
    tensor: Tensor | None = None
    packing: Mapping[str, Any] | None = None
    target: np.ndarray[Any, Any] | None = None
    group: Group | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that travel to the server."""
        return 0 if self.tensor is None else self.tensor.data.nbytes


@dataclass
class Outbox:
    """Items of one home.

    Attributes:
        limit: bytes up to which small items travel together; one that is not smaller goes alone.
    """

    limit: int
    _heap: list[tuple[int, int, Item]] = field(default_factory=list)
    nbytes: int = 0
    """Of what waits, the way to the server or back, whichever is more."""
    _serial: int = 0
    _pushes: dict[tuple[Any, int], Item] = field(default_factory=dict)
    """Of each part, the push that has not been sent."""

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Item]:
        return (item for _, _, item in self._heap)

    def put(self, item: Item) -> None:
        """Add an item; a pull that wants what an unsent push makes goes along with that."""
        part = item.shard[:2]
        if item.operation == "pull" and (push := self._pushes.pop(part, None)) is not None:
            if push.number == item.number:
                push.operation, push.target = "pushpull", item.target
                push.exchanges += item.exchanges
                self.nbytes += max(_answer(push) - push.nbytes, 0)
                return
            self._pushes[part] = push
        if item.operation == "push":
            self._pushes[part] = item
        self._serial += 1
        self.nbytes += _most(item)
        heapq.heappush(self._heap, (-item.priority, self._serial, item))

    @property
    def is_full(self) -> bool:
        """True if there is enough for a request of the largest size."""
        return self.nbytes >= self.limit or len(self._heap) >= MOST

    def take(self) -> list[Item]:
        """Remove and return what the next request carries: items of one operation; empty where nothing waits."""
        if not self._heap:
            return []
        first = self._pop()
        bundle, nbytes = [first], _most(first)
        while self._heap and len(bundle) < MOST and first.group is None:
            item = self._heap[0][2]
            nbytes += _most(item)
            if item.operation != first.operation or item.group is not None or nbytes > self.limit:
                break
            bundle.append(self._pop())
        return bundle

    def _pop(self) -> Item:
        item = heapq.heappop(self._heap)[2]
        self.nbytes -= _most(item)
        if self._pushes.get(item.shard[:2]) is item:
            del self._pushes[item.shard[:2]]
        return item


def _answer(item: Item) -> int:
    return 0 if item.target is None else item.target.nbytes


def _most(item: Item) -> int:
    return max(item.nbytes, _answer(item))
