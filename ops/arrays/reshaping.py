"""Shape arithmetic: axes, reshape codes and index templates, as pure functions on shapes.

A length of -1 is unknown, and what depends on it comes out as -1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flowmx.errors import ShapeError
from flowmx.ops.registry.operators import Operator, Shape, ShapeOrNone


def axis_of(op: Operator, axis: int, ndim: int, name: str = "axis") -> int:
    """An axis counted from the front.

    Raises:
        ShapeError: there is no such axis.
    """
    if not ndim:
        raise ShapeError(f"{op.name}: {name} is {axis}, but there are no axes")
    if not -ndim <= axis < ndim:
        raise ShapeError(f"{op.name}: {name} is {axis}, expected {-ndim} to {ndim - 1} for {ndim} axes")
    return axis % ndim


def axes_of(op: Operator, axes: Iterable[int], ndim: int, name: str = "axis") -> tuple[int, ...]:
    """Axes counted from the front, in the order given.

    Raises:
        ShapeError: there is no such axis, or one is given twice.
    """
    found = tuple(axis_of(op, axis, ndim, name) for axis in axes)
    if len(set(found)) < len(found):
        raise ShapeError(f"{op.name}: {name} is {tuple(axes)}, which names an axis twice")
    return found


def expect_elements(op: Operator, shape: ShapeOrNone, axes: Iterable[int], name: str = "data") -> None:
    """Refuse to look for an element along axes that have none, where one is asked for.

    Raises:
        ShapeError: there is none.
    """
    if shape is None:
        return
    axes = tuple(axes)
    for axis in axes:
        if shape[axis] == 0 and 0 not in (n for at, n in enumerate(shape) if at not in axes):
            raise ShapeError(f"{op.name}: input {name} has shape {shape}, expected elements along axis {axis}")


def divided(op: Operator, length: int, by: int, what: str) -> int:
    """A length cut into equal parts: that of one of them.

    Raises:
        ShapeError: they would not be equal.
    """
    if length == -1:
        return -1
    if length % by:
        raise ShapeError(f"{op.name}: the {what} is {length}, expected a multiple of {by}")
    return length // by


def times(*lengths: int) -> int:
    """The product of lengths, -1 where one is unknown."""
    return -1 if -1 in lengths else math.prod(lengths)


def resolve_reshape(old: Shape, codes: Shape, reverse: bool = False) -> Shape:
    """The shape that MXNet's reshape codes mean for an input of shape ``old``.

    0 keeps the input's axis, -1 infers one axis, -2 copies all the rest, -3 merges two axes, -4 splits one
    axis into the two that follow. ``reverse`` matches from the right.

    Raises:
        ShapeError: the codes do not fit the shape.
    """

    def refuse(why: str) -> ShapeError:
        return ShapeError(f"Reshape: shape is {codes}, which does not fit the input's shape {old}: {why}")

    # Reversed, a -4 stands behind the lengths that it splits into.
    source, groups = (old[::-1], _groups(codes[::-1], refuse)) if reverse else (old, _groups(codes, refuse))
    result: list[int] = []
    inferred = -1
    at = 0
    for code, *pair in groups:
        rest = source[at:]
        if code == 0 or code == -4:
            if not rest:
                raise refuse(f"{code} needs an axis that is not there")
            result += [rest[0]] if code == 0 else _split(rest[0], pair, refuse)
            at += 1
        elif code == -1:
            if inferred >= 0:
                raise refuse("at most one axis can be -1")
            inferred = len(result)
            result.append(-1)
            at += 1
        elif code == -2:
            result += rest
            at = len(source)
        elif code == -3:
            if len(rest) < 2:
                raise refuse("-3 merges two axes that are not there")
            result.append(times(*rest[:2]))
            at += 2
        else:
            result.append(code)
            at += 1
    _infer(result, inferred, old, refuse)
    return tuple(reversed(result)) if reverse else tuple(result)


def _groups(codes: Shape, refuse: Any) -> list[tuple[int, ...]]:
    """Each code, -4 together with the two lengths after it."""
    groups: list[tuple[int, ...]] = []
    position = 0
    while position < len(codes):
        width = 3 if codes[position] == -4 else 1
        group = codes[position : position + width]
        if len(group) < width:
            raise refuse("-4 needs two lengths after it")
        if group[0] < -4:
            raise refuse(f"{group[0]} is no code")
        groups.append(group)
        position += width
    return groups


def _split(length: int, pair: Sequence[int], refuse: Any) -> list[int]:
    """The two lengths that -4 splits an axis into."""
    one, other = pair
    if (one, other) == (-1, -1) or min(one, other) < -1 or 0 in pair:
        raise refuse(f"-4 splits an axis into {one} and {other}: lengths from 1, at most one of them -1")
    if length == -1:
        return [one, other]
    if one == -1:
        one = length // other
    elif other == -1:
        other = length // one
    if one * other != length:
        raise refuse(f"-4 can not split {length} into {pair[0]} by {pair[1]}")
    return [one, other]


def _infer(result: list[int], inferred: int, old: Shape, refuse: Any) -> None:
    """Fill in the axis that -1 stands for, and check the number of elements, as far as they are known."""
    if -1 in old:
        return
    size = math.prod(old)
    if inferred >= 0:
        known = math.prod(length for at, length in enumerate(result) if at != inferred)
        if known == 0 or size % known:
            raise refuse(f"{size} elements can not be divided by {known}")
        result[inferred] = size // known
    if math.prod(result) != size:
        raise refuse(f"it has {math.prod(result)} elements, the input {size}")


def split_at(indices_or_sections: int | Sequence[int]) -> dict[str, Any]:
    """The parameters of ``_split_v2`` for what NumPy calls ``indices_or_sections``."""
    if isinstance(indices_or_sections, int):
        return {"sections": indices_or_sections}
    return {"indices": (0, *indices_or_sections)}


def rebuild(template: str, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """The index key of a template such as ``"@,1:3,None,..."``, with an array for each ``@``."""
    rest = iter(arrays)
    key: list[Any] = []
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
