"""Resizing of images like OpenCV, which MXNet calls: each axis is a weighted sum of a few pixels.

An axis is a table of *taps*: for each new pixel the old pixels that contribute, and their weights. Bytes are
computed with OpenCV's fixed-point weights, so results agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from flowmx.ops.registry.operators import Array
from flowmx.ops.registry.tensors import ArrayNamespace

NEAREST, LINEAR, CUBIC, AREA, LANCZOS = range(5)

_BITS = 11
_SCALE = 1 << _BITS


class Taps(NamedTuple):
    """The interpolation of one axis."""

    index: Any
    """Indices of the old pixels that contribute to each new one, int64 (new length, taps)."""
    weight: Any
    """Their weights, float64 (new length, taps)."""


def with_shorter_side(size: Sequence[int], length: int) -> tuple[int, int]:
    """Scale a (height, width) so that its shorter side has this length."""
    height, width = size
    return (length * height // width, length) if height > width else (length, length * width // height)


def by_size(old: Sequence[int], new: Sequence[int]) -> int:
    """Choose the interpolation between sizes (height, width): cubic to enlarge, area to shrink, otherwise linear."""
    if new[0] > old[0] and new[1] > old[1]:
        return CUBIC
    return AREA if new[0] < old[0] and new[1] < old[1] else LINEAR


def _centres(old: int, new: int) -> tuple[Any, Any]:
    """Return the new pixels' centres in the old image: integer part (int64) and fraction (float64)."""
    position = ((np.arange(new) + 0.5) * (old / new) - 0.5).astype(np.float32)
    integer = np.floor(position).astype(np.int64)
    return integer, (position - integer).astype(np.float32).astype(np.float64)


def _linear(index: Any, fraction: Any, old: int) -> Taps:
    return Taps(np.clip(np.stack([index, index + 1], 1), 0, old - 1), np.stack([1 - fraction, fraction], 1))


def _cubic(index: Any, x: Any, old: int) -> Taps:
    a = -0.75
    first = ((a * (x + 1) - 5 * a) * (x + 1) + 8 * a) * (x + 1) - 4 * a
    second = ((a + 2) * x - (a + 3)) * x * x + 1
    third = ((a + 2) * (1 - x) - (a + 3)) * (1 - x) * (1 - x) + 1
    weight = np.stack([first, second, third, 1 - first - second - third], 1)
    return Taps(np.clip(index[:, None] + np.arange(-1, 3), 0, old - 1), weight)


def _lanczos(index: Any, x: Any, old: int) -> Taps:
    distance = np.arange(-3, 5) - x[:, None]
    weight = np.sinc(distance) * np.sinc(distance / 4)
    weight /= weight.sum(1, keepdims=True)
    return Taps(np.clip(index[:, None] + np.arange(-3, 5), 0, old - 1), weight)


def _area(old: int, new: int) -> Taps:
    """Return the taps of "area": the part of each old pixel that a new one covers."""
    scale = old / new
    start, stop = np.arange(new) * scale, np.minimum(np.arange(1, new + 1) * scale, old)
    index = np.floor(start + 1e-9).astype(np.int64)[:, None] + np.arange(int(np.ceil(scale)) + 1)
    coverage = np.minimum(index + 1, stop[:, None]) - np.maximum(index, start[:, None])
    weight = np.maximum(coverage, 0)
    return Taps(np.minimum(index, old - 1), weight / weight.sum(1, keepdims=True))


def _enlarged_area(old: int, new: int) -> Taps:
    """Return the taps of "area" for enlarging: linear between pixels' corners, constant inside."""
    index = np.floor(np.arange(new) * (old / new)).astype(np.int64)
    fraction = np.arange(1, new + 1) - (index + 1) * (new / old)
    return _linear(index, np.where(fraction <= 0, 0.0, fraction - np.floor(fraction)), old)


def taps(old: int, new: int, interp: int, shrinks: bool) -> Taps:
    """Return the taps of one axis.

    Args:
        old: the old length.
        new: the new length.
        interp: OpenCV's number of the method.
        shrinks: whether no axis of the image grows.
    """
    if interp == NEAREST:
        # OpenCV inverts the scale twice, which changes the rounding of some pixels.
        index = np.minimum(np.floor(np.arange(new) * (1 / (new / old))).astype(np.int64), old - 1)
        return Taps(index[:, None], np.ones((new, 1)))
    if interp == AREA:
        return _area(old, new) if shrinks else _enlarged_area(old, new)
    return {LINEAR: _linear, CUBIC: _cubic, LANCZOS: _lanczos}[interp](*_centres(old, new), old)


def _weighted_sum(xp: ArrayNamespace, image: Array, table: Taps, axis: int, dtype: Any) -> Array:
    """Compute the weighted sum along one axis."""
    shape = [1] * image.ndim
    shape[axis] = -1
    total: Array | None = None
    for index, weight in zip(table.index.T, table.weight.T, strict=True):
        part = xp.take(image, xp.asarray(index), axis=axis).astype(dtype, copy=False)
        part = part * xp.asarray(weight.astype(dtype)).reshape(shape)
        total = part if total is None else total + part
    return cast("Array", total)  # a line has at least one tap


def resize(xp: ArrayNamespace, image: Array, out: Array, interp: int) -> None:
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
        values = _weighted_sum(xp, _weighted_sum(xp, image, across, width, dtype), down, height, dtype)
        if out.dtype.kind != "f":
            # OpenCV rounds ties to even, except for the mean of four pixels.
            values = xp.floor(values + 0.5) if (h, w) == (2 * new_h, 2 * new_w) else xp.rint(values)
            values = xp.clip(values, *_range(out.dtype))
        xp.copyto(out, values, casting="unsafe")
    else:
        values = _weighted_sum(xp, image, _to_fixed_point(across), width, np.int64)
        if interp in (LINEAR, AREA):
            values = _linear_down(xp, values, _to_fixed_point(down), height)
        else:
            values = (_weighted_sum(xp, values, _to_fixed_point(down), height, np.int64) + (1 << (2 * _BITS - 1))) >> (
                2 * _BITS
            )
        xp.copyto(out, xp.clip(values, *_range(out.dtype)), casting="unsafe")


def _to_fixed_point(table: Taps) -> Taps:
    return Taps(table.index, np.rint(table.weight * _SCALE))


def _linear_down(xp: ArrayNamespace, rows: Array, table: Taps, axis: int) -> Array:
    """Interpolate bytes linearly along the second axis, with OpenCV's intermediate rounding."""
    shape = [1] * rows.ndim
    shape[axis] = -1
    total: Any = 2
    for index, weight in zip(table.index.T, table.weight.T, strict=True):
        part = xp.take(rows, xp.asarray(index), axis=axis) >> 4
        total = total + ((part * xp.asarray(weight.astype(np.int64)).reshape(shape)) >> 16)
    result: Array = total >> 2
    return result


def _range(dtype: Any) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)
