"""Random changes of an image's colours, on bytes, as OpenCV computes them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flowmx.io.images.options import Augmenting

Image = np.ndarray[Any, np.dtype[np.uint8]]
_EIGEN = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]]) * [
    55.46, 4.794, 1.148,
]  # fmt: skip
"""Principal components of ImageNet's colours, times their spread (Krizhevsky et al., 2012)."""
_GRAY = np.array([0.299, 0.587, 0.114], np.float32)
_ORDERS = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]


def _bytes(values: Any) -> Image:
    found: Image = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return found


def change(image: Image, options: Augmenting, u: Any) -> Image:
    """The image with other colours.

    Args:
        image: (height, width, 3), red first.
        options: the ranges of the changes.
        u: 10 random numbers from 0 to 1.
    """
    if image.shape[2] != 3:
        return image
    if options.brightness > 0 or options.contrast > 0 or options.saturation > 0:
        image = _jitter(image, options, u[:4])
    if options.random_h or options.random_s or options.random_l:
        most = np.array([options.random_h, options.random_l, options.random_s])
        image = _shift(image, np.trunc((2 * u[4:7] - 1) * most))
    if options.pca_noise > 0:
        image = _bytes(image + _EIGEN @ _normal(u[7:10], options.pca_noise))
    return image


def _jitter(image: Image, options: Augmenting, u: Any) -> Image:
    most = np.array([options.brightness, options.contrast, options.saturation])
    shares = 1 + (2 * u[:3] - 1) * most
    for kind in _ORDERS[min(int(u[3] * 6), 5)]:
        share = shares[kind]
        if kind == 0:
            image = _bytes(image * share)
        else:
            gray = np.rint(image @ _GRAY)
            other = gray.mean() if kind == 1 else gray[:, :, None]
            image = _bytes(image * share + (1 - share) * other)
    return image


def _normal(u: Any, spread: float) -> Any:
    """Normal numbers of three uniform ones (Box and Muller)."""
    radius = np.sqrt(-2 * np.log(1 - u)) * spread
    return radius * np.cos(2 * math.pi * np.roll(u, 1))


# -- hue, lightness, saturation ------------------------------------------------------------------------------


def _shift(image: Image, by: Any) -> Image:
    """The image with numbers added to its hue (0 to 180), lightness and saturation (0 to 255)."""
    shifted = np.clip(to_hls(image) + by, 0, [180, 255, 255])
    return from_hls(shifted)


def to_hls(image: Image) -> Any:
    """Hue, lightness and saturation of an image, as OpenCV gives them for bytes."""
    rgb = image.astype(np.float32) / 255
    top, bottom = rgb.max(2), rgb.min(2)
    spread, light = top - bottom, (top + bottom) / 2
    safe = np.where(spread > 0, spread, 1)
    r, g, b = (rgb[:, :, k] for k in range(3))
    hue = np.where(top == r, (g - b) / safe, np.where(top == g, 2 + (b - r) / safe, 4 + (r - g) / safe)) * 60 % 360
    divisor = np.where(light < 0.5, top + bottom, 2 - top - bottom)
    saturation = np.where(spread > 0, spread / np.where(divisor > 0, divisor, 1), 0)
    hue = np.where(spread > 0, hue, 0)
    return np.stack([np.rint(hue / 2) % 180, np.rint(light * 255), np.rint(saturation * 255)], 2)


def from_hls(hls: Any) -> Image:
    """The image with this hue, lightness and saturation."""
    hue, light, saturation = hls[:, :, 0] / 30, hls[:, :, 1] / 255, hls[:, :, 2] / 255
    high = np.where(light <= 0.5, light * (1 + saturation), light + saturation - light * saturation)
    low = 2 * light - high
    channels = []
    for turn in (2, 0, -2):
        at = (hue + turn) % 6
        part = np.where(at < 1, at, np.where(at < 3, 1, np.where(at < 4, 4 - at, 0)))
        channels.append(low + (high - low) * part)
    return _bytes(np.stack(channels, 2) * 255)
