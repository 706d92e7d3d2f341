"""MXNet's default augmenter, as a function of an image and its random numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flowmx.data.augmentation import color_jitter
from flowmx.data.augmentation.geometry import Size, center_crop, crop, interpolation, pad, resize_image, warp
from flowmx.data.augmentation.options import AugmentOptions
from flowmx.data.codecs import Image
from flowmx.errors import ParameterError
from flowmx.ops.vision import opencv_resize

RANDOM = 64
"""Number of random numbers from 0 to 1 for an image. Each option reads its own slice, so changing one option does not
change the numbers of the others."""
_METHODS, _AFFINE, _AREAS, _CROP, _COLORS = slice(0, 3), slice(4, 8), slice(10, 50), slice(50, 53), slice(53, 63)


def augment(image: Image, options: AugmentOptions, size: Size, u: Any) -> Image:
    """Change an image at random, and crop or resize it to a size (height, width).

    Args:
        image: uint8, (height, width, channels), red first.
        options: the augmentations.
        size: the height and width of the result.
        u: :data:`RANDOM` random numbers.

    Raises:
        ValueError: the image is too small for its crop.
    """
    if options.resize != -1:
        image = _shorter_side(image, options, u[_METHODS][0])
    if options.is_affine:
        image = _affine(image, options, u[_METHODS][1], u[_AFFINE])
    if options.pad > 0:
        border = (options.pad, options.pad)
        image = pad(image, border, border, options.fill_value)
    image = _crop_to_size(image, options, size, u)
    return color_jitter.jitter(image, options, u[_COLORS]) if options.changes_colors else image


def _shorter_side(image: Image, options: AugmentOptions, u: float) -> Image:
    return _resize(image, opencv_resize.with_shorter_side(image.shape[:2], options.resize), options, u)


def _resize(image: Image, new: Size, options: AugmentOptions, u: float) -> Image:
    return resize_image(image, new, interpolation(options.inter_method, image.shape[:2], new, lambda: int(u * 5)))


# -- cropping ----------------------------------------------------------------------------------------------


def _crop_to_size(image: Image, options: AugmentOptions, size: Size, u: Any) -> Image:
    if options.random_resized_crop:
        return _random_area(image, options, size, u)
    if options.max_crop_size != -1 or options.min_crop_size != -1:
        return _crop_square(image, options, size, u)
    image = _enlarge(image, options, size, u[_METHODS][2])
    return _crop(image, size, options.rand_crop, u[_CROP])


def _crop_square(image: Image, options: AugmentOptions, size: Size, u: Any) -> Image:
    """Crop a square of random size and resize it."""
    rows, columns = image.shape[:2]
    if min(rows, columns) < options.max_crop_size:
        raise ParameterError(
            f"the image is {rows} high and {columns} wide when it is cropped, smaller than max_crop_size, which is "
            f"{options.max_crop_size}: pass a larger `resize`"
        )
    length = _draw_int(u[_CROP][2], options.min_crop_size, options.max_crop_size)
    return _resize(_crop(image, (length, length), options.rand_crop, u[_CROP]), size, options, u[_METHODS][2])


def _enlarge(image: Image, options: AugmentOptions, size: Size, u: float) -> Image:
    """Enlarge an image, keeping its proportions, until it is at least as large as the size."""
    for axis in (0, 1):
        if image.shape[axis] < size[axis]:
            length = int(np.float32(size[axis]) / np.float32(image.shape[axis]) * np.float32(image.shape[1 - axis]))
            new = (size[0], length) if axis == 0 else (length, size[1])
            image = _resize(image, new, options, u)
    return image


def _crop(image: Image, size: Size, is_random: bool, u: Any) -> Image:
    if not is_random:
        return center_crop(image, size)
    return crop(image, _draw_int(u[0], 0, image.shape[0] - size[0]), _draw_int(u[1], 0, image.shape[1] - size[1]), size)


def _draw_int(u: float, low: int, high: int) -> int:
    """Return an int from low to high, both included."""
    return min(low + int(u * (high - low + 1)), high)


def _random_area(image: Image, options: AugmentOptions, size: Size, u: Any) -> Image:
    """Crop a random area with random proportions and resize it; crop the centre if ten attempts do not fit."""
    rows, columns = image.shape[:2]
    low, high = options.aspect_ratios
    for area, ratio, swap, _ in u[_AREAS].reshape(10, 4):
        target = rows * columns * (options.min_random_area + area * (options.max_random_area - options.min_random_area))
        ratio = low + ratio * (high - low)
        height, width = round(math.sqrt(target / ratio)), round(math.sqrt(target * ratio))
        if swap > 0.5:
            height, width = width, height
        if 0 < height <= rows and 0 < width <= columns:
            return _resize(_crop(image, (height, width), True, u[_CROP]), size, options, u[_METHODS][2])
    scale = min(rows / size[0], columns / size[1], 1)
    part = center_crop(image, (int(size[0] * scale), int(size[1] * scale)))
    return _resize(part, size, options, u[_METHODS][2])


# -- rotating, shearing, scaling ---------------------------------------------------------------------------


def _affine(image: Image, options: AugmentOptions, u_method: float, u: Any) -> Image:
    """Apply a random affine map to an image; pixels from outside the image get the fill value."""
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
    matrix = np.array([[down * a - shear * b * across, down * b + shear * a * across], [-b * across, a * across]])
    shift = (np.array([width, height]) - matrix @ [columns, rows]) / 2
    new = int(height), int(width)
    interp = interpolation(options.inter_method, (rows, columns), new, lambda: int(u_method * 5))
    return warp(image, matrix, shift, new, options.fill_value, interp)


def _angle(options: AugmentOptions, u: float) -> int:
    if options.rotate_list:
        return options.rotate_list[min(int(u * len(options.rotate_list)), len(options.rotate_list) - 1)]
    return options.rotate if options.rotate > 0 else _draw_int(u, -options.max_rotate_angle, options.max_rotate_angle)
