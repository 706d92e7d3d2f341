"""Random changes of an image's colors, on uint8, as OpenCV computes them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flowmx.data.augmentation.options import AugmentOptions
from flowmx.data.codecs import Image
from flowmx.ops.registry.operators import Array
from flowmx.ops.vision import color

_LUMINANCE = np.array(color.LUMINANCE, np.float32)
_ORDERS = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]


def as_bytes(values: Any) -> Image:
    """Round numbers to uint8, limited to 0 and 255."""
    rounded: Image = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return rounded


def jitter(image: Image, options: AugmentOptions, u: Any) -> Image:
    """Change the colors of an image.

    Args:
        image: (height, width, 3), red first.
        options: the ranges of the changes.
        u: 10 random numbers from 0 to 1.
    """
    if image.shape[2] != 3:
        return image
    if options.brightness > 0 or options.contrast > 0 or options.saturation > 0:
        image = _multiply(image, options, u[:4])
    if options.random_h or options.random_s or options.random_l:
        limits = np.array([options.random_h, options.random_l, options.random_s])
        image = shift_hls(image, np.trunc((2 * u[4:7] - 1) * limits))
    if options.pca_noise > 0:
        image = as_bytes(image + color.PCA @ _normal(u[7:10], options.pca_noise))
    return image


def _multiply(image: Image, options: AugmentOptions, u: Any) -> Image:
    limits = np.array([options.brightness, options.contrast, options.saturation])
    factors = 1 + (2 * u[:3] - 1) * limits
    for kind in _ORDERS[min(int(u[3] * 6), 5)]:
        factor = factors[kind]
        if kind == 0:
            image = as_bytes(image * factor)
        else:
            gray = np.rint(image @ _LUMINANCE)
            other = gray.mean() if kind == 1 else gray[:, :, None]
            image = as_bytes(image * factor + (1 - factor) * other)
    return image


def _normal(u: Any, spread: float) -> Any:
    """Return normally distributed numbers, computed from three uniform ones (Box and Muller)."""
    radius = np.sqrt(-2 * np.log(1 - u)) * spread
    return radius * np.cos(2 * math.pi * np.roll(u, 1))


# -- hue, lightness, saturation ------------------------------------------------------------------------------


def shift_hls(image: Image, offsets: object) -> Image:
    """Add three offsets to the hue (0 to 180), lightness and saturation (0 to 255) of an image."""
    return from_hls(np.clip(to_hls(image) + offsets, 0, [180, 255, 255]))


def to_hls(image: Image) -> Array:
    """Compute hue, lightness and saturation of an image as integers, as OpenCV does for bytes."""
    hue, light, saturation = color.rgb_to_hls(np, image.astype(np.float32) * np.float32(1 / 255))
    return np.stack([np.rint(hue / 2) % 180, np.rint(light * 255), np.rint(saturation * 255)], -1)


def from_hls(hls: Any) -> Image:
    """Convert hue, lightness and saturation back to an image."""
    hue, light, saturation = np.moveaxis(hls, -1, 0)
    return as_bytes(color.hls_to_rgb(np, hue / 30, light / 255, saturation / 255) * 255)
