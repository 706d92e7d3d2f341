"""`RandAugment`: random combinations of simple changes of images."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import numpy as np

from flowmx import engine
from flowmx import ndarray as nd
from flowmx.data import rng
from flowmx.data.augmentation.geometry import warp
from flowmx.devices import cpu
from flowmx.devices.arrays import Array
from flowmx.errors import ArgumentError
from flowmx.gluon.block import Block
from flowmx.gluon.data.vision.transform_bases import HostTransform
from flowmx.ndarray import NDArray
from flowmx.semantics import with_semantics

__all__ = ["RandAugment"]

Image = Array
"""An array of uint8, (height, width, channels)."""


class RandAugment(HostTransform, Block):
    """Apply randomly chosen changes to an image: rotation, shear, translation, colors, contrast and others.

    The changes and their strengths are those of torchvision's class of the same name. They are drawn from the generator
    that ``mx.random.seed`` seeds, and computed on the CPU. Apply it before :class:`ToTensor`.

    Cubuk et al., RandAugment: Practical automated data augmentation with a reduced search space, arXiv:1909.13719.

    Args:
        num_ops: the number of changes of an image.
        magnitude: their strength, from 0 to ``num_magnitude_bins - 1``.
        num_magnitude_bins: the number of strengths.
        fill: the value of pixels from outside the image.
        interpolation: 0 for the nearest pixel, 1 for linear interpolation.

    Raises:
        ValueError: an argument is out of its range; in a call, the image is not (height, width, channels).
        TypeError: in a call, the image is not uint8.

    Example:
        >>> change = transforms.Compose([transforms.RandAugment(), transforms.ToTensor()])
        >>> change(mx.nd.zeros((32, 32, 3), dtype="uint8")).shape
        (3, 32, 32)
    """

    def __init__(
        self, num_ops: int = 2, magnitude: int = 9, num_magnitude_bins: int = 31, fill: int = 0, interpolation: int = 0
    ) -> None:
        super().__init__()
        if num_ops < 0:
            raise ArgumentError(f"RandAugment: num_ops is {num_ops}, expected at least 0")
        if not 0 <= magnitude < num_magnitude_bins:
            raise ArgumentError(
                f"RandAugment: magnitude is {magnitude}, expected 0 to {num_magnitude_bins - 1} "
                f"(num_magnitude_bins={num_magnitude_bins})"
            )
        if num_magnitude_bins < 2:
            raise ArgumentError(f"RandAugment: num_magnitude_bins is {num_magnitude_bins}, expected at least 2")
        self._num_ops, self._strength = num_ops, magnitude / (num_magnitude_bins - 1)
        self._fill, self._interpolation = fill, interpolation

    def draw(self) -> list[tuple[str, float]]:
        """Draw the changes of an image: their names, and their strengths from -1 to 1."""
        generator = rng.current()
        names = [generator.choice(list(CHANGES)) for _ in range(self._num_ops)]
        return [
            (name, self._strength * (generator.choice((-1, 1)) if name in _SIGNED else 1)) for name in names
        ]  # fmt: skip

    def forward(self, x: NDArray, *args: object) -> NDArray:
        """Enqueue the changes of an image, and return the new one."""
        _check(x)
        changes = self.draw()
        if x.context.device_type == "gpu":
            x = x.as_in_context(cpu())
        out = nd.empty(x.shape, x.context, "uint8")

        def compute() -> None:
            np.from_dlpack(out)[...] = self.transform(np.from_dlpack(x), changes)

        engine.push(compute, reads=[x], writes=[out], name="RandAugment")
        return cast("NDArray", with_semantics(out))

    def host(self, image: Image) -> Image:
        _check(image)
        return self.transform(image, self.draw())

    def transform(self, image: Image, changes: list[tuple[str, float]]) -> Image:
        """Return an image with changes, of the form of :meth:`draw`; a NumPy array."""
        for name, strength in changes:
            image = CHANGES[name](image, strength, self._fill, self._interpolation)
        return image


def _check(image: object) -> None:
    if not isinstance(image, (NDArray, np.ndarray)) or image.dtype != np.uint8:
        kind = type(image).__name__ if not hasattr(image, "dtype") else f"an array of {np.dtype(image.dtype).name}"
        raise TypeError(f"RandAugment: the image is {kind}, expected uint8: apply it before ToTensor")
    if len(image.shape) != 3:
        raise ArgumentError(f"RandAugment: the image has shape {image.shape}, expected (height, width, channels)")


# -- changes: functions of an image, a strength from -1 to 1, the value outside the image, and the interpolation -------


def _warp(image: Image, matrix: object, shift: object, fill: int, interpolation: int) -> Image:
    return warp(image, np.array(matrix, np.float64), shift, image.shape[:2], fill, interpolation)


def _shear_x(image: Image, strength: float, fill: int, interpolation: int) -> Image:
    return _warp(image, [[1, 0.3 * strength], [0, 1]], (0, 0), fill, interpolation)


def _shear_y(image: Image, strength: float, fill: int, interpolation: int) -> Image:
    return _warp(image, [[1, 0], [0.3 * strength, 1]], (0, 0), fill, interpolation)


def _translate_x(image: Image, strength: float, fill: int, interpolation: int) -> Image:
    return _warp(image, np.eye(2), (int(150 / 331 * image.shape[1] * strength), 0), fill, interpolation)


def _translate_y(image: Image, strength: float, fill: int, interpolation: int) -> Image:
    return _warp(image, np.eye(2), (0, int(150 / 331 * image.shape[0] * strength)), fill, interpolation)


def _rotate(image: Image, strength: float, fill: int, interpolation: int) -> Image:
    angle = math.radians(30 * strength)
    matrix = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    centre = np.array([(image.shape[1] - 1) / 2, (image.shape[0] - 1) / 2])
    return _warp(image, matrix, centre - matrix @ centre, fill, interpolation)


def _blend(base: object, image: Image, strength: float) -> Image:
    """Return the image moved away from a base by a factor of 1 + 0.9 * strength, rounded down as in PIL."""
    base = np.asarray(base, np.float32)
    blended = base + np.float32(1 + 0.9 * strength) * (image.astype(np.float32) - base)
    return np.clip(blended, 0, 255).astype(np.uint8)


def _gray(image: Image) -> Array:
    """Return an image's luminance as in PIL, (height, width, 1); images without three channels are their own."""
    if image.shape[2] != 3:
        return image
    luminance: Array = (image.astype(np.int32) @ np.array([19595, 38470, 7471]) + 0x8000) >> 16
    return luminance[..., None].astype(np.uint8)


def _brightness(image: Image, strength: float, fill: int, interpolation: int) -> Image:
    return _blend(0, image, strength)


def _color(image: Image, strength: float, fill: int, interpolation: int) -> Image:
    return _blend(_gray(image), image, strength)


def _contrast(image: Image, strength: float, fill: int, interpolation: int) -> Image:
    return _blend(int(_gray(image).mean() + 0.5), image, strength)


def _sharpness(image: Image, strength: float, fill: int, interpolation: int) -> Image:
    smooth = image.copy()
    if min(image.shape[:2]) > 2:
        wide, (height, width) = image.astype(np.int32), image.shape[:2]
        windows = [wide[y : height - 2 + y, x : width - 2 + x] for y in range(3) for x in range(3)]
        total = np.sum(windows, axis=0) + 4 * windows[4]
        smooth[1:-1, 1:-1] = (total / 13 + 0.5).astype(np.uint8)
    return _blend(smooth, image, strength)


def _posterize(image: Image, strength: float, fill: int, interpolation: int) -> Image:
    return image & np.uint8(256 - (1 << round(4 * strength)))


def _solarize(image: Image, strength: float, fill: int, interpolation: int) -> Image:
    return np.where(image < 255 * (1 - strength), image, 255 - image)


def _map_channels(image: Image, table: Callable[[Array], Array]) -> Image:
    """Map the values of each channel by a table of 256 values, a function of the channel's histogram."""
    out = np.empty_like(image)
    for channel in range(image.shape[2]):
        values = image[..., channel]
        out[..., channel] = table(np.bincount(values.ravel(), minlength=256))[values]
    return out


def _auto_contrast(image: Image, strength: float, fill: int, interpolation: int) -> Image:
    return _map_channels(image, _contrast_table)


def _contrast_table(histogram: Array) -> Array:
    low, high = np.flatnonzero(histogram)[[0, -1]]
    if high <= low:
        return np.arange(256, dtype=np.uint8)
    scale = 255 / (high - low)
    table: Array = np.arange(256) * scale - low * scale
    return np.clip(table.astype(np.int32), 0, 255).astype(np.uint8)


def _equalize(image: Image, strength: float, fill: int, interpolation: int) -> Image:
    return _map_channels(image, _equal_table)


def _equal_table(histogram: Array) -> Array:
    step = (histogram.sum() - histogram[histogram > 0][-1]) // 255
    if not step:
        return np.arange(256, dtype=np.uint8)
    below = np.concatenate([[0], np.cumsum(histogram)[:-1]])
    table: Array = (step // 2 + below) // step
    return np.minimum(table, 255).astype(np.uint8)


def _identity(image: Image, strength: float, fill: int, interpolation: int) -> Image:
    return image


CHANGES: dict[str, Callable[[Image, float, int, int], Image]] = {
    "Identity": _identity, "ShearX": _shear_x, "ShearY": _shear_y, "TranslateX": _translate_x,
    "TranslateY": _translate_y, "Rotate": _rotate, "Brightness": _brightness, "Color": _color, "Contrast": _contrast,
    "Sharpness": _sharpness, "Posterize": _posterize, "Solarize": _solarize, "AutoContrast": _auto_contrast,
    "Equalize": _equalize,
}  # fmt: skip
_SIGNED = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast", "Sharpness")
