"""Random changes of an image's colours, on bytes, as OpenCV computes them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flowmx.data.augmentation.options import Augmenting
from flowmx.data.codecs import Image
from flowmx.ops.vision import color

_LUMINANCE = np.array(color.LUMINANCE, np.float32)
_ORDERS = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]


def as_bytes(values: Any) -> Image:
    """Round numbers to bytes; those outside become 0 or 255."""
    found: Image = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return found


def jitter(image: Image, options: Augmenting, u: Any) -> Image:
    """The image with other colours.

    Args:
        image: (height, width, 3), red first.
        options: the ranges of the changes.
        u: 10 random numbers from 0 to 1.
    """
    if image.shape[2] != 3:
        return image
    if options.brightness > 0 or options.contrast > 0 or options.saturation > 0:
        image = _multiplied(image, options, u[:4])
    if options.random_h or options.random_s or options.random_l:
        most = np.array([options.random_h, options.random_l, options.random_s])
        image = shifted(image, np.trunc((2 * u[4:7] - 1) * most))
    if options.pca_noise > 0:
        image = as_bytes(image + color.PCA @ _normal(u[7:10], options.pca_noise))
    return image


def _multiplied(image: Image, options: Augmenting, u: Any) -> Image:
    most = np.array([options.brightness, options.contrast, options.saturation])
    shares = 1 + (2 * u[:3] - 1) * most
    for kind in _ORDERS[min(int(u[3] * 6), 5)]:
        share = shares[kind]
        if kind == 0:
            image = as_bytes(image * share)
        else:
            gray = np.rint(image @ _LUMINANCE)
            other = gray.mean() if kind == 1 else gray[:, :, None]
            image = as_bytes(image * share + (1 - share) * other)
    return image


def _normal(u: Any, spread: float) -> Any:
    """Normal numbers of three uniform ones (Box and Muller)."""
    radius = np.sqrt(-2 * np.log(1 - u)) * spread
    return radius * np.cos(2 * math.pi * np.roll(u, 1))


# -- hue, lightness, saturation ------------------------------------------------------------------------------


def shifted(image: Image, by: Any) -> Image:
    """Add numbers to the hue (0 to 180), lightness and saturation (0 to 255) of an image."""
    return from_hls(np.clip(to_hls(image) + by, 0, [180, 255, 255]))


def to_hls(image: Image) -> Any:
    """Compute hue, lightness and saturation of an image as integers, as OpenCV does for bytes."""
    hue, light, saturation = color.rgb_to_hls(np, image.astype(np.float32) * np.float32(1 / 255))
    return np.stack([np.rint(hue / 2) % 180, np.rint(light * 255), np.rint(saturation * 255)], -1)


def from_hls(hls: Any) -> Image:
    """Compute the image with this hue, lightness and saturation."""
    hue, light, saturation = np.moveaxis(hls, -1, 0)
    return as_bytes(color.hls_to_rgb(np, hue / 30, light / 255, saturation / 255) * 255)
