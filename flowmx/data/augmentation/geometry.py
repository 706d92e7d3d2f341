"""Geometry of uint8 images: resizing as in OpenCV, cropping, padding and affine maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowmx.data.codecs import Image
from flowmx.ops.kernels.llvm import resizing
from flowmx.ops.vision import opencv_resize

Size = tuple[int, int]
"""(height, width)."""


def interpolation(method: int, old: Sequence[int], new: Sequence[int], draw: Callable[[], int]) -> int:
    """Return OpenCV's code of the interpolation for a resize.

    Args:
        method: OpenCV's code, or MXNet's 9 (chosen by the sizes) or 10 (chosen at random).
        old: the height and width before.
        new: the height and width after.
        draw: returns a random number from 0 to 4.
    """
    if method == 9:
        return opencv_resize.by_size(old, new)
    return draw() if method == 10 else method


def resize_image(image: Image, new: Size, interp: int) -> Image:
    """Resize an image (height, width, channels) with one of OpenCV's interpolations, chosen by its code."""
    if image.shape[:2] == new:
        return image
    out = np.empty((*new, image.shape[2]), np.uint8)
    if not resizing.resize(image, out, interp):
        opencv_resize.resize(np, image, out, interp)
    return out


def crop(image: Image, y: int, x: int, size: Size) -> Image:
    """Return the part that begins at row y and column x, as a view."""
    return image[y : y + size[0], x : x + size[1]]


def center_crop(image: Image, size: Size) -> Image:
    """Return the centre, as a view."""
    return crop(image, (image.shape[0] - size[0]) // 2, (image.shape[1] - size[1]) // 2, size)


def pad(image: Image, rows: tuple[int, int], columns: tuple[int, int], fill: int) -> Image:
    """Pad an image with rows (above, below) and columns (left, right) of a value.

    The value is clipped to 0 to 255, as in OpenCV.
    """
    height, width, channels = image.shape  # np.pad is ten times slower for a small image
    out = np.full((sum(rows) + height, sum(columns) + width, channels), min(max(fill, 0), 255), np.uint8)
    out[rows[0] : rows[0] + height, columns[0] : columns[0] + width] = image
    return out


def warp(image: Image, matrix: Any, shift: Any, new: tuple[int, int], fill: int, interp: int) -> Image:
    """Apply an affine map to an image: the pixel at p = (x, y) moves to ``matrix @ p + shift``.

    Args:
        image: the image.
        matrix: the linear part of the map, (2, 2).
        shift: the translation, (2,).
        new: the height and width of the result.
        fill: the value of pixels from outside the image.
        interp: 0 for the nearest pixel; all other numbers interpolate linearly between four.
    """
    inverse = np.linalg.inv(matrix)
    y, x = np.mgrid[: new[0], : new[1]].astype(np.float32)
    from_x, from_y = (
        row[0] * (x - shift[0]) + row[1] * (y - shift[1]) for row in inverse.astype(np.float32)
    )  # fmt: skip
    # A border of one pixel, to which all positions outside are clipped.
    padded_image = pad(image, (1, 1), (1, 1), fill)
    if interp == 0:
        nearest: Image = padded_image[
            _clip_to_border(np.rint(from_y), image.shape[0]), _clip_to_border(np.rint(from_x), image.shape[1])
        ]
        return nearest
    top, left = np.floor(from_y), np.floor(from_x)
    total: Any = 0
    for dy, weight_y in ((0, 1 - (from_y - top)), (1, from_y - top)):
        for dx, weight_x in ((0, 1 - (from_x - left)), (1, from_x - left)):
            rows, columns = _clip_to_border(top + dy, image.shape[0]), _clip_to_border(left + dx, image.shape[1])
            total = total + padded_image[rows, columns] * (weight_y * weight_x)[:, :, None]
    out: Image = np.rint(total).astype(np.uint8)
    return out


def _clip_to_border(position: Any, length: int) -> Any:
    """Convert positions to indices of an image with a border of one pixel."""
    return np.clip(position, -1, length).astype(np.intp) + 1
