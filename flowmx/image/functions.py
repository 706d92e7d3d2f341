"""Images as arrays: read, resized, cut, turned.

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
from flowmx.errors import DataError, ParameterError, ShapeError, raised_as_mxnet
from flowmx.ndarray import NDArray
from flowmx.ops.vision import resize

Size = Sequence[int]
Box = tuple[int, int, int, int]
"""A rectangle in an image: left, top, width, height, in pixels."""

_BORDERS = {0: "constant", 1: "edge", 2: "symmetric", 3: "wrap", 4: "reflect"}
"""OpenCV's numbers. (MXNet's documentation has others, but hands the number on.)"""
_ISOLATED = 16
"""A bit of OpenCV's numbers that says nothing about whole images."""


def imdecode(buf: Any, flag: int = 1, to_rgb: bool = True, out: NDArray | None = None) -> NDArray:
    """The image in a file's bytes.

    Args:
        buf: the bytes, or an array of them.
        flag: 1 for three channels, 0 for one, -1 for as many as the file has.
        to_rgb: red first; else blue first, as in OpenCV.
        out: an array to write into.

    Returns:
        an array of bytes, of shape (height, width, channels).

    Raises:
        ValueError: it is no image, damaged or empty; or ``buf`` is nothing that holds bytes.
    """
    if isinstance(buf, NDArray):
        buf = buf.asnumpy()
    if isinstance(buf, np.ndarray):
        buf = np.ascontiguousarray(buf, np.uint8)
    elif not isinstance(buf, bytes | bytearray | memoryview):
        raise ValueError(f"imdecode: buf is {type(buf).__name__}, expected bytes, or an array of them")
    return _decoded(buf, flag, to_rgb, out)


@raised_as_mxnet(OSError)
def imread(filename: str | os.PathLike[str], flag: int = 1, to_rgb: bool = True, out: NDArray | None = None) -> NDArray:
    """The image in a file; the arguments are those of :func:`imdecode`.

    Raises:
        OSError: the file can not be read.
        ValueError: it is no image; the message names it.
    """
    raw = Path(filename).read_bytes()
    try:
        return _decoded(raw, flag, to_rgb, out)
    except ValueError as error:
        raise DataError(f"imread: {os.fspath(filename)!r}: {error}") from error


def _decoded(raw: Any, flag: int, to_rgb: bool, out: NDArray | None) -> NDArray:
    image = codecs.decode(raw, flag)
    made = nd.array(image if to_rgb else codecs.swapped(image), dtype=np.uint8)
    if out is None:
        return made
    made.copyto(out)
    return out


def imresize(src: NDArray, w: int, h: int, interp: int = 1, out: NDArray | None = None) -> NDArray:
    """The image with another size, computed as OpenCV does.

    Args:
        src: the image.
        w: the new width.
        h: the new height.
        interp: 0 nearest, 1 linear, 2 cubic, 3 area, 4 Lanczos; 9 area to shrink, cubic to enlarge, linear where one
            side grows and the other does not; 10 any of the first five, at random.
        out: an array to write into.

    Raises:
        ValueError: an unknown method.
        ShapeError: ``src`` is no image.
    """
    sizes = (*_shape(src)[:2], h, w)
    options = {} if out is None else {"out": out}
    made: NDArray = nd.image.resize(src, size=(int(w), int(h)), interp=interpolation(interp, sizes), **options)
    return made


def interpolation(interp: int, sizes: Size = ()) -> int:
    """OpenCV's number of a method (see :func:`imresize`), for (old height, old width, new height, new width).

    Raises:
        ValueError: an unknown method.
    """
    if interp == 9:
        if not sizes:
            return 2
        return resize.by_size(sizes[:2], sizes[2:])
    if interp == 10:
        return rng.current().randint(0, 4)
    if interp not in range(5):
        raise ParameterError(f"the interpolation is {interp}, expected 0 to 4, 9 (by size) or 10 (random)")
    return interp


def scale_down(src_size: Size, size: Size) -> tuple[int, int]:
    """The size, made smaller (its proportions kept) where it does not fit into an image of the first size."""
    (width, height), (w, h) = src_size, size
    if height < h:
        w, h = w * height / h, height  # type: ignore[assignment]
    if width < w:
        w, h = width, h * width / w  # type: ignore[assignment]
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
    """The image with a border.

    Args:
        src: the image.
        top: rows above.
        bot: rows below.
        left: columns to the left.
        right: columns to the right.
        type: filled with a colour (0), with the last pixels repeated (1), with the image's other side (3), or with the
            image mirrored, its last pixels twice (2) or not (4).
        value: the colour, in all channels.
        values: the colour, by channel.
        out: an array to write into.

    Raises:
        ValueError: an unknown type.
    """
    kind = _BORDERS.get(type & ~_ISOLATED)
    if kind is None:
        raise ParameterError(f"copyMakeBorder: type is {type}, expected one of {sorted(_BORDERS)}")
    image = src.asnumpy()
    around = ((top, bot), (left, right), (0, 0))
    if kind != "constant":
        made = np.pad(image, around, kind)  # type: ignore[call-overload]
    else:
        made = np.empty((image.shape[0] + top + bot, image.shape[1] + left + right, image.shape[2]), image.dtype)
        made[:] = list(values)[: image.shape[2]] if values else value
        made[top : top + image.shape[0], left : left + image.shape[1]] = image
    result = nd.array(made, dtype=made.dtype)
    if out is None:
        return result
    result.copyto(out)
    return out


def resize_short(src: NDArray, size: int, interp: int = 2) -> NDArray:
    """The image with its shorter side of this length, its proportions kept."""
    new_h, new_w = resize.with_shorter_side(_shape(src)[:2], size)
    return imresize(src, new_w, new_h, interp)


def fixed_crop(src: NDArray, x0: int, y0: int, w: int, h: int, size: Size | None = None, interp: int = 2) -> NDArray:
    """A part of the image, given another size where one is given."""
    part = src[y0 : y0 + h, x0 : x0 + w]
    if size is not None and (w, h) != tuple(size):
        return imresize(part, size[0], size[1], interp)
    return part


def random_crop(src: NDArray, size: Size, interp: int = 2) -> tuple[NDArray, Box]:
    """A part of this size from anywhere (smaller and enlarged, where the image is too small), and where it was."""
    h, w, _ = _shape(src)
    new_w, new_h = scale_down((w, h), size)
    box = rng.current().randint(0, w - new_w), rng.current().randint(0, h - new_h), new_w, new_h
    return fixed_crop(src, *box, size, interp), box


def center_crop(src: NDArray, size: Size, interp: int = 2) -> tuple[NDArray, Box]:
    """The middle of the image in this size (smaller and enlarged, where the image is too small), and where it was."""
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
    **kwargs: Any,
) -> tuple[NDArray, Box]:
    """A random part of the image, brought to one size.

    Args:
        src: the image.
        size: the size that it gets.
        area: the least and the most of the image's area that it takes; a number is the least.
        ratio: the least and the most of its width divided by its height.
        interp: the interpolation; see :func:`imresize`.
        **kwargs: ``min_area``, the older name of ``area``.

    Returns:
        the part, and where it was. Where ten tries find none that fits, it is the middle.

    Raises:
        TypeError: another argument.
    """
    area = older_area(area, kwargs, "random_size_crop")
    h, w, _ = _shape(src)
    low, high = (area, 1.0) if isinstance(area, (int, float)) else area
    for _ in range(10):
        target = rng.current().uniform(low, high) * h * w
        proportion = math.exp(rng.current().uniform(math.log(ratio[0]), math.log(ratio[1])))
        new_w, new_h = round(math.sqrt(target * proportion)), round(math.sqrt(target / proportion))
        if new_w <= w and new_h <= h:
            box = rng.current().randint(0, w - new_w), rng.current().randint(0, h - new_h), new_w, new_h
            return fixed_crop(src, *box, size, interp), box
    return center_crop(src, size, interp)


def older_area(area: Any, kwargs: dict[str, Any], name: str) -> Any:
    """The area, under its older name too.

    Raises:
        TypeError: another argument.
    """
    if "min_area" in kwargs:
        warnings.warn("`min_area` is deprecated: use `area`", DeprecationWarning, stacklevel=3)
        area = kwargs.pop("min_area")
    if kwargs:
        raise TypeError(f"{name}: unexpected arguments {sorted(kwargs)}")
    return area


def color_normalize(src: NDArray, mean: NDArray | None, std: NDArray | None = None) -> NDArray:
    """The image less a mean, divided by a standard deviation, in place."""
    if mean is not None:
        src -= mean
    if std is not None:
        src /= std
    return src


# -- turning -----------------------------------------------------------------------------------------------


def imrotate(src: NDArray, rotation_degrees: Any, zoom_in: bool = False, zoom_out: bool = False) -> NDArray:
    """The image, or a batch of them, turned about its middle; what was outside is 0.

    Args:
        src: float32, of shape (channels, height, width), or (images, channels, height, width).
        rotation_degrees: the angle; for a batch also an array of them.
        zoom_in: enlarge it so that nothing from outside shows.
        zoom_out: make it smaller, so that all of it shows.

    Raises:
        ValueError: both zooms, or as many angles as there are not images.
        TypeError: it is not float32, or several angles for one image.
        ShapeError: another number of axes.
    """
    if zoom_in and zoom_out:
        raise ValueError("imrotate: zoom_in and zoom_out are both True, expected at most one")
    if np.dtype(src.dtype) != np.float32:
        raise TypeError(f"imrotate: src has dtype {np.dtype(src.dtype).name}, expected float32")
    if src.ndim not in (3, 4):
        raise ShapeError(f"imrotate: src has shape {src.shape}, expected 3 axes, or 4 for a batch")
    if src.ndim == 3:
        if not isinstance(rotation_degrees, Real):
            raise TypeError("imrotate: one image is turned by one angle, and several were given")
        return imrotate(src.expand_dims(0), rotation_degrees, zoom_in, zoom_out)[0]
    if isinstance(rotation_degrees, Real):
        rotation_degrees = np.full(len(src), rotation_degrees, np.float32)
    elif isinstance(rotation_degrees, NDArray):
        rotation_degrees = rotation_degrees.asnumpy()
    if len(rotation_degrees) != len(src):
        raise ValueError(f"imrotate: {len(rotation_degrees)} angles for {len(src)} images, expected as many")
    grid = _turned_grid(
        src.shape[2], src.shape[3], np.radians(np.asarray(rotation_degrees, np.float64)), zoom_in, zoom_out
    )
    turned: NDArray = nd.BilinearSampler(src, nd.array(grid, ctx=src.context))
    return turned


def _turned_grid(h: int, w: int, angles: Any, zoom_in: bool, zoom_out: bool) -> Any:
    """The sampling grid of rotated images, with coordinates from -1 to 1: (images, 2, h, w)."""
    angles = angles[:, None, None]
    y, x = np.arange(h)[:, None] - (h - 1) / 2, np.arange(w)[None, :] - (w - 1) / 2
    across = (x * np.cos(angles) - y * np.sin(angles)) / ((w - 1) / 2)
    down = (x * np.sin(angles) + y * np.cos(angles)) / ((h - 1) / 2)
    grid = np.stack([across, down], 1)
    if zoom_in or zoom_out:
        grid *= _zoom(h, w, np.abs(angles), zoom_in)[:, None]
    return grid.astype(np.float32)


def _zoom(h: int, w: int, angles: Any, zoom_in: bool) -> Any:
    """The factor by which the grid of each rotated image is scaled, to fill the image or to show all of it."""
    diagonal, corner = math.hypot(h, w), math.atan2(h, w)
    both = np.stack([corner + angles, corner - angles])
    reach_x, reach_y = (np.abs(diagonal * f(both)).max(0) for f in (np.cos, np.sin))
    return np.minimum(w / reach_x, h / reach_y) if zoom_in else np.maximum(reach_x / w, reach_y / h)


def random_rotate(
    src: NDArray, angle_limits: tuple[float, float], zoom_in: bool = False, zoom_out: bool = False
) -> NDArray:
    """As :func:`imrotate`, by random angles between the two limits, each image of a batch by its own."""
    count = None if src.ndim == 3 else len(src)
    angles: Any = [rng.current().uniform(*angle_limits) for _ in range(count or 1)]
    return imrotate(src, angles[0] if count is None else np.array(angles), zoom_in, zoom_out)


def _shape(src: NDArray) -> tuple[int, int, int]:
    if len(src.shape) != 3:
        raise ShapeError(f"the image has shape {src.shape}, expected (height, width, channels)")
    return src.shape
