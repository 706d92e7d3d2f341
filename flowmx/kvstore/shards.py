"""Placement of keys: the servers that keep their parts.

A big array is split evenly over all servers, so that its traffic and its updates are too; a small one lives whole on
one server, the least loaded so far. The layout depends on nothing but the keys, their shapes, their order and the
number of servers, so every worker works it out by itself and no server is asked.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from flowmx import settings

__all__ = ["Key", "Layout", "Shard", "bundles"]

Key: TypeAlias = int | str
Shape: TypeAlias = tuple[int, ...]

_ROWS_EACH = 8
"""An array is split between rows where each server gets at least so many, so that none has much more than another."""


class Shard(NamedTuple):
    """A range of a key's elements, in C order, that one server keeps.

    Attributes:
        key: the key.
        part: the number of the range among the key's own.
        home: the rank of the server that keeps it while that server is alive.
        start: its first element.
        stop: the element after its last.
        nbytes: its size.
    """

    key: Key
    part: int
    home: int
    start: int
    stop: int
    nbytes: int


class Layout:
    """The shards of all keys, added in batches.

    Every worker must add the same keys in the same batches and order, as ``kv.init`` is called; a key stays where it
    was put.

    Args:
        servers: how many servers there are.
        bound: elements from which an array is split; by default ``FLOWMX_KVSTORE_BIGARRAY_BOUND``.

    Raises:
        ValueError: there is no server, or the bound is not positive.
    """

    def __init__(self, servers: int, bound: int | None = None) -> None:
        bound = settings.get().kvstore_bigarray_bound if bound is None else bound
        if servers < 1 or bound < 1:
            raise ValueError(f"a layout over {servers} servers with a bound of {bound}: both must be at least 1")
        self.servers = servers
        self.bound = bound
        self.loads = [0] * servers
        self._shards: dict[Key, tuple[Shard, ...]] = {}

    def __getitem__(self, key: Key) -> tuple[Shard, ...]:
        """The shards of a key, by their order in the array.

        Raises:
            KeyError: the key was never added.
        """
        try:
            return self._shards[key]
        except KeyError:
            raise KeyError(f"key {key!r} is on no server: call init with it first") from None

    def __contains__(self, key: object) -> bool:
        return key in self._shards

    def __iter__(self) -> Iterator[Key]:
        return iter(self._shards)

    def add(self, shapes: Mapping[Key, Shape], itemsize: int = 4, whole: bool = False) -> None:
        """Place a batch of keys, the biggest first whatever the order within the batch.

        Args:
            shapes: from key to shape.
            itemsize: bytes of an element.
            whole: split none of them, however big.

        Raises:
            ValueError: a key is there already.
        """
        known = [key for key in shapes if key in self._shards]
        if known:
            raise ValueError(f"duplicate init of the keys {known}")
        for key in sorted(shapes, key=lambda key: (-math.prod(shapes[key]), stable_hash(key))):
            self._shards[key] = tuple(self._place(key, shapes[key], itemsize, whole))

    def _place(self, key: Key, shape: Shape, itemsize: int, whole: bool) -> Iterator[Shard]:
        size = math.prod(shape)
        if size >= self.bound and self.servers > 1 and not whole:
            ranges = _split(shape, self.servers)
        else:
            ranges = {self._least_loaded(key): (0, size)}
        for part, (home, (start, stop)) in enumerate(ranges.items()):
            nbytes = (stop - start) * itemsize
            self.loads[home] += nbytes
            yield Shard(key, part, home, start, stop, nbytes)

    def _least_loaded(self, key: Key) -> int:
        first = stable_hash(key) % self.servers  # where there is a tie, keys should not all go to server 0
        return min(range(self.servers), key=lambda rank: (self.loads[rank], (rank - first) % self.servers))


def bundles(shards: Iterable[Shard], limit: int | None = None) -> list[list[Shard]]:
    """Gather small shards of one server, so that a request carries many.

    Args:
        shards: in the order in which they are wanted, which the bundles keep.
        limit: bytes of a request's small shards; by default ``FLOWMX_KVSTORE_REDUCE_BUCKET_SIZE``. What is not
            smaller travels by itself.

    Returns:
        For each request its shards, all of one server; in the order of their first shards.
    """
    limit = settings.get().kvstore_reduce_bucket_size * 1024 if limit is None else limit
    found: list[list[Shard]] = []
    filling: dict[int, tuple[list[Shard], int]] = {}  # server -> the bundle that still has room, and its bytes
    for shard in shards:
        bundle, nbytes = filling.get(shard.home, ([], 0))
        if bundle and nbytes + shard.nbytes <= limit:
            bundle.append(shard)
            filling[shard.home] = (bundle, nbytes + shard.nbytes)
            continue
        found.append([shard])
        if shard.nbytes < limit:
            filling[shard.home] = (found[-1], shard.nbytes)
    return found


def stable_hash(key: Key) -> int:
    """A hash that is the same in every process and language: SHA-256 of ``"i3"`` or ``"sname"``, its first 8 bytes."""
    text = f"i{key}" if isinstance(key, int) else f"s{key}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def _split(shape: Shape, servers: int) -> dict[int, Shape]:
    rows = shape[0] if len(shape) > 1 else 0
    unit = math.prod(shape[1:]) if rows >= _ROWS_EACH * servers else 1
    units = math.prod(shape) // unit
    cuts: Sequence[int] = [units * rank // servers * unit for rank in range(servers + 1)]
    return {rank: (cuts[rank], cuts[rank + 1]) for rank in range(servers) if cuts[rank] < cuts[rank + 1]}
