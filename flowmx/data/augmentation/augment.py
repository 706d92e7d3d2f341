"""MXNet's default augmenter, as a function of an image and its random numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flowmx.data.augmentation import color_jitter
from flowmx.data.augmentation.geometry import Size, center_crop, crop, padded, resized, warp
from flowmx.data.augmentation.options import Augmenting
from flowmx.data.codecs import Image
from flowmx.errors import ParameterError
from flowmx.ops.vision import resize

RANDOM = 64
"""Random numbers from 0 to 1 that an image gets, whatever is done to it: so a change of one option leaves what the
others draw."""
_METHODS, _AFFINE, _AREAS, _CROP, _COLORS = slice(0, 3), slice(4, 8), slice(10, 50), slice(50, 53), slice(53, 63)


def augment(image: Image, options: Augmenting, size: Size, u: Any) -> Image:
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
        around = (options.pad, options.pad)
        image = padded(image, around, around, options.fill_value)
    image = _cut(image, options, size, u)
    return color_jitter.jitter(image, options, u[_COLORS]) if options.changes_colors else image


def method(options: Augmenting, old: Size, new: Size, u: float) -> int:
    """OpenCV's number of the interpolation from one (height, width) to another."""
    if options.inter_method == 9:
        return resize.by_size(old, new)
    return int(u * 5) if options.inter_method == 10 else options.inter_method


def _shorter_side(image: Image, options: Augmenting, u: float) -> Image:
    return _resized(image, resize.with_shorter_side(image.shape[:2], options.resize), options, u)


def _resized(image: Image, new: Size, options: Augmenting, u: float) -> Image:
    return resized(image, new, method(options, image.shape[:2], new, u))


# -- cutting -----------------------------------------------------------------------------------------------


def _cut(image: Image, options: Augmenting, size: Size, u: Any) -> Image:
    if options.random_resized_crop:
        return _random_area(image, options, size, u)
    if options.max_crop_size != -1 or options.min_crop_size != -1:
        return _square(image, options, size, u)
    image = _enlarged(image, options, size, u[_METHODS][2])
    return _part(image, size, options.rand_crop, u[_CROP])


def _square(image: Image, options: Augmenting, size: Size, u: Any) -> Image:
    """A square of random size, brought to the size."""
    rows, columns = image.shape[:2]
    if min(rows, columns) < options.max_crop_size:
        raise ParameterError(
            f"the image is {rows} high and {columns} wide when it is cut, smaller than max_crop_size, which is "
            f"{options.max_crop_size}: give a larger `resize`"
        )
    length = _between(u[_CROP][2], options.min_crop_size, options.max_crop_size)
    return _resized(_part(image, (length, length), options.rand_crop, u[_CROP]), size, options, u[_METHODS][2])


def _enlarged(image: Image, options: Augmenting, size: Size, u: float) -> Image:
    """The image, its proportions kept, at least as large as the size."""
    for axis in (0, 1):
        if image.shape[axis] < size[axis]:
            other = int(np.float32(size[axis]) / np.float32(image.shape[axis]) * np.float32(image.shape[1 - axis]))
            new = (size[0], other) if axis == 0 else (other, size[1])
            image = _resized(image, new, options, u)
    return image


def _part(image: Image, size: Size, anywhere: bool, u: Any) -> Image:
    if not anywhere:
        return center_crop(image, size)
    return crop(image, _between(u[0], 0, image.shape[0] - size[0]), _between(u[1], 0, image.shape[1] - size[1]), size)


def _between(u: float, low: int, high: int) -> int:
    """An int from low to high, both included."""
    return min(low + int(u * (high - low + 1)), high)


def _random_area(image: Image, options: Augmenting, size: Size, u: Any) -> Image:
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
            return _resized(_part(image, (height, width), True, u[_CROP]), size, options, u[_METHODS][2])
    scale = min(rows / size[0], columns / size[1], 1)
    part = center_crop(image, (int(size[0] * scale), int(size[1] * scale)))
    return _resized(part, size, options, u[_METHODS][2])


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
