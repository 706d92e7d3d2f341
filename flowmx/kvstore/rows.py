"""Gradients of which some rows are not zero, as bytes for the wire: numbers of rows, then the rows. Pure."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["PACKING", "decode", "encode"]

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


def decode(sent: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """The gradient, with zeros in the other rows.

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
    flat = np.ascontiguousarray(sent)
    numbers = flat[: count * _NUMBER.itemsize].view(_NUMBER)
    if count and (numbers[0] < 0 or numbers[-1] >= shape[0] or not (numbers[1:] > numbers[:-1]).all()):
        raise ValueError(f"the numbers of the rows must ascend, from 0 to {shape[0] - 1}")
    made = np.zeros(shape, dtype)
    made[numbers] = flat[count * _NUMBER.itemsize :].view(dtype).reshape(count, *shape[1:])
    return made
