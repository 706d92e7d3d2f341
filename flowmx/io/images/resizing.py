"""Resizing of one image of bytes, as OpenCV does it."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowmx.ops.kernels.loops import resizing
from flowmx.ops.vision import resize as image_resize

Image = np.ndarray[Any, np.dtype[np.uint8]]


def resized(image: Image, new: tuple[int, int], interp: int) -> Image:
    """The image with another (height, width), by OpenCV's number of an interpolation."""
    if image.shape[:2] == new:
        return image
    out = np.empty((*new, image.shape[2]), np.uint8)
    if not resizing.resize(image, out, interp):
        image_resize.resize(np, image, out, interp)
    return out
