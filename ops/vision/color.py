"""Color formulas: luminance, principal components, YIQ and HLS, and the adjustments of the operators.

Images have the shape (..., height, width, channels), red first; ``xp`` is the array module (NumPy or CuPy).
`flowmx.data.augmentation` and the augmenters of `mx.image` use the same constants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowmx.ops.registry.operators import Array
from flowmx.ops.registry.tensors import ArrayNamespace

LUMINANCE = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the luminance (ITU-R BT.601)."""
PCA_VALUES = (55.46, 4.794, 1.148)
PCA_VECTORS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))
"""Principal components of ImageNet's colors, and their standard deviations (Krizhevsky et al., 2012)."""
PCA = np.array(PCA_VECTORS) * PCA_VALUES
"""Matrix from shifts along the components, in standard deviations, to shifts of red, green and blue."""
RGB_TO_YIQ = np.array([LUMINANCE, [0.596, -0.274, -0.321], [0.211, -0.523, 0.311]])
YIQ_TO_RGB = np.array([[1.0, 0.956, 0.621], [1.0, -0.272, -0.647], [1.0, -1.107, 1.705]])

_SECTORS = np.array([[0, 3, 1], [2, 0, 1], [1, 0, 3], [1, 2, 0], [3, 1, 0], [0, 1, 2]])
"""For each sixth of the circle of hues, whether red, green and blue are full (0), empty (1), falling or rising."""


def yiq_rotation(turn: float) -> Any:
    """Build the matrix (3, 3) that rotates the hue of (red, green, blue) in YIQ space; ``turn`` 1 is half a circle."""
    u, w = math.cos(math.pi * turn), math.sin(math.pi * turn)
    return YIQ_TO_RGB @ np.array([[1.0, 0.0, 0.0], [0.0, u, -w], [0.0, w, u]]) @ RGB_TO_YIQ


def rgb_to_hls(xp: ArrayNamespace, image: Array) -> tuple[Array, Array, Array]:
    """Compute hue (0 to 360 degrees), lightness and saturation (0 to 1) of colors from 0 to 1, in OpenCV's order."""
    red, green, blue = xp.moveaxis(image, -1, 0)
    high, low = image.max(-1), image.min(-1)
    chroma, total = high - low, high + low
    is_gray = chroma <= np.finfo(np.float32).eps
    degrees = 60 / xp.where(is_gray, 1, chroma)
    light = total / 2
    saturation = xp.where(is_gray, 0, chroma / xp.where(is_gray, 1, xp.where(light < 0.5, total, 2 - high - low)))
    hue = xp.where(
        high == red,
        (green - blue) * degrees,
        xp.where(high == green, (blue - red) * degrees + 120, (red - green) * degrees + 240),
    )
    return xp.where(is_gray, 0, xp.where(hue < 0, hue + 360, hue)).astype(image.dtype), light, saturation


def hls_to_rgb(xp: ArrayNamespace, sixths: Array, light: Array, saturation: Array) -> Array:
    """Compute colors from 0 to 1; the hue is given in sixths of the circle."""
    sixths = xp.mod(sixths, 6)
    top = xp.where(light <= 0.5, light * (1 + saturation), light + saturation - light * saturation)
    bottom = 2 * light - top
    sector = sixths.astype(np.int64) % 6
    rest = sixths - sector
    choices = xp.stack([top, bottom, bottom + (top - bottom) * (1 - rest), bottom + (top - bottom) * rest])
    result: Array = xp.take_along_axis(choices[..., None], xp.asarray(_SECTORS)[sector][None], 0)[0]
    return result


# -- adjustments ---------------------------------------------------------------------------------------------


def brightness(xp: ArrayNamespace, image: Array, factor: float) -> Array:
    """Multiply the colors."""
    return image * xp.float32(factor)


def contrast(xp: ArrayNamespace, image: Array, factor: float) -> Array:
    """Multiply the distance to the mean luminance."""
    gray = (image * xp.asarray(LUMINANCE, np.float32)).sum(-1) if image.shape[-1] > 1 else image
    return image * xp.float32(factor) + xp.float32((1 - factor) * float(gray.mean(dtype=np.float64)))


def saturation(xp: ArrayNamespace, image: Array, factor: float) -> Array:
    """Multiply the distance to gray; as in MXNet, gray is computed from the last channel only."""
    if image.shape[-1] == 1:
        return image
    gray = image[..., -1:] * np.float32(LUMINANCE[-1])
    result: Array = gray * xp.float32(1 - factor) + image * xp.float32(factor)
    return result


def hue(xp: ArrayNamespace, image: Array, turn: float) -> Array:
    """Rotate the hue in HLS space by a fraction of the circle."""
    if image.shape[-1] == 1:
        return image
    kind = image.dtype.type
    degrees, light, saturation = rgb_to_hls(xp, image / xp.float32(255))
    return hls_to_rgb(xp, (degrees + kind(turn * 360)) * kind(1 / 60), light, saturation) * xp.float32(255)


ADJUSTMENTS = {"brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue}
"""Adjustments by name: functions of the array module, an image of floats up to 255, and a factor or turn."""


def lighting(xp: ArrayNamespace, image: Array, alpha: Sequence[float]) -> Array:
    """Shift the colors along their principal components; an image of one channel is unchanged."""
    shift = PCA @ np.asarray(alpha) if image.shape[-1] == 3 else np.zeros(1)
    return image + xp.asarray(shift.astype(np.float32))
