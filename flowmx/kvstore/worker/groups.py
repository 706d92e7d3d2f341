"""Groups: small keys of one server that are sent as one tensor, since a key by itself costs more than its bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flowmx.comm.frames import Tensor
from flowmx.kvstore.shards import Key, Shard
from flowmx.kvstore.worker.keys import KeyState
from flowmx.kvstore.worker.outbox import MOST, Exchange, Item
from flowmx.ndarray.core import BaseArray

__all__ = ["Group", "Groups", "one_or_all", "runs"]

_EACH = 64 << 10
"""Bytes up to which a key is small."""

_ALL = 1 << 20
"""Bytes of a group."""

_RUN = 64 << 10
"""Bytes of a network's parameters that travel together though their gradients come one after the other."""


class Group:
    """Keys that lie whole on one server, of one dtype.

    Args:
        number: this worker's own for it.
        entries: the keys.
    """

    def __init__(self, number: int, entries: Sequence[KeyState]) -> None:
        self.number = number
        self.entries = entries
        self.dtype = entries[0].dtype
        self.home = entries[0].shards[0].home
        sizes = [shard.stop - shard.start for entry in entries for shard in entry.shards]
        stops = np.cumsum(sizes).tolist()
        self.size: int = stops[-1]
        self._places = [
            (stop - size, stop, entry.shape) for size, stop, entry in zip(sizes, stops, entries, strict=True)
        ]
        # Stands for all of them where one part is asked for; no key has a part of such a number.
        self.shard = Shard(entries[0].key, -1 - number, self.home, 0, self.size, self.size * self.dtype.itemsize)
        self.parts = [(entry.key, entry.shards[0].part, self.home) for entry in entries]

    def advance(self) -> None:
        """Count one more push of each key."""
        for entry in self.entries:
            entry.numbers[0] += 1

    def gathered(self, sources: Sequence[BaseArray]) -> Tensor:
        """Copies of arrays, one after the other."""
        return Tensor.of(np.concatenate([source._read().reshape(-1) for source in sources]))

    def scatter(self, values: Any, targets: Sequence[Sequence[BaseArray]]) -> None:
        """Write values, one after the other, into arrays."""
        for (start, stop, shape), arrays in zip(self._places, targets, strict=True):
            value = values[start:stop].reshape(shape)
            for array in arrays:
                np.copyto(array._written(), value, casting="unsafe")

    def item(
        self, operation: str, exchange: Exchange, priority: int, tensor: Tensor | None = None, target: Any = None
    ) -> Item:
        """The joined item that is sent for all of them."""
        numbers = one_or_all([entry.numbers[0] for entry in self.entries])
        return Item(operation, self.shard, numbers, priority, [exchange], tensor, None, target, self)


class Groups:
    """The groups of a worker, each made once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Key, ...], Group] = {}

    def divide(
        self, entries: Sequence[KeyState], fits: Iterable[bool]
    ) -> tuple[list[int], list[tuple[Group, list[int]]]]:
        """Divide keys into those that travel alone, and groups.

        Args:
            entries: the keys of one call.
            fits: of each, whether its arrays allow for a group.

        Returns:
            The positions of keys that travel alone; and the groups, each with its keys' positions.
        """
        alone: list[int] = []
        filling: dict[tuple[int, Any], list[list[int]]] = {}
        room: dict[tuple[int, Any], int] = {}
        for position, (entry, may) in enumerate(zip(entries, fits, strict=True)):
            nbytes = entry.shards[0].nbytes
            if not may or len(entry.shards) > 1 or nbytes > _EACH:
                alone.append(position)
                continue
            kind = entry.shards[0].home, entry.dtype
            if room.get(kind, 0) < nbytes or len(filling[kind][-1]) >= MOST:
                filling.setdefault(kind, []).append([])
                room[kind] = _ALL
            filling[kind][-1].append(position)
            room[kind] -= nbytes
        groups = []
        for positions in (each for found in filling.values() for each in found):
            if len(positions) == 1:
                alone += positions
            else:
                groups.append((self._of([entries[position] for position in positions]), positions))
        return alone, groups

    def _of(self, entries: list[KeyState]) -> Group:
        keys = tuple(entry.key for entry in entries)
        if keys not in self._known:
            self._known[keys] = Group(len(self._known), entries)
        return self._known[keys]


def runs(sizes: Sequence[int]) -> list[slice]:
    """Neighbours that may travel together although their gradients come one after the other.

    Args:
        sizes: bytes of the keys of a network, in the order of its layers.
    """
    found: list[slice] = []
    start = filled = 0
    for place, nbytes in enumerate(sizes):
        if place > start and filled + nbytes > _RUN:
            found.append(slice(start, place))
            start, filled = place, 0
        filled += nbytes
    return [*found, slice(start, len(sizes))] if sizes else found


def one_or_all(numbers: list[int]) -> int | tuple[int, ...]:
    """One number that holds for all, where there is one."""
    return numbers[0] if numbers.count(numbers[0]) == len(numbers) else tuple(numbers)
