"""A worker's state of a key: the homes of its shards, and the sequence numbers of its pushes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flowmx.engine import Variable
from flowmx.kvstore.shards import Key, Range, Shard
from flowmx.ops.registry.operators import Array

__all__ = ["KeyState"]


@dataclass(eq=False)
class KeyState:
    """A worker's state of one key.

    Attributes:
        key: the key within its space; its shards have the wire form.
        shape: the shape of its value.
        dtype: the dtype of its value.
        shards: its shards.
        numbers: for each shard, the number of this worker's last push.
        count: the number of updates by the optimizer, as last reported by a server.
        order: the engine variable that orders operations on the key.
    """

    key: Key
    shape: tuple[int, ...]
    dtype: Any
    shards: Sequence[Shard]
    numbers: list[int] = field(default_factory=list)
    order: Variable = field(default_factory=Variable)
    count: int = 0

    def __post_init__(self) -> None:
        self.numbers = self.numbers or [0] * len(self.shards)
        self.order.name = f"key {self.key!r}"

    def advance(self) -> None:
        """Count one more push."""
        for piece in range(len(self.numbers)):
            self.numbers[piece] += 1

    def pieces(self, array: Array) -> list[Array]:
        """Split an array of the key's shape into its shards, without a copy if it is contiguous."""
        if len(self.shards) == 1:
            return [array if array.flags.c_contiguous else np.ascontiguousarray(array)]
        flat = np.ascontiguousarray(array).reshape(-1)
        return [flat[shard.start : shard.stop].reshape(self.shape_of(shard)) for shard in self.shards]

    def shape_of(self, shard: Shard) -> tuple[int, ...]:
        """Return the shape in which a server stores a shard: whole rows where possible, so that rows can be pulled."""
        return Range(shard.start, shard.stop, self.shape).part_shape

    @property
    def nbytes(self) -> int:
        """The size of its value in bytes."""
        return sum(shard.nbytes for shard in self.shards)

    @property
    def row(self) -> int:
        """The number of elements of a row."""
        return math.prod(self.shape[1:])

    @property
    def has_rows(self) -> bool:
        """True if every shard has whole rows."""
        return bool(self.shape) and all(
            shard.start % self.row == 0 == shard.stop % self.row for shard in self.shards if self.row
        )
