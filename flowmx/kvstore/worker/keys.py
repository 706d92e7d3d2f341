"""A worker's state of a key: the homes of its parts, and the sequence numbers of its pushes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flowmx.engine import Variable
from flowmx.kvstore.shards import Key, Shard

__all__ = ["KeyState"]

Array = np.ndarray[Any, Any]


@dataclass(eq=False)
class KeyState:
    """A worker's state of one key.

    Attributes:
        key: the key.
        shape: of its value.
        dtype: of its value.
        shards: its parts.
        numbers: of each part, the number of this worker's last push.
        order: the engine's variable that puts operations on the key in order.
    """

    key: Key
    shape: tuple[int, ...]
    dtype: Any
    shards: Sequence[Shard]
    numbers: list[int] = field(default_factory=list)
    order: Variable = field(default_factory=Variable)

    def __post_init__(self) -> None:
        self.numbers = self.numbers or [0] * len(self.shards)
        self.order.name = f"key {self.key!r}"

    def advance(self) -> None:
        """Count one more push."""
        for piece in range(len(self.numbers)):
            self.numbers[piece] += 1

    def pieces(self, array: Array) -> list[Array]:
        """The parts of an array of the key's size, in its memory where that is contiguous."""
        if len(self.shards) == 1:
            return [array if array.flags.c_contiguous else np.ascontiguousarray(array)]
        flat = np.ascontiguousarray(array).reshape(-1)
        return [flat[shard.start : shard.stop].reshape(self.shape_of(shard)) for shard in self.shards]

    def shape_of(self, shard: Shard) -> tuple[int, ...]:
        """The shape in which a server keeps a part: rows where it holds whole ones, so that rows can be asked for."""
        if len(self.shards) == 1:
            return self.shape
        row = self.row
        if len(self.shape) > 1 and shard.start % row == 0 == shard.stop % row:
            return ((shard.stop - shard.start) // row, *self.shape[1:])
        return (shard.stop - shard.start,)

    @property
    def nbytes(self) -> int:
        """The size of its value."""
        return sum(shard.nbytes for shard in self.shards)

    @property
    def row(self) -> int:
        """Elements of a row."""
        return math.prod(self.shape[1:])

    @property
    def has_rows(self) -> bool:
        """True if every part holds complete rows."""
        return bool(self.shape) and all(
            shard.start % self.row == 0 == shard.stop % self.row for shard in self.shards if self.row
        )
