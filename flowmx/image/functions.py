"""Functions that read, resize, crop and rotate images, which are arrays.

An image has the shape (height, width, channels), red first. Sizes are (width, height).
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from flowmx import ndarray as nd
from flowmx.data import codecs, rng
from flowmx.data.augmentation import geometry
from flowmx.errors import DataError, ParameterError, ShapeError, raised_as_mxnet
from flowmx.image.layouts import expect_channels_first
from flowmx.ndarray import NDArray
from flowmx.ops.vision import opencv_resize
from flowmx.settings import DamagedImages

Size = Sequence[int]
Box = tuple[int, int, int, int]
"""A rectangle in an image: left, top, width, height, in pixels."""

_BORDERS: dict[int, Any] = {0: "constant", 1: "edge", 2: "symmetric", 3: "wrap", 4: "reflect"}
"""OpenCV's border types. (MXNet's documentation lists other numbers, but passes them to OpenCV.)"""
_ISOLATED = 16
"""A bit of OpenCV's border types that has no effect on whole images."""


def imdecode(buf: object, flag: int = 1, to_rgb: bool = True, out: NDArray | None = None) -> NDArray:
    """Decode an image from a file's bytes.

    Args:
        buf: the bytes, or an array of them.
        flag: 1 for three channels, 0 for one, -1 for as many as the file has.
        to_rgb: return the red channel first, instead of OpenCV's blue first.
        out: an array to write into.

    Returns:
        A uint8 array of shape (height, width, channels).

    Raises:
        ValueError: the file is not an image, is empty, or is too damaged (``FLOWMX_DAMAGED_IMAGES``); or ``buf`` is not
            bytes.
    """
    if isinstance(buf, NDArray):
        buf = buf.asnumpy()
    if isinstance(buf, np.ndarray):
        buf = np.ascontiguousarray(buf, np.uint8)
    elif not isinstance(buf, bytes | bytearray | memoryview):
        raise ValueError(f"imdecode: buf is {type(buf).__name__}, expected bytes, or an array of them")
    return decode_buffer(buf, flag, to_rgb, out)


@raised_as_mxnet(OSError)
def imread(filename: str | os.PathLike[str], flag: int = 1, to_rgb: bool = True, out: NDArray | None = None) -> NDArray:
    """Decode the image in a file; the arguments are those of :func:`imdecode`.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not an image; the message has its name.
    """
    raw = Path(filename).read_bytes()
    try:
        return decode_buffer(raw, flag, to_rgb, out)
    except codecs.DamagedImageError as error:
        raise codecs.DamagedImageError(f"imread: {os.fspath(filename)!r}: {error}") from error
    except ValueError as error:
        raise DataError(f"imread: {os.fspath(filename)!r}: {error}") from error


def decode_buffer(
    raw: Any,
    flag: int = 1,
    to_rgb: bool = True,
    out: NDArray | None = None,
    damaged: DamagedImages | None = None,
) -> NDArray:
    """Decode the image in a buffer; the arguments are those of :func:`imdecode` and of :func:`codecs.decode`."""
    image = codecs.decode(raw, flag, damaged=damaged)
    array = nd.array(image if to_rgb else codecs.swap_channels(image), dtype=np.uint8)
    if out is None:
        return array
    array.copyto(out)
    return out


def imresize(src: NDArray, w: int, h: int, interp: int = 1, out: NDArray | None = None) -> NDArray:
    """Resize an image as OpenCV does.

    Args:
        src: the image.
        w: the new width.
        h: the new height.
        interp: 0 nearest, 1 linear, 2 cubic, 3 area, 4 Lanczos; 9 area to shrink, cubic to enlarge, linear if only
            one side grows; 10 any of the first five, at random.
        out: an array to write into.

    Raises:
        ValueError: the method is unknown.
        ShapeError: ``src`` is not an image.
    """
    sizes = (*_shape(src)[:2], h, w)
    return nd.image.resize(src, size=(int(w), int(h)), interp=interpolation(interp, sizes), out=out)


def interpolation(interp: int, sizes: Size = ()) -> int:
    """Return OpenCV's code for a method (see :func:`imresize`) and (old height, old width, new height, new width).

    Raises:
        ValueError: the method is unknown.
    """
    if interp not in (*range(5), 9, 10):
        raise ParameterError(f"the interpolation is {interp}, expected 0 to 4, 9 (by size) or 10 (random)")
    if interp == 9 and not sizes:
        return opencv_resize.CUBIC
    return geometry.interpolation(interp, sizes[:2], sizes[2:], lambda: int(rng.python().randint(0, 4)))


def scale_down(src_size: Size, size: Size) -> tuple[int, int]:
    """Shrink a size, keeping its proportions, until it fits into an image of size ``src_size``."""
    width, height = src_size
    w: float
    h: float
    w, h = size
    if height < h:
        w, h = w * height / h, height
    if width < w:
        w, h = width, h * width / w
    return int(w), int(h)


def copyMakeBorder(  # noqa: N802 - OpenCV's name
    src: NDArray,
    top: int,
    bot: int,
    left: int,
    right: int,
    type: int = 0,
    value: float = 0.0,
    values: Sequence[float] = (),
    out: NDArray | None = None,
) -> NDArray:
    """Add a border to an image.

    Args:
        src: the image.
        top: the number of rows above.
        bot: the number of rows below.
        left: the number of columns to the left.
        right: the number of columns to the right.
        type: fill with a color (0), repeat the edge pixels (1), wrap around (3), or reflect, with (2) or without
            (4) the edge pixels.
        value: the color, in all channels.
        values: the color, by channel.
        out: an array to write into.

    Raises:
        ValueError: the type is unknown.
    """
    kind = _BORDERS.get(type & ~_ISOLATED)
    if kind is None:
        raise ParameterError(f"copyMakeBorder: type is {type}, expected one of {sorted(_BORDERS)}")
    image = src.asnumpy()
    border = ((top, bot), (left, right), (0, 0))
    if kind != "constant":
        pixels = np.pad(image, border, kind)
    else:
        pixels = np.empty((image.shape[0] + top + bot, image.shape[1] + left + right, image.shape[2]), image.dtype)
        pixels[:] = list(values)[: image.shape[2]] if values else value
        pixels[top : top + image.shape[0], left : left + image.shape[1]] = image
    result = nd.array(pixels, dtype=pixels.dtype)
    if out is None:
        return result
    result.copyto(out)
    return out


def resize_short(src: NDArray, size: int, interp: int = 2) -> NDArray:
    """Resize an image so that its shorter side has this length, keeping its proportions."""
    new_h, new_w = opencv_resize.with_shorter_side(_shape(src)[:2], size)
    return imresize(src, new_w, new_h, interp)


def fixed_crop(src: NDArray, x0: int, y0: int, w: int, h: int, size: Size | None = None, interp: int = 2) -> NDArray:
    """Crop an image, and resize the crop if ``size`` is set."""
    crop = src[y0 : y0 + h, x0 : x0 + w]
    if size is not None and (w, h) != tuple(size):
        return imresize(crop, size[0], size[1], interp)
    return crop


def random_crop(src: NDArray, size: Size, interp: int = 2) -> tuple[NDArray, Box]:
    """Crop at a random position; return the crop and its box. Enlarge the crop of a small image."""
    h, w, _ = _shape(src)
    new_w, new_h = scale_down((w, h), size)
    box = rng.python().randint(0, w - new_w), rng.python().randint(0, h - new_h), new_w, new_h
    return fixed_crop(src, *box, size, interp), box


def center_crop(src: NDArray, size: Size, interp: int = 2) -> tuple[NDArray, Box]:
    """Crop the centre; return the crop and its box. Enlarge the crop of a small image."""
    h, w, _ = _shape(src)
    new_w, new_h = scale_down((w, h), size)
    box = (w - new_w) // 2, (h - new_h) // 2, new_w, new_h
    return fixed_crop(src, *box, size, interp), box


def random_size_crop(
    src: NDArray,
    size: Size,
    area: float | tuple[float, float],
    ratio: tuple[float, float],
    interp: int = 2,
    **kwargs: object,
) -> tuple[NDArray, Box]:
    """Crop a random area with random proportions, and resize it.

    Args:
        src: the image.
        size: the size of the result.
        area: the smallest and the largest fraction of the image's area; a single number is the smallest.
        ratio: the smallest and the largest width divided by height.
        interp: the interpolation; see :func:`imresize`.
        **kwargs: ``min_area``, the old name of ``area``.

    Returns:
        The crop and its box; the centre if ten attempts do not fit.

    Raises:
        TypeError: an argument is unknown.
    """
    area = area_argument(area, kwargs, "random_size_crop")
    h, w, _ = _shape(src)
    low, high = (area, 1.0) if isinstance(area, (int, float)) else area
    for _ in range(10):
        target = rng.python().uniform(low, high) * h * w
        proportion = math.exp(rng.python().uniform(math.log(ratio[0]), math.log(ratio[1])))
        new_w, new_h = round(math.sqrt(target * proportion)), round(math.sqrt(target / proportion))
        if new_w <= w and new_h <= h:
            box = rng.python().randint(0, w - new_w), rng.python().randint(0, h - new_h), new_w, new_h
            return fixed_crop(src, *box, size, interp), box
    return center_crop(src, size, interp)


def area_argument(area: object, kwargs: dict[str, Any], name: str) -> Any:
    """Return the area; accept its old name ``min_area``.

    Raises:
        TypeError: an argument is unknown.
    """
    if "min_area" in kwargs:
        warnings.warn("`min_area` is deprecated: use `area`", DeprecationWarning, stacklevel=3)
        area = kwargs.pop("min_area")
    if kwargs:
        raise TypeError(f"{name}: unexpected arguments {sorted(kwargs)}")
    return area


def color_normalize(src: NDArray, mean: NDArray | None, std: NDArray | None = None) -> NDArray:
    """Subtract a mean and divide by a standard deviation, in place."""
    if mean is not None:
        src -= mean
    if std is not None:
        src /= std
    return src


# -- rotation ----------------------------------------------------------------------------------------------


def imrotate(src: NDArray, rotation_degrees: Any, zoom_in: bool = False, zoom_out: bool = False) -> NDArray:
    """Rotate an image, or a batch of images, about the centre; pixels from outside the image are 0.

    Args:
        src: float32, of shape (channels, height, width), or (images, channels, height, width).
        rotation_degrees: the angle; for a batch also an array of angles.
        zoom_in: enlarge the image so that no pixels from outside it are visible.
        zoom_out: shrink the image so that all of it is visible.

    Raises:
        ValueError: both zooms are set, or the number of angles differs from the number of images.
        TypeError: ``src`` is not float32, or there are several angles for one image.
        ShapeError: ``src`` has another number of axes.
    """
    if zoom_in and zoom_out:
        raise ValueError("imrotate: zoom_in and zoom_out are both True, expected at most one")
    if np.dtype(src.dtype) != np.float32:
        raise TypeError(f"imrotate: src has dtype {np.dtype(src.dtype).name}, expected float32")
    if src.ndim not in (3, 4):
        raise ShapeError(f"imrotate: src has shape {src.shape}, expected 3 axes, or 4 for a batch")
    expect_channels_first("rotation", src)
    if src.ndim == 3:
        if not isinstance(rotation_degrees, Real):
            raise TypeError("imrotate: there are several angles for one image")
        return imrotate(src.expand_dims(0), rotation_degrees, zoom_in, zoom_out)[0]
    if isinstance(rotation_degrees, Real):
        rotation_degrees = np.full(len(src), rotation_degrees, np.float32)
    elif isinstance(rotation_degrees, NDArray):
        rotation_degrees = rotation_degrees.asnumpy()
    if len(rotation_degrees) != len(src):
        raise ValueError(f"imrotate: {len(rotation_degrees)} angles for {len(src)} images, expected equal numbers")
    grid = _rotation_grid(
        src.shape[2], src.shape[3], np.radians(np.asarray(rotation_degrees, np.float64)), zoom_in, zoom_out
    )
    result: NDArray = nd.BilinearSampler(src, nd.array(grid, ctx=src.context))
    return result


def _rotation_grid(h: int, w: int, angles: Any, zoom_in: bool, zoom_out: bool) -> Any:
    """Return the sampling grid of rotated images, with coordinates from -1 to 1: (images, 2, h, w)."""
    angles = angles[:, None, None]
    y, x = np.arange(h)[:, None] - (h - 1) / 2, np.arange(w)[None, :] - (w - 1) / 2
    with np.errstate(divide="ignore", invalid="ignore"):  # a single row or column, whose result is undefined in MXNet
        grid_x = (x * np.cos(angles) - y * np.sin(angles)) / ((w - 1) / 2)
        grid_y = (x * np.sin(angles) + y * np.cos(angles)) / ((h - 1) / 2)
    grid = np.stack([grid_x, grid_y], 1)
    if zoom_in or zoom_out:
        grid *= _zoom(h, w, np.abs(angles), zoom_in)[:, None]
    return grid.astype(np.float32)


def _zoom(h: int, w: int, angles: Any, zoom_in: bool) -> Any:
    """Return the factor of each rotated image's grid, to fill the image or to show all of it."""
    diagonal, corner = math.hypot(h, w), math.atan2(h, w)
    diagonals = np.stack([corner + angles, corner - angles])
    reach_x, reach_y = (np.abs(diagonal * f(diagonals)).max(0) for f in (np.cos, np.sin))
    return np.minimum(w / reach_x, h / reach_y) if zoom_in else np.maximum(reach_x / w, reach_y / h)


def random_rotate(
    src: NDArray, angle_limits: tuple[float, float], zoom_in: bool = False, zoom_out: bool = False
) -> NDArray:
    """Rotate by a random angle between two limits, a different one for each image of a batch; see :func:`imrotate`."""
    count = None if src.ndim == 3 else len(src)
    angles: Any = [rng.numpy().uniform(*angle_limits) for _ in range(count or 1)]
    return imrotate(src, angles[0] if count is None else np.array(angles), zoom_in, zoom_out)


def _shape(src: NDArray) -> tuple[int, int, int]:
    if len(src.shape) != 3:
        raise ShapeError(f"the image has shape {src.shape}, expected (height, width, channels)")
    return src.shape
