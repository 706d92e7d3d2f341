"""Resizing of images as OpenCV does it, which MXNet calls: each axis is a weighted sum of a few pixels.

An axis is a table of *taps*: for each new pixel the old ones that it is made of, and their weights. Bytes are
computed with OpenCV's fixed-point weights, so that results agree to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from flowmx.ops.registry.operators import Array

NEAREST, LINEAR, CUBIC, AREA, LANCZOS = range(5)

_BITS = 11
_SCALE = 1 << _BITS


class Taps(NamedTuple):
    """The interpolation of one axis."""

    index: Any
    """Indices of the old pixels that each new one is made of, int64 (new length, taps)."""
    weight: Any
    """Their weights, likewise, in float64."""


def with_shorter_side(size: Sequence[int], length: int) -> tuple[int, int]:
    """Compute the (height, width) whose shorter side has a length, with the proportions of another (height, width)."""
    height, width = size
    return (length * height // width, length) if height > width else (length, length * width // height)


def by_size(old: Sequence[int], new: Sequence[int]) -> int:
    """Choose how to resize from one (height, width) to another: cubic to enlarge, area to shrink, else linear."""
    if new[0] > old[0] and new[1] > old[1]:
        return CUBIC
    return AREA if new[0] < old[0] and new[1] < old[1] else LINEAR


def _centres(old: int, new: int) -> tuple[Any, Any]:
    """The positions of the new pixels' centres in the old image: integer part (int64) and fraction (float64)."""
    position = ((np.arange(new) + 0.5) * (old / new) - 0.5).astype(np.float32)
    whole = np.floor(position).astype(np.int64)
    return whole, (position - whole).astype(np.float32).astype(np.float64)


def _linear(whole: Any, fraction: Any, old: int) -> Taps:
    return Taps(np.clip(np.stack([whole, whole + 1], 1), 0, old - 1), np.stack([1 - fraction, fraction], 1))


def _cubic(whole: Any, x: Any, old: int) -> Taps:
    a = -0.75
    first = ((a * (x + 1) - 5 * a) * (x + 1) + 8 * a) * (x + 1) - 4 * a
    second = ((a + 2) * x - (a + 3)) * x * x + 1
    third = ((a + 2) * (1 - x) - (a + 3)) * (1 - x) * (1 - x) + 1
    weight = np.stack([first, second, third, 1 - first - second - third], 1)
    return Taps(np.clip(whole[:, None] + np.arange(-1, 3), 0, old - 1), weight)


def _lanczos(whole: Any, x: Any, old: int) -> Taps:
    distance = np.arange(-3, 5) - x[:, None]
    weight = np.sinc(distance) * np.sinc(distance / 4)
    weight /= weight.sum(1, keepdims=True)
    return Taps(np.clip(whole[:, None] + np.arange(-3, 5), 0, old - 1), weight)


def _area(old: int, new: int) -> Taps:
    """The part of each old pixel that a new one covers."""
    scale = old / new
    start, stop = np.arange(new) * scale, np.minimum(np.arange(1, new + 1) * scale, old)
    index = np.floor(start + 1e-9).astype(np.int64)[:, None] + np.arange(int(np.ceil(scale)) + 1)
    covered = np.minimum(index + 1, stop[:, None]) - np.maximum(index, start[:, None])
    weight = np.maximum(covered, 0)
    return Taps(np.minimum(index, old - 1), weight / weight.sum(1, keepdims=True))


def _enlarged_area(old: int, new: int) -> Taps:
    """The taps of "area" for enlarging: linear between pixels' corners, flat inside them."""
    whole = np.floor(np.arange(new) * (old / new)).astype(np.int64)
    fraction = np.arange(1, new + 1) - (whole + 1) * (new / old)
    return _linear(whole, np.where(fraction <= 0, 0.0, fraction - np.floor(fraction)), old)


def taps(old: int, new: int, interp: int, shrinks: bool) -> Taps:
    """The taps of one axis.

    Args:
        old: its length before.
        new: its length after.
        interp: OpenCV's number of the method.
        shrinks: whether no axis of the image grows.
    """
    if interp == NEAREST:
        # OpenCV takes the inverse twice, which rounds to another pixel in places.
        index = np.minimum(np.floor(np.arange(new) * (1 / (new / old))).astype(np.int64), old - 1)
        return Taps(index[:, None], np.ones((new, 1)))
    if interp == AREA:
        return _area(old, new) if shrinks else _enlarged_area(old, new)
    return {LINEAR: _linear, CUBIC: _cubic, LANCZOS: _lanczos}[interp](*_centres(old, new), old)


def _gathered(xp: Any, image: Array, table: Taps, axis: int, dtype: Any) -> Array:
    """The weighted sum along one axis."""
    shape = [1] * image.ndim
    shape[axis] = -1
    total = None
    for index, weight in zip(table.index.T, table.weight.T, strict=True):
        part = xp.take(image, xp.asarray(index), axis=axis).astype(dtype, copy=False)
        part = part * xp.asarray(weight.astype(dtype)).reshape(shape)
        total = part if total is None else total + part
    return total


def resize(xp: Any, image: Array, out: Array, interp: int) -> None:
    """Resize images (..., height, width, channels) into ``out``."""
    height, width = image.ndim - 3, image.ndim - 2
    (h, w), (new_h, new_w) = image.shape[height:-1], out.shape[height:-1]
    shrinks = new_h <= h and new_w <= w
    across, down = taps(w, new_w, interp, shrinks), taps(h, new_h, interp, shrinks)
    if interp == NEAREST:
        rows = xp.take(image, xp.asarray(down.index[:, 0]), axis=height)
        xp.take(rows, xp.asarray(across.index[:, 0]), axis=width, out=out)
    elif image.dtype.kind == "f" or (interp == AREA and shrinks):
        dtype = np.float64 if image.dtype == np.float64 else np.float32
        made = _gathered(xp, _gathered(xp, image, across, width, dtype), down, height, dtype)
        if out.dtype.kind != "f":
            # OpenCV rounds halves to even, except where it takes the mean of four.
            made = xp.floor(made + 0.5) if (h, w) == (2 * new_h, 2 * new_w) else xp.rint(made)
            made = xp.clip(made, *_range(out.dtype))
        xp.copyto(out, made, casting="unsafe")
    else:
        made = _gathered(xp, image, _fixed(across), width, np.int64)
        if interp in (LINEAR, AREA):
            made = _linear_down(xp, made, _fixed(down), height)
        else:
            made = (_gathered(xp, made, _fixed(down), height, np.int64) + (1 << (2 * _BITS - 1))) >> (2 * _BITS)
        xp.copyto(out, xp.clip(made, *_range(out.dtype)), casting="unsafe")


def _fixed(table: Taps) -> Taps:
    return Taps(table.index, np.rint(table.weight * _SCALE))


def _linear_down(xp: Any, rows: Array, table: Taps, axis: int) -> Array:
    """The second axis of a linear interpolation of bytes, with OpenCV's intermediate roundings."""
    shape = [1] * rows.ndim
    shape[axis] = -1
    total: Any = 2
    for index, weight in zip(table.index.T, table.weight.T, strict=True):
        part = xp.take(rows, xp.asarray(index), axis=axis) >> 4
        total = total + ((part * xp.asarray(weight.astype(np.int64)).reshape(shape)) >> 16)
    return total >> 2


def _range(dtype: Any) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)
