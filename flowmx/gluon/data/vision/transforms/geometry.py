"""Transforms of images that move their pixels: turned, cropped, resized, mirrored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowmx import image
from flowmx import ndarray as nd
from flowmx.data import rng
from flowmx.gluon.block import Block, HybridBlock
from flowmx.gluon.data.vision.transforms.composing import OnHost, RandomTransform
from flowmx.ndarray import NDArray

Size = int | Sequence[int]
Range = tuple[float, float]


def _pair(size: Size) -> tuple[int, int]:
    """(width, height)."""
    return (int(size), int(size)) if isinstance(size, int | np.integer) else (size[0], size[1])


class Rotate(Block):
    """Turned about its middle, in its old size; float32 images (channels, height, width), or a batch.

    Args:
        rotation_degrees: the angle.
        zoom_in: enlarge it so that nothing from outside shows.
        zoom_out: make it smaller, so that all of it shows.

    Raises:
        TypeError: (called) the image is not float32.
    """

    def __init__(self, rotation_degrees: float, zoom_in: bool = False, zoom_out: bool = False) -> None:
        super().__init__()
        self._args = (rotation_degrees, zoom_in, zoom_out)

    def forward(self, x: Any, *args: Any) -> Any:
        return image.imrotate(x, *self._args)


class RandomRotation(Block):
    """Turned by a random angle; see :class:`Rotate`.

    Args:
        angle_limits: the least and the greatest angle.
        zoom_in: enlarge it so that nothing from outside shows.
        zoom_out: make it smaller, so that all of it shows.
        rotate_with_proba: the probability that it is turned at all.

    Raises:
        ValueError: the limits are in the wrong order, or the probability is none.
        TypeError: (called) the image is not float32.
    """

    def __init__(
        self, angle_limits: Range, zoom_in: bool = False, zoom_out: bool = False, rotate_with_proba: float = 1.0
    ) -> None:
        super().__init__()
        if angle_limits[0] >= angle_limits[1]:
            raise ValueError(f"RandomRotation: angle_limits is {angle_limits}, expected the lesser angle first")
        if not 0 <= rotate_with_proba <= 1:
            raise ValueError(f"RandomRotation: rotate_with_proba is {rotate_with_proba}, expected 0 to 1")
        self._args = (angle_limits, zoom_in, zoom_out)
        self._probability = rotate_with_proba

    def forward(self, x: Any, *args: Any) -> Any:
        return image.random_rotate(x, *self._args) if rng.current().random() < self._probability else x


class RandomResizedCrop(Block):
    """A part of random area and proportions, brought to one size; see :func:`~flowmx.image.random_size_crop`.

    Args:
        size: (width, height), or one number for both.
        scale: the least and the greatest share of the image's area.
        ratio: the least and the greatest width divided by height.
        interpolation: OpenCV's number.
    """

    def __init__(
        self, size: Size, scale: Range = (0.08, 1.0), ratio: Range = (3.0 / 4.0, 4.0 / 3.0), interpolation: int = 1
    ) -> None:
        super().__init__()
        self._args = (_pair(size), scale, ratio, interpolation)

    def forward(self, x: Any, *args: Any) -> Any:
        return image.random_size_crop(x, *self._args)[0]


class RandomCrop(Block):
    """A part of this size from anywhere; enlarged, where the image is too small.

    Args:
        size: (width, height), or one number for both.
        pad: give it a border of this width before; two numbers: to the left and right, and above and below.
        pad_value: the value of the border.
        interpolation: OpenCV's number.
    """

    def __init__(self, size: Size, pad: Size | None = None, pad_value: float = 0, interpolation: int = 1) -> None:
        super().__init__()
        self._args = (_pair(size), interpolation)
        self._pad = None if pad is None else _pair(pad)
        self._pad_value = pad_value

    def forward(self, x: Any, *args: Any) -> Any:
        if self._pad is not None:
            across, down = self._pad
            x = image.copyMakeBorder(x, down, down, across, across, value=self._pad_value)
        return image.random_crop(x, *self._args)[0]


class CropResize(HybridBlock):
    """A part of images, given another size where one is given.

    Args:
        x: the first column.
        y: the first row.
        width: the width of the crop, in pixels.
        height: the height of the crop, in pixels.
        size: (width, height) of the result, or one number for both.
        interpolation: OpenCV's number; 1 by default.
    """

    def __init__(
        self, x: int, y: int, width: int, height: int, size: Size | None = None, interpolation: int | None = None
    ) -> None:
        super().__init__()
        self._part = {"x": x, "y": y, "width": width, "height": height}
        self._size = size and _pair(size)
        self._interpolation = 1 if interpolation is None else interpolation

    def hybrid_forward(self, F: Any, x: Any, **kwargs: Any) -> Any:
        part = F.image.crop(x, **self._part)
        return F.image.resize(part, size=self._size, interp=self._interpolation) if self._size else part


class CenterCrop(Block):
    """The middle of the image; enlarged, where it is too small.

    Args:
        size: (width, height), or one number for both.
        interpolation: OpenCV's number.
    """

    def __init__(self, size: Size, interpolation: int = 1) -> None:
        super().__init__()
        self._args = (_pair(size), interpolation)

    def forward(self, x: Any, *args: Any) -> Any:
        return image.center_crop(x, *self._args)[0]


class Resize(HybridBlock):
    """Images of another size.

    Args:
        size: (width, height), or one number.
        keep_ratio: where size is one number, the shorter side gets it; otherwise both do.
        interpolation: OpenCV's number.
    """

    def __init__(self, size: Size, keep_ratio: bool = False, interpolation: int = 1) -> None:
        super().__init__()
        self._args = {"size": size, "keep_ratio": keep_ratio, "interp": interpolation}

    def hybrid_forward(self, F: Any, x: Any, **kwargs: Any) -> Any:
        return F.image.resize(x, **self._args)


class _RandomFlip(OnHost, RandomTransform):
    _side: str
    _axis: int

    def drawn(self, x: NDArray) -> NDArray:
        made: NDArray = getattr(nd.image, f"flip_{self._side}")(x) if rng.current().random() < 0.5 else x.copy()
        return made

    def operator(self, F: Any, x: Any) -> Any:
        return getattr(F.image, f"random_flip_{self._side}")(x)

    def host(self, image: Any) -> Any:
        return np.flip(image, self._axis) if rng.current().random() < 0.5 else image


class RandomFlipLeftRight(_RandomFlip):
    """Every second image mirrored, at random."""

    _side, _axis = "left_right", 1


class RandomFlipTopBottom(_RandomFlip):
    """Every second image upside down, at random."""

    _side, _axis = "top_bottom", 0
