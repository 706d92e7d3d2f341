"""Groups: small keys of one server that are sent as one tensor, to save the cost of separate requests."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from flowmx.comm.frames import Tensor
from flowmx.kvstore.shards import Key, Shard
from flowmx.kvstore.worker.keys import KeyState
from flowmx.kvstore.worker.outbox import MAX_SHARDS, Exchange, Item
from flowmx.ndarray.core import BaseArray

__all__ = ["Group", "Groups", "one_or_all", "split_into_runs"]

_SMALL_KEY = 64 << 10
"""Maximum size of a small key in bytes."""

_GROUP_BYTES = 1 << 20
"""Maximum size of a group in bytes."""

_RUN_BYTES = 64 << 10
"""Maximum size in bytes of neighboring parameters that are sent together before all their gradients are ready."""


class Group:
    """Keys of the same dtype that are stored whole on one server.

    Args:
        number: the number of the group on this worker.
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
        # Stands for all keys where code expects one shard; no key has a shard with such a number.
        key = entries[0].shards[0].key
        self.shard = Shard(key, -1 - number, self.home, 0, self.size, self.size * self.dtype.itemsize)
        self.parts = [(shard.key, shard.part, self.home) for entry in entries for shard in entry.shards]

    def advance(self) -> None:
        """Count one more push of each key."""
        for entry in self.entries:
            entry.numbers[0] += 1

    def gather(self, sources: Sequence[BaseArray]) -> Tensor:
        """Copy flattened arrays into one tensor, one after the other."""
        return Tensor.of(np.concatenate([source.raw().reshape(-1) for source in sources]))

    def scatter(self, values: Any, targets: Sequence[Sequence[BaseArray]]) -> None:
        """Copy consecutive pieces of a flat array into the targets of each key."""
        for (start, stop, shape), arrays in zip(self._places, targets, strict=True):
            value = values[start:stop].reshape(shape)
            for array in arrays:
                np.copyto(array.raw_for_writing(), value, casting="unsafe")

    def item(
        self, operation: str, exchange: Exchange, priority: int, tensor: Tensor | None = None, target: Any = None,
        before: list[Any] | None = None,
    ) -> Item:  # fmt: skip
        """Make the joined item for all keys."""
        numbers = one_or_all([entry.numbers[0] for entry in self.entries])
        return Item(operation, self.shard, numbers, priority, [exchange], tensor, None, target, self, before)


class Groups:
    """The groups of a store; each group is made once.

    Args:
        numbers: the numbers for the worker's groups, shared by all of its stores.
    """

    def __init__(self, numbers: Iterator[int] | None = None) -> None:
        self._groups: dict[tuple[Key, ...], Group] = {}
        self._numbers = itertools.count() if numbers is None else numbers

    def divide(
        self, entries: Sequence[KeyState], fits: Iterable[bool]
    ) -> tuple[list[int], list[tuple[Group, list[int]]]]:
        """Divide keys into those that are sent alone, and groups.

        Args:
            entries: the keys of one call.
            fits: whether the arrays of each key allow a group.

        Returns:
            The positions of keys that are sent alone; and the groups with the positions of their keys.
        """
        singles: list[int] = []
        open_groups: dict[tuple[int, Any], list[list[int]]] = {}
        room: dict[tuple[int, Any], int] = {}
        for position, (entry, may_join) in enumerate(zip(entries, fits, strict=True)):
            nbytes = entry.shards[0].nbytes
            if not may_join or len(entry.shards) > 1 or nbytes > _SMALL_KEY:
                singles.append(position)
                continue
            kind = entry.shards[0].home, entry.dtype
            if kind not in room or room[kind] < nbytes or len(open_groups[kind][-1]) >= MAX_SHARDS:
                open_groups.setdefault(kind, []).append([])
                room[kind] = _GROUP_BYTES
            open_groups[kind][-1].append(position)
            room[kind] -= nbytes
        groups = []
        for positions in (positions for lists in open_groups.values() for positions in lists):
            if len(positions) == 1:
                singles += positions
            else:
                groups.append((self._find([entries[position] for position in positions]), positions))
        return singles, groups

    def _find(self, entries: list[KeyState]) -> Group:
        keys = tuple(entry.key for entry in entries)
        if keys not in self._groups:
            self._groups[keys] = Group(next(self._numbers), entries)
        return self._groups[keys]


def split_into_runs(sizes: Sequence[int]) -> list[slice]:
    """Split keys into runs of neighbors that may be sent together although their gradients are not ready at once.

    Args:
        sizes: the sizes of a network's keys in bytes, in the order of its layers.
    """
    slices: list[slice] = []
    start = filled = 0
    for position, nbytes in enumerate(sizes):
        if position > start and filled + nbytes > _RUN_BYTES:
            slices.append(slice(start, position))
            start, filled = position, 0
        filled += nbytes
    return [*slices, slice(start, len(sizes))] if sizes else slices


def one_or_all(numbers: list[int]) -> int | tuple[int, ...]:
    """Return one number if all numbers are equal, else all of them."""
    return numbers[0] if numbers.count(numbers[0]) == len(numbers) else tuple(numbers)
