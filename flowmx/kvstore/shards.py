"""Placement of keys: the servers that store their shards.

A big array is split evenly over all servers, which distributes its traffic and its updates; a small one is stored whole
on the least loaded server. The layout depends only on the keys, their shapes, their order and the number of servers, so
every worker computes it without asking a server.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from flowmx import settings

__all__ = ["Key", "Layout", "Range", "Shard", "bundles", "stable_hash"]

Key: TypeAlias = int | str
Shape: TypeAlias = tuple[int, ...]

_ROWS_EACH = 8
"""An array is split between rows where each server gets at least this many, so that the shares are nearly equal."""


class Range(NamedTuple):
    """A range of a key's elements, in C order.

    Attributes:
        start: the first element.
        stop: the element after the last one.
        shape: the shape of the whole key.
    """

    start: int
    stop: int
    shape: Shape

    @property
    def total(self) -> int:
        """The number of elements of the whole key."""
        return math.prod(self.shape)

    @property
    def part_shape(self) -> Shape:
        """The shape in which a server stores the range: whole rows where possible, so that workers can pull rows."""
        if self.stop - self.start == self.total:
            return self.shape
        row = math.prod(self.shape[1:])
        if len(self.shape) > 1 and self.start % row == 0 == self.stop % row:
            return ((self.stop - self.start) // row, *self.shape[1:])
        return (self.stop - self.start,)


class Shard(NamedTuple):
    """A range of a key's elements, in C order, that one server stores.

    Attributes:
        key: the key.
        part: the index of the range within the key.
        home: the rank of the server that stores it while that server is alive.
        start: the first element.
        stop: the element after the last one.
        nbytes: the size in bytes.
    """

    key: Key
    part: int
    home: int
    start: int
    stop: int
    nbytes: int


class Layout:
    """The shards of all keys, added in batches.

    Every worker must add the same keys in the same batches and order, as ``kv.init`` is called; a key is never moved.

    Args:
        servers: the number of servers.
        bound: arrays with at least this many elements are split; by default ``FLOWMX_KVSTORE_BIGARRAY_BOUND``.

    Raises:
        ValueError: the number of servers or the bound is not positive.
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
        """Return the shards of a key, in the order of their elements.

        Raises:
            KeyError: the key was never added.
        """
        try:
            return self._shards[key]
        except KeyError:
            raise KeyError(f"key {key!r} is not initialized: call init with it first") from None

    def __contains__(self, key: object) -> bool:
        return key in self._shards

    def __iter__(self) -> Iterator[Key]:
        return iter(self._shards)

    def add(self, shapes: Mapping[Key, Shape], itemsize: int = 4, whole: bool = False) -> None:
        """Place a batch of keys, the biggest first, independent of the order within the batch.

        Args:
            shapes: the shape of each key.
            itemsize: the size of an element in bytes.
            whole: do not split any key, however big.

        Raises:
            ValueError: a key was added before.
        """
        duplicates = [key for key in shapes if key in self._shards]
        if duplicates:
            raise ValueError(f"duplicate init of the keys {duplicates}")
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
        first = stable_hash(key) % self.servers  # with equal loads, keys must not all go to server 0
        return min(range(self.servers), key=lambda rank: (self.loads[rank], (rank - first) % self.servers))


def bundles(shards: Iterable[Shard], limit: int | None = None) -> list[list[Shard]]:
    """Bundle small shards of the same server, so that one request carries many.

    Args:
        shards: in the order in which they are needed; the bundles keep this order.
        limit: maximum size of a bundle in bytes (default: ``FLOWMX_KVSTORE_REDUCE_BUCKET_SIZE``). A shard of this size
            or more is sent alone.

    Returns:
        The shards of each request, all of one server; in the order of their first shards.
    """
    limit = settings.get().kvstore_reduce_bucket_size * 1024 if limit is None else limit
    groups: list[list[Shard]] = []
    open_bundles: dict[int, tuple[list[Shard], int]] = {}  # server -> the bundle that still has room, and its bytes
    for shard in shards:
        bundle, nbytes = open_bundles.get(shard.home, ([], 0))
        if bundle and nbytes + shard.nbytes <= limit:
            bundle.append(shard)
            open_bundles[shard.home] = (bundle, nbytes + shard.nbytes)
            continue
        groups.append([shard])
        if shard.nbytes < limit:
            open_bundles[shard.home] = (groups[-1], shard.nbytes)
    return groups


def stable_hash(key: Key) -> int:
    """Return a hash equal in every process and language: the first 8 bytes of SHA-256 of ``"i3"`` or ``"sname"``."""
    text = f"i{key}" if isinstance(key, int) else f"s{key}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def _split(shape: Shape, servers: int) -> dict[int, Shape]:
    rows = shape[0] if len(shape) > 1 else 0
    unit = math.prod(shape[1:]) if rows >= _ROWS_EACH * servers else 1
    units = math.prod(shape) // unit
    cuts: Sequence[int] = [units * rank // servers * unit for rank in range(servers + 1)]
    return {rank: (cuts[rank], cuts[rank + 1]) for rank in range(servers) if cuts[rank] < cuts[rank + 1]}
