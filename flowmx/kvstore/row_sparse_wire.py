"""Row-sparse gradients as bytes for the wire: the row numbers, then the rows. This module does no I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array

__all__ = ["PACKING", "RowSparseGradient", "add_gradients", "decode", "encode"]


PACKING = {"type": "rows"}
"""The `packing` field of a gradient in this format."""

_NUMBER = np.dtype("<i8")


def encode(numbers: Array, rows: Array) -> Array:
    """Encode rows as bytes.

    Args:
        numbers: the row numbers, ascending.
        rows: one row for each number.
    """
    parts = [np.ascontiguousarray(numbers, _NUMBER), np.ascontiguousarray(rows)]
    return np.concatenate([part.reshape(-1).view(np.uint8) for part in parts])


@dataclass(frozen=True, slots=True)
class RowSparseGradient:
    """A row-sparse gradient: some rows are stored, the others are zero.

    Attributes:
        numbers: the numbers of the stored rows, int64, ascending.
        rows: the stored rows.
        shape: the shape of the whole gradient.
    """

    numbers: Array
    rows: Array
    shape: tuple[int, ...]

    def dense(self) -> Array:
        """Return the gradient as a dense array."""
        array = np.zeros(self.shape, self.rows.dtype)
        array[self.numbers] = self.rows
        return array


def add_gradients(gradients: Sequence[RowSparseGradient]) -> RowSparseGradient:
    """Return the sum of gradients, in this order; it stores every row that one of them stores."""
    if len(gradients) == 1:
        return gradients[0]
    numbers = np.unique(np.concatenate([gradient.numbers for gradient in gradients]))
    rows = np.zeros((len(numbers), *gradients[0].shape[1:]), gradients[0].rows.dtype)
    with np.errstate(all="ignore"):  # an overflow is visible in the result
        for gradient in gradients:
            rows[np.searchsorted(numbers, gradient.numbers)] += gradient.rows
    return RowSparseGradient(numbers, rows, gradients[0].shape)


def decode(message: Array, shape: tuple[int, ...], dtype: DType) -> RowSparseGradient:
    """Decode a gradient; the result does not share memory with the message.

    Args:
        message: the bytes.
        shape: the shape of the gradient.
        dtype: the dtype of the gradient.

    Raises:
        ValueError: the bytes are not rows of such a gradient.
    """
    width = math.prod(shape[1:]) * dtype.itemsize
    if message.dtype != np.uint8 or message.ndim != 1 or not shape or message.size % (_NUMBER.itemsize + width):
        raise ValueError(
            f"rows of a gradient of {dtype} {list(shape)} are sent as 1-dimensional uint8, {_NUMBER.itemsize} + "
            f"{width} bytes for each row, not as {message.dtype} {list(message.shape)}"
        )
    count = message.size // (_NUMBER.itemsize + width)
    flat = np.array(message)
    numbers = flat[: count * _NUMBER.itemsize].view(_NUMBER)
    if count and (numbers[0] < 0 or numbers[-1] >= shape[0] or not (numbers[1:] > numbers[:-1]).all()):
        raise ValueError(f"row numbers must ascend, within 0 to {shape[0] - 1}")
    rows = flat[count * _NUMBER.itemsize :].view(dtype).reshape(count, *shape[1:])
    return RowSparseGradient(numbers, rows, shape)
