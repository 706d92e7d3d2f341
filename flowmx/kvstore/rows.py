"""Gradients of which some rows are not zero, as bytes for the wire: numbers of rows, then the rows. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["PACKING", "ByRows", "decode", "encode", "summed"]

Array: TypeAlias = npt.NDArray[Any]

PACKING = {"type": "rows"}
"""The `packing` of a gradient that travels so."""

_NUMBER = np.dtype("<i8")


def encode(numbers: Array, rows: Array) -> Array:
    """The bytes of rows.

    Args:
        numbers: of the rows, ascending.
        rows: as many.
    """
    parts = [np.ascontiguousarray(numbers, _NUMBER), np.ascontiguousarray(rows)]
    return np.concatenate([part.reshape(-1).view(np.uint8) for part in parts])


@dataclass(frozen=True, slots=True)
class ByRows:
    """A gradient of which some rows are stored, the others being zero.

    Attributes:
        numbers: of the stored rows, int64, ascending.
        rows: as many.
        shape: the gradient's.
    """

    numbers: Array
    rows: Array
    shape: tuple[int, ...]

    def dense(self) -> Array:
        """The gradient as one array."""
        made = np.zeros(self.shape, self.rows.dtype)
        made[self.numbers] = self.rows
        return made


def summed(found: Sequence[ByRows]) -> ByRows:
    """The sum of gradients in this order; stored is what one of them stores."""
    if len(found) == 1:
        return found[0]
    numbers = np.unique(np.concatenate([each.numbers for each in found]))
    made = np.zeros((len(numbers), *found[0].shape[1:]), found[0].rows.dtype)
    with np.errstate(all="ignore"):  # what overflows shows as such
        for each in found:
            made[np.searchsorted(numbers, each.numbers)] += each.rows
    return ByRows(numbers, made, found[0].shape)


def decode(sent: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> ByRows:
    """The gradient, in memory of its own.

    Args:
        sent: the bytes.
        shape: the gradient's.
        dtype: likewise.

    Raises:
        ValueError: these are no rows of it.
    """
    width = math.prod(shape[1:]) * dtype.itemsize
    if sent.dtype != np.uint8 or sent.ndim != 1 or not shape or sent.size % (_NUMBER.itemsize + width):
        raise ValueError(
            f"rows of a gradient of {dtype} {list(shape)} travel as uint8 of one dimension, {_NUMBER.itemsize} + "
            f"{width} for each row, not as {sent.dtype} {list(sent.shape)}"
        )
    count = sent.size // (_NUMBER.itemsize + width)
    flat = np.array(sent)
    numbers = flat[: count * _NUMBER.itemsize].view(_NUMBER)
    if count and (numbers[0] < 0 or numbers[-1] >= shape[0] or not (numbers[1:] > numbers[:-1]).all()):
        raise ValueError(f"the numbers of the rows must ascend, from 0 to {shape[0] - 1}")
    rows = flat[count * _NUMBER.itemsize :].view(dtype).reshape(count, *shape[1:])
    return ByRows(numbers, rows, shape)
