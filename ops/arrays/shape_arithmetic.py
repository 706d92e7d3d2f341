"""Shape arithmetic: pure functions for axes, sections and index templates.

A length of -1 is unknown; lengths that depend on it are -1 too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flowmx.errors import ShapeError
from flowmx.ops.registry.operators import Operator, ShapeOrNone


def axis_of(op: Operator, axis: int, ndim: int, name: str = "axis") -> int:
    """Return an axis counted from the front.

    Raises:
        ShapeError: the axis is out of range.
    """
    if not ndim:
        raise ShapeError(f"{op.name}: {name} is {axis}, but there are no axes")
    if not -ndim <= axis < ndim:
        raise ShapeError(f"{op.name}: {name} is {axis}, expected {-ndim} to {ndim - 1} for {ndim} axes")
    return axis % ndim


def axes_of(op: Operator, axes: Iterable[int], ndim: int, name: str = "axis") -> tuple[int, ...]:
    """Return axes counted from the front, in their order.

    Raises:
        ShapeError: an axis is out of range or repeated.
    """
    positive_axes = tuple(axis_of(op, axis, ndim, name) for axis in axes)
    if len(set(positive_axes)) < len(positive_axes):
        raise ShapeError(f"{op.name}: {name} is {tuple(axes)}, which names an axis twice")
    return positive_axes


def expect_elements(op: Operator, shape: ShapeOrNone, axes: Iterable[int], name: str = "data") -> None:
    """Check that a search along axes has elements, if the output has any.

    Raises:
        ShapeError: an axis has length 0.
    """
    if shape is None:
        return
    axes = tuple(axes)
    for axis in axes:
        if shape[axis] == 0 and 0 not in (length for index, length in enumerate(shape) if index not in axes):
            raise ShapeError(f"{op.name}: input {name} has shape {shape}, expected elements along axis {axis}")


def part_length(op: Operator, length: int, count: int, what: str) -> int:
    """Return the length of each of ``count`` equal parts.

    Raises:
        ShapeError: the length is not a multiple of ``count``.
    """
    if length == -1:
        return -1
    if length % count:
        raise ShapeError(f"{op.name}: the {what} is {length}, expected a multiple of {count}")
    return length // count


def length_product(*lengths: int) -> int:
    """Return the product of lengths; -1 if one is unknown."""
    return -1 if -1 in lengths else math.prod(lengths)


def split_at(indices_or_sections: int | Sequence[int]) -> dict[str, object]:
    """Return the parameters of ``_split_v2`` for NumPy's ``indices_or_sections``."""
    if isinstance(indices_or_sections, int):
        return {"sections": indices_or_sections}
    return {"indices": (0, *indices_or_sections)}


def key_from_template(template: str, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Return the index key of a template such as ``"@,1:3,None,..."``, with an array for each ``@``."""
    rest = iter(arrays)
    key: list[object] = []
    for piece in template.split(","):
        if piece == "@":
            index = next(rest)
            key.append(index if index.dtype.kind in "iu" else index.astype(np.int64))
        elif ":" in piece:
            key.append(slice(*(int(n) if n else None for n in piece.split(":"))))
        elif piece == "None":
            key.append(None)
        else:
            key.append(Ellipsis if piece == "..." else int(piece))
    return tuple(key)
