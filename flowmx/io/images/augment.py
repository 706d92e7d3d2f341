"""MXNet's default augmenter, as a function of an image and its random numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flowmx.errors import ParameterError
from flowmx.io.images import colours
from flowmx.io.images.options import Augmenting
from flowmx.io.images.resizing import resized

Image = np.ndarray[Any, np.dtype[np.uint8]]

RANDOM = 64
"""Random numbers from 0 to 1 that an image gets, whatever is done to it: so a change of one option leaves what the
others draw."""
_METHODS, _AFFINE, _AREAS, _CROP, _COLOURS = slice(0, 3), slice(4, 8), slice(10, 50), slice(50, 53), slice(53, 63)


def augment(image: Image, options: Augmenting, size: tuple[int, int], u: Any) -> Image:
    """The image, changed and cut to a size (height, width).

    Args:
        image: bytes, (height, width, channels), red first.
        options: the augmentations.
        size: the height and width that it gets.
        u: :data:`RANDOM` random numbers.

    Raises:
        ValueError: it is too small to be cut so.
    """
    if options.resize != -1:
        image = _shorter_side(image, options, u[_METHODS][0])
    if options.is_affine:
        image = _affine(image, options, u[_METHODS][1], u[_AFFINE])
    if options.pad > 0:
        around = ((options.pad, options.pad), (options.pad, options.pad), (0, 0))
        image = np.pad(image, around, constant_values=options.fill_value)
    image = _cut(image, options, size, u)
    return colours.change(image, options, u[_COLOURS]) if options.changes_colours else image


def method(options: Augmenting, old: tuple[int, int], new: tuple[int, int], u: float) -> int:
    """OpenCV's number of the interpolation from one (height, width) to another."""
    if options.inter_method == 9:
        grows, shrinks = new[0] > old[0] and new[1] > old[1], new[0] < old[0] and new[1] < old[1]
        return 2 if grows else 3 if shrinks else 1
    return int(u * 5) if options.inter_method == 10 else options.inter_method


def _shorter_side(image: Image, options: Augmenting, u: float) -> Image:
    rows, columns = image.shape[:2]
    if rows > columns:
        new = options.resize * rows // columns, options.resize
    else:
        new = options.resize, options.resize * columns // rows
    return resized(image, new, method(options, (rows, columns), new, u))


# -- cutting -----------------------------------------------------------------------------------------------


def _cut(image: Image, options: Augmenting, size: tuple[int, int], u: Any) -> Image:
    if options.random_resized_crop:
        return _random_area(image, options, size, u)
    if options.max_crop_size != -1 or options.min_crop_size != -1:
        return _square(image, options, size, u)
    image = _enlarged(image, options, size, u[_METHODS][2])
    return _part(image, size[0], size[1], options.rand_crop, u[_CROP])


def _square(image: Image, options: Augmenting, size: tuple[int, int], u: Any) -> Image:
    """A square of random size, brought to the size."""
    rows, columns = image.shape[:2]
    if min(rows, columns) < options.max_crop_size:
        raise ParameterError(
            f"the image is {rows} high and {columns} wide when it is cut, smaller than max_crop_size, which is "
            f"{options.max_crop_size}: give a larger `resize`"
        )
    length = _between(u[_CROP][2], options.min_crop_size, options.max_crop_size)
    part = _part(image, length, length, options.rand_crop, u[_CROP])
    return resized(part, size, method(options, (length, length), size, u[_METHODS][2]))


def _enlarged(image: Image, options: Augmenting, size: tuple[int, int], u: float) -> Image:
    """The image, its proportions kept, at least as large as the size."""
    for axis in (0, 1):
        if image.shape[axis] < size[axis]:
            other = int(np.float32(size[axis]) / np.float32(image.shape[axis]) * np.float32(image.shape[1 - axis]))
            new = (size[0], other) if axis == 0 else (other, size[1])
            image = resized(image, new, method(options, image.shape[:2], new, u))
    return image


def _part(image: Image, height: int, width: int, anywhere: bool, u: Any) -> Image:
    y, x = image.shape[0] - height, image.shape[1] - width
    y, x = (_between(u[0], 0, y), _between(u[1], 0, x)) if anywhere else (y // 2, x // 2)
    return image[y : y + height, x : x + width]


def _between(u: float, low: int, high: int) -> int:
    """An int from low to high, both included."""
    return min(low + int(u * (high - low + 1)), high)


def _random_area(image: Image, options: Augmenting, size: tuple[int, int], u: Any) -> Image:
    """A part of random area and proportions, brought to the size; the middle, where ten tries find none that fits."""
    rows, columns = image.shape[:2]
    low, high = options.aspect_ratios
    for area, ratio, swap, _ in u[_AREAS].reshape(10, 4):
        target = rows * columns * (options.min_random_area + area * (options.max_random_area - options.min_random_area))
        ratio = low + ratio * (high - low)
        height, width = round(math.sqrt(target / ratio)), round(math.sqrt(target * ratio))
        if swap > 0.5:
            height, width = width, height
        if 0 < height <= rows and 0 < width <= columns:
            part = _part(image, height, width, True, u[_CROP])
            return resized(part, size, method(options, (height, width), size, u[_METHODS][2]))
    scale = min(rows / size[0], columns / size[1], 1)
    height, width = int(size[0] * scale), int(size[1] * scale)
    part = _part(image, height, width, False, u)
    return resized(part, size, method(options, (height, width), size, u[_METHODS][2]))


# -- turning, shearing, scaling ----------------------------------------------------------------------------


def _affine(image: Image, options: Augmenting, u_method: float, u: Any) -> Image:
    """The image under a random affine map; pixels from outside have the fill value."""
    rows, columns = image.shape[:2]
    shear = (2 * u[0] - 1) * options.max_shear_ratio
    angle = math.radians(_angle(options, u[1]))
    scale = options.min_random_scale + u[2] * (options.max_random_scale - options.min_random_scale)
    low, high = (1.0, 1.0) if options.random_resized_crop else options.aspect_ratios
    ratio = low + u[3] * (high - low)
    a, b = math.cos(angle), math.sin(angle)
    down = 2 * scale / (1 + ratio)
    across = ratio * down
    width, height = (
        max(options.min_img_size, min(options.max_img_size, scale * side)) for side in (columns, rows)
    )  # fmt: skip
    turn = np.array([[down * a - shear * b * across, down * b + shear * a * across], [-b * across, a * across]])
    shift = (np.array([width, height]) - turn @ [columns, rows]) / 2
    new = int(height), int(width)
    chosen = method(options, (rows, columns), new, u_method)
    return warp(image, turn, shift, new, options.fill_value, chosen)


def _angle(options: Augmenting, u: float) -> int:
    if options.rotate_list:
        return options.rotate_list[min(int(u * len(options.rotate_list)), len(options.rotate_list) - 1)]
    return options.rotate if options.rotate > 0 else _between(u, -options.max_rotate_angle, options.max_rotate_angle)


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
    padded = np.pad(image, ((1, 1), (1, 1), (0, 0)), constant_values=fill)
    if interp == 0:
        nearest: Image = padded[_inside(np.rint(from_y), image.shape[0]), _inside(np.rint(from_x), image.shape[1])]
        return nearest
    top, left = np.floor(from_y), np.floor(from_x)
    total: Any = 0
    for dy, weight_y in ((0, 1 - (from_y - top)), (1, from_y - top)):
        for dx, weight_x in ((0, 1 - (from_x - left)), (1, from_x - left)):
            rows, columns = _inside(top + dy, image.shape[0]), _inside(left + dx, image.shape[1])
            total = total + padded[rows, columns] * (weight_y * weight_x)[:, :, None]
    made: Image = np.rint(total).astype(np.uint8)
    return made


def _inside(position: Any, length: int) -> Any:
    """Positions in an image with a border of one pixel."""
    return np.clip(position, -1, length).astype(np.intp) + 1
