"""Images of bytes with their pixels elsewhere: resized as OpenCV does it, cropped, under an affine map."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowmx.data.codecs import Image
from flowmx.ops.kernels.llvm import resizing
from flowmx.ops.vision import resize

Size = tuple[int, int]
"""(height, width)."""


def resized(image: Image, new: Size, interp: int) -> Image:
    """Resize an image (height, width, channels), by OpenCV's number of an interpolation."""
    if image.shape[:2] == new:
        return image
    out = np.empty((*new, image.shape[2]), np.uint8)
    if not resizing.resize(image, out, interp):
        resize.resize(np, image, out, interp)
    return out


def crop(image: Image, y: int, x: int, size: Size) -> Image:
    """Take the part that begins at row y and column x, as a view."""
    return image[y : y + size[0], x : x + size[1]]


def center_crop(image: Image, size: Size) -> Image:
    """Take the middle part, as a view."""
    return crop(image, (image.shape[0] - size[0]) // 2, (image.shape[1] - size[1]) // 2, size)


def padded(image: Image, rows: tuple[int, int], columns: tuple[int, int], fill: int) -> Image:
    """The image with so many rows of a value above and below it, and columns on its left and right.

    The value is a byte's nearest, as for OpenCV.
    """
    height, width, channels = image.shape  # np.pad takes ten times as long for a small image
    out = np.full((sum(rows) + height, sum(columns) + width, channels), min(max(fill, 0), 255), np.uint8)
    out[rows[0] : rows[0] + height, columns[0] : columns[0] + width] = image
    return out


def warp(image: Image, turn: Any, shift: Any, new: tuple[int, int], fill: int, interp: int) -> Image:
    """The image of size ``new`` (height, width) whose pixel ``turn @ p + shift`` is the image's pixel p = (x, y).

    Args:
        image: the image.
        turn: a matrix, (2, 2).
        shift: (2,).
        new: the new height and width.
        fill: the value outside.
        interp: 0 for the nearest pixel; all else is linear between four.
    """
    inverse = np.linalg.inv(turn)
    y, x = np.mgrid[: new[0], : new[1]].astype(np.float32)
    from_x, from_y = (
        row[0] * (x - shift[0]) + row[1] * (y - shift[1]) for row in inverse.astype(np.float32)
    )  # fmt: skip
    # A border of one pixel, to which everything outside is pulled.
    whole = padded(image, (1, 1), (1, 1), fill)
    if interp == 0:
        nearest: Image = whole[_inside(np.rint(from_y), image.shape[0]), _inside(np.rint(from_x), image.shape[1])]
        return nearest
    top, left = np.floor(from_y), np.floor(from_x)
    total: Any = 0
    for dy, weight_y in ((0, 1 - (from_y - top)), (1, from_y - top)):
        for dx, weight_x in ((0, 1 - (from_x - left)), (1, from_x - left)):
            rows, columns = _inside(top + dy, image.shape[0]), _inside(left + dx, image.shape[1])
            total = total + whole[rows, columns] * (weight_y * weight_x)[:, :, None]
    made: Image = np.rint(total).astype(np.uint8)
    return made


def _inside(position: Any, length: int) -> Any:
    """Positions in an image with a border of one pixel."""
    return np.clip(position, -1, length).astype(np.intp) + 1
