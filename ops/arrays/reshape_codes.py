"""MXNet's reshape codes: 0 keeps an axis, -1 infers one, -2 copies the rest, -3 merges two, -4 splits one.

A length of -1 is unknown; lengths that depend on it are -1 too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from flowmx.errors import ShapeError
from flowmx.ops.arrays.shape_arithmetic import length_product
from flowmx.ops.registry.operators import Shape


@lru_cache(4096)
def resolve_reshape(old: Shape, codes: Shape, reverse: bool = False) -> Shape:
    """Return the shape that MXNet's reshape codes denote for an input of shape ``old``.

    0 keeps the input's axis, -1 infers one axis, -2 copies all the rest, -3 merges two axes, -4 splits one
    axis into the two that follow. ``reverse`` matches from the right.

    Raises:
        ShapeError: the codes do not fit the shape.
    """

    def refuse(why: str) -> ShapeError:
        return ShapeError(f"Reshape: shape is {codes}, which does not fit the input's shape {old}: {why}")

    # With reverse, -4 must come before its two lengths in the reversed codes.
    source, groups = (old[::-1], _groups(codes[::-1], refuse)) if reverse else (old, _groups(codes, refuse))
    result: list[int] = []
    inferred_axis = -1
    index = 0
    for code, *pair in groups:
        remaining = source[index:]
        if code == 0 or code == -4:
            if not remaining:
                raise refuse(f"{code} needs one more axis")
            result += [remaining[0]] if code == 0 else _split(remaining[0], pair, refuse)
            index += 1
        elif code == -1:
            if inferred_axis >= 0:
                raise refuse("at most one axis can be -1")
            inferred_axis = len(result)
            result.append(-1)
            index += 1
        elif code == -2:
            result += remaining
            index = len(source)
        elif code == -3:
            if len(remaining) < 2:
                raise refuse("-3 needs two more axes")
            result.append(length_product(*remaining[:2]))
            index += 2
        else:
            result.append(code)
            index += 1
    _infer(result, inferred_axis, old, refuse)
    return tuple(reversed(result)) if reverse else tuple(result)


def _groups(codes: Shape, refuse: Any) -> list[tuple[int, ...]]:
    """Return the codes as tuples: -4 and its two lengths, or a single code."""
    groups: list[tuple[int, ...]] = []
    position = 0
    while position < len(codes):
        width = 3 if codes[position] == -4 else 1
        group = codes[position : position + width]
        if len(group) < width:
            raise refuse("-4 needs two lengths after it")
        if group[0] < -4:
            raise refuse(f"{group[0]} is not a code")
        groups.append(group)
        position += width
    return groups


def _split(length: int, pair: Sequence[int], refuse: Any) -> list[int]:
    """Return the two lengths that -4 splits an axis into."""
    first, second = pair
    if (first, second) == (-1, -1) or min(first, second) < -1 or 0 in pair:
        raise refuse(f"-4 splits an axis into {first} and {second}: lengths from 1, at most one of them -1")
    if length == -1:
        return [first, second]
    if first == -1:
        first = length // second
    elif second == -1:
        second = length // first
    if first * second != length:
        raise refuse(f"-4 cannot split {length} into {pair[0]} by {pair[1]}")
    return [first, second]


def _infer(result: list[int], axis: int, old: Shape, refuse: Any) -> None:
    """Fill in the axis that -1 stands for, and check the number of elements if all lengths are known."""
    if -1 in old:
        return
    size = math.prod(old)
    if axis >= 0:
        others = math.prod(length for index, length in enumerate(result) if index != axis)
        if others == 0 or size % others:
            raise refuse(f"{size} elements cannot be divided by {others}")
        result[axis] = size // others
    if math.prod(result) != size:
        raise refuse(f"it has {math.prod(result)} elements, the input {size}")
