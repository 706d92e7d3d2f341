"""Transforms of images, as blocks: ``mx.gluon.data.vision.transforms``.

An image has the shape (height, width, channels) before :class:`ToTensor`, and (channels, height, width) after it.
On arrays, random transforms draw from the same generators as in MXNet: crops and `RandomApply` from Python's, rotations
from NumPy's, the others from the one that ``mx.random.seed`` seeds. On symbols, a random transform is an operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flowmx import image
from flowmx import ndarray as nd
from flowmx import symbol as sym
from flowmx.data import rng
from flowmx.devices.arrays import Array
from flowmx.gluon.block import Block, HybridBlock
from flowmx.gluon.data.vision.mixing import CutMix, MixUp
from flowmx.gluon.data.vision.rand_augment import RandAugment
from flowmx.gluon.data.vision.transform_bases import HostTransform, RandomTransform, as_array, can_run_on_host
from flowmx.gluon.hybrid import Layer
from flowmx.gluon.nn import HybridSequential, Sequential
from flowmx.image.augmenters import RandomGrayAug
from flowmx.image.layouts import expect_channels_last
from flowmx.ndarray import NDArray
from flowmx.ops.registry.dtypes import DTypeLike, as_dtype
from flowmx.ops.registry.tensors import Functions, Tensor

__all__ = [
    "Cast", "CenterCrop", "Compose", "CropResize", "CutMix", "HybridCompose", "HybridRandomApply", "MixUp",
    "Normalize", "RandAugment", "RandomApply", "RandomBrightness", "RandomColorJitter", "RandomContrast",
    "RandomCrop", "RandomFlipLeftRight", "RandomFlipTopBottom", "RandomGray", "RandomHue", "RandomLighting",
    "RandomResizedCrop", "RandomRotation", "RandomSaturation", "Resize", "Rotate", "ToTensor",
]  # fmt: skip

Size = int | Sequence[int]
Range = tuple[float, float]


def _pair(size: Size) -> tuple[int, int]:
    """Return (width, height)."""
    return (int(size), int(size)) if isinstance(size, int | np.integer) else (size[0], size[1])


def _check_layout(transform: HybridBlock, F: Functions, x: Tensor) -> None:
    """Warn if an array looks like (channels, height, width). The shape of a symbol is unknown, so it is not checked."""
    if F is not sym:
        expect_channels_last(type(transform).__name__, x)


# -- compositions ------------------------------------------------------------------------------------------


class Compose(Sequential):
    """Apply several transforms in turn.

    Args:
        transforms: the transforms.

    Example:
        >>> change = transforms.Compose([transforms.Resize(300), transforms.CenterCrop(256), transforms.ToTensor()])
        >>> change(mx.nd.zeros((224, 224, 3), dtype="uint8")).shape
        (3, 256, 256)
    """

    def __init__(self, transforms: Iterable[Block]) -> None:
        super().__init__()
        self.add(*transforms)

    def hybridize(self, active: bool = True, **kwargs: Any) -> None:
        """Do nothing: each image size would compile another graph."""

    def forward(self, x: Any, *args: Any) -> Any:
        """Return the transformed image."""
        for transform in self._children.values():
            if can_run_on_host(transform, x):
                x = transform.host(x._host() if isinstance(x, NDArray) else x)
            else:
                x = transform(as_array(x))
        return as_array(x)


class HybridCompose(HybridSequential):
    """Apply several transforms in turn; :meth:`hybridize` compiles them into one graph, for images of one size.

    Args:
        transforms: the transforms.

    Raises:
        TypeError: a transform is not a HybridBlock.
    """

    def __init__(self, transforms: Iterable[HybridBlock]) -> None:
        super().__init__()
        self.add(*transforms)


class RandomApply(Sequential):
    """Apply a transform with probability ``p``.

    Args:
        transforms: the transform; a list is composed.
        p: the probability.
    """

    def __init__(self, transforms: Any, p: float = 0.5) -> None:
        super().__init__()
        self.transforms = Compose(transforms) if isinstance(transforms, (list, tuple)) else transforms
        self.p = p

    def forward(self, x: NDArray, *args: object) -> NDArray:
        return self.transforms(x) if rng.python().random() <= self.p else x


class HybridRandomApply(HybridSequential):
    """Apply a transform with probability ``p``; on symbols, always compute it, and use its result at random.

    Args:
        transforms: the transform, a HybridBlock; it must not change the shape.
        p: the probability.
    """

    def __init__(self, transforms: HybridBlock, p: float = 0.5) -> None:
        super().__init__()
        self.transforms = transforms
        self.p = p

    def hybrid_forward(self, F: Functions, x: Tensor, *args: object) -> Tensor:
        if F is not sym:
            return self.transforms(x) if rng.current().random() < self.p else x
        draw = F.broadcast_add(F.zeros_like(F.cast(x, dtype="float32")), F.random.uniform(0, 1, shape=(1,)))
        image: Tensor = F.where(draw < self.p, self.transforms(x), x)
        return image


# -- types and scales --------------------------------------------------------------------------------------


class Cast(HostTransform, Layer):
    """Convert to another element type.

    Args:
        dtype: the element type.
    """

    def __init__(self, dtype: DTypeLike = "float32") -> None:
        super().__init__()
        self._dtype = dtype

    def hybrid_forward(self, F: Functions, x: Tensor, **kwargs: object) -> Tensor:
        return F.cast(x, dtype=self._dtype)

    def host(self, image: Array) -> Array:
        return image.astype(as_dtype(self._dtype), order="C")


class ToTensor(HostTransform, Layer):
    """Convert images (H, W, C) with values from 0 to 255 to float32 (C, H, W) with values from 0 to 1."""

    def hybrid_forward(self, F: Functions, x: Tensor, **kwargs: object) -> Tensor:
        _check_layout(self, F, x)
        return F.image.to_tensor(x)

    def host(self, image: Array) -> Array:
        expect_channels_last("ToTensor()", image)
        if image.ndim not in (3, 4):
            return nd.image.to_tensor(as_array(image)).asnumpy()  # raises the operator's error
        tensor = np.empty((*image.shape[:-3], image.shape[-1], *image.shape[-3:-1]), np.float32)
        return np.divide(np.moveaxis(image, -1, -3), np.float32(255), out=tensor, casting="unsafe", dtype=np.float32)


class Normalize(HostTransform, Layer):
    """``(x - mean) / std`` for each channel of (channels, height, width), or of a batch.

    Args:
        mean: a number, or one for each channel.
        std: a number, or one for each channel.
    """

    def __init__(self, mean: Any = 0.0, std: Any = 1.0) -> None:
        super().__init__()
        self._mean, self._std = (tuple(np.atleast_1d(value).astype(float).tolist()) for value in (mean, std))

    def hybrid_forward(self, F: Functions, x: Tensor, **kwargs: object) -> Tensor:
        return F.image.normalize(x, mean=self._mean, std=self._std)

    def host(self, image: Array) -> Array:
        if (
            image.dtype != np.float32
            or image.ndim not in (3, 4)
            or {len(self._mean), len(self._std)} - {1, image.shape[-3]}
        ):
            return nd.image.normalize(as_array(image), mean=self._mean, std=self._std).asnumpy()
        mean, std = (np.array(value, np.float32).reshape(-1, 1, 1) for value in (self._mean, self._std))
        difference = image - mean
        return np.divide(difference, std, out=difference)


# -- geometry ----------------------------------------------------------------------------------------------


class Rotate(Block):
    """Rotate float32 images (channels, height, width), or a batch, about the centre, without changing the size.

    Args:
        rotation_degrees: the angle.
        zoom_in: enlarge the image so that no pixels from outside it are visible.
        zoom_out: shrink the image so that all of it is visible.

    Raises:
        TypeError: in a call, the image is not float32.
    """

    def __init__(self, rotation_degrees: float, zoom_in: bool = False, zoom_out: bool = False) -> None:
        super().__init__()
        self._args = (rotation_degrees, zoom_in, zoom_out)

    def forward(self, x: NDArray, *args: object) -> NDArray:
        return image.imrotate(x, *self._args)


class RandomRotation(Block):
    """Rotate by a random angle; see :class:`Rotate`.

    Args:
        angle_limits: the smallest and the largest angle.
        zoom_in: enlarge the image so that no pixels from outside it are visible.
        zoom_out: shrink the image so that all of it is visible.
        rotate_with_proba: the probability of a rotation.

    Raises:
        ValueError: the limits are in the wrong order, or the probability is invalid.
        TypeError: in a call, the image is not float32.
    """

    def __init__(
        self, angle_limits: Range, zoom_in: bool = False, zoom_out: bool = False, rotate_with_proba: float = 1.0
    ) -> None:
        super().__init__()
        if angle_limits[0] >= angle_limits[1]:
            raise ValueError(f"RandomRotation: angle_limits is {angle_limits}, expected the smaller angle first")
        if not 0 <= rotate_with_proba <= 1:
            raise ValueError(f"RandomRotation: rotate_with_proba is {rotate_with_proba}, expected 0 to 1")
        self._args = (angle_limits, zoom_in, zoom_out)
        self._probability = rotate_with_proba

    def forward(self, x: NDArray, *args: object) -> NDArray:
        return image.random_rotate(x, *self._args) if rng.numpy().random_sample() <= self._probability else x


class RandomResizedCrop(Block):
    """Crop a random area with random proportions, and resize it; see :func:`~flowmx.image.random_size_crop`.

    Args:
        size: (width, height), or one number for both.
        scale: the smallest and the largest fraction of the image's area.
        ratio: the smallest and the largest width divided by height.
        interpolation: OpenCV's code of the interpolation.
    """

    def __init__(
        self, size: Size, scale: Range = (0.08, 1.0), ratio: Range = (3.0 / 4.0, 4.0 / 3.0), interpolation: int = 1
    ) -> None:
        super().__init__()
        self._args = (_pair(size), scale, ratio, interpolation)

    def forward(self, x: NDArray, *args: object) -> NDArray:
        expect_channels_last("RandomResizedCrop", x)
        return image.random_size_crop(x, *self._args)[0]


class RandomCrop(Block):
    """Crop at a random position; enlarge an image that is too small.

    Args:
        size: (width, height), or one number for both.
        pad: the width of a border to add first: one number, or (left and right, above and below).
        pad_value: the value of the border.
        interpolation: OpenCV's code of the interpolation.
    """

    def __init__(self, size: Size, pad: Size | None = None, pad_value: float = 0, interpolation: int = 1) -> None:
        super().__init__()
        self._args = (_pair(size), interpolation)
        self._pad = None if pad is None else _pair(pad)
        self._pad_value = pad_value

    def forward(self, x: NDArray, *args: object) -> NDArray:
        expect_channels_last("RandomCrop", x)
        if self._pad is not None:
            horizontal, vertical = self._pad
            x = image.copyMakeBorder(x, vertical, vertical, horizontal, horizontal, value=self._pad_value)
        return image.random_crop(x, *self._args)[0]


class CropResize(Layer):
    """Crop images, and optionally resize them.

    Args:
        x: the first column.
        y: the first row.
        width: the width of the crop, in pixels.
        height: the height of the crop, in pixels.
        size: (width, height) of the result, or one number for both.
        interpolation: OpenCV's code of the interpolation; 1 by default.
    """

    def __init__(
        self, x: int, y: int, width: int, height: int, size: Size | None = None, interpolation: int | None = None
    ) -> None:
        super().__init__()
        self._area = {"x": x, "y": y, "width": width, "height": height}
        self._size = size and _pair(size)
        self._interpolation = 1 if interpolation is None else interpolation

    def hybrid_forward(self, F: Functions, x: Tensor, **kwargs: object) -> Tensor:
        _check_layout(self, F, x)
        crop = F.image.crop(x, **self._area)
        return F.image.resize(crop, size=self._size, interp=self._interpolation) if self._size else crop


class CenterCrop(Block):
    """Crop the centre; enlarge an image that is too small.

    Args:
        size: (width, height), or one number for both.
        interpolation: OpenCV's code of the interpolation.
    """

    def __init__(self, size: Size, interpolation: int = 1) -> None:
        super().__init__()
        self._args = (_pair(size), interpolation)

    def forward(self, x: NDArray, *args: object) -> NDArray:
        expect_channels_last("CenterCrop", x)
        return image.center_crop(x, *self._args)[0]


class Resize(Layer):
    """Resize images.

    Args:
        size: (width, height), or one number.
        keep_ratio: a single number is the length of the shorter side; by default, of both sides.
        interpolation: OpenCV's code of the interpolation.
    """

    def __init__(self, size: Size, keep_ratio: bool = False, interpolation: int = 1) -> None:
        super().__init__()
        self._args = {"size": size, "keep_ratio": keep_ratio, "interp": interpolation}

    def hybrid_forward(self, F: Functions, x: Tensor, **kwargs: object) -> Tensor:
        _check_layout(self, F, x)
        return F.image.resize(x, **self._args)


class _RandomFlip(HostTransform, RandomTransform):
    _side: str
    _axis: int

    def draw(self, x: NDArray) -> NDArray:
        expect_channels_last(type(self).__name__, x)
        mirror: NDArray = getattr(nd.image, f"flip_{self._side}")(x) if rng.current().random() < 0.5 else x.copy()
        return mirror

    def operator(self, F: Functions, x: Tensor) -> Tensor:
        image: Tensor = getattr(F.image, f"random_flip_{self._side}")(x)
        return image

    def host(self, image: Array) -> Array:
        expect_channels_last(type(self).__name__, image)
        return np.flip(image, self._axis) if rng.current().random() < 0.5 else image


class RandomFlipLeftRight(_RandomFlip):
    """Mirror an image left to right with probability 0.5."""

    _side, _axis = "left_right", 1


class RandomFlipTopBottom(_RandomFlip):
    """Mirror an image top to bottom with probability 0.5."""

    _side, _axis = "top_bottom", 0


# -- colors -----------------------------------------------------------------------------------------------


class _RandomFactor(RandomTransform):
    """Base class of transforms with a random factor from ``max(0, 1 - limit)`` to ``1 + limit``."""

    _name: str

    def __init__(self, limit: float) -> None:
        super().__init__()
        self._range = (max(0.0, 1 - limit), 1 + limit)

    def draw(self, x: NDArray) -> NDArray:
        return adjust(self._name, x, rng.current().uniform(*self._range))

    def operator(self, F: Functions, x: Tensor) -> Tensor:
        image: Tensor = getattr(F.image, f"random_{self._name}")(
            x, min_factor=self._range[0], max_factor=self._range[1]
        )
        return image


def adjust(name: str, x: NDArray, factor: float) -> NDArray:
    """Change the brightness, contrast, saturation or hue of an image by a factor."""
    result: NDArray = getattr(nd.image, f"random_{name}")(x, min_factor=factor, max_factor=factor)
    return result


class RandomBrightness(_RandomFactor):
    """Multiply an image by a random factor.

    Args:
        brightness: the largest difference of the factor from 1.
    """

    _name = "brightness"

    def __init__(self, brightness: float) -> None:
        super().__init__(brightness)


class RandomContrast(_RandomFactor):
    """Change the contrast by a random factor.

    Args:
        contrast: the largest difference of the factor from 1.
    """

    _name = "contrast"

    def __init__(self, contrast: float) -> None:
        super().__init__(contrast)


class RandomSaturation(_RandomFactor):
    """Change the saturation by a random factor.

    Args:
        saturation: the largest difference of the factor from 1.
    """

    _name = "saturation"

    def __init__(self, saturation: float) -> None:
        super().__init__(saturation)


class RandomHue(_RandomFactor):
    """Rotate the hue at random.

    Args:
        hue: the largest rotation, as a fraction of the circle.
    """

    _name = "hue"

    def __init__(self, hue: float) -> None:
        super().__init__(hue)


class RandomColorJitter(RandomTransform):
    """Change brightness, contrast, saturation and hue, in random order.

    Args:
        brightness: the largest difference of the brightness factor from 1.
        contrast: the largest difference of the contrast factor from 1.
        saturation: the largest difference of the saturation factor from 1.
        hue: the largest rotation of the hue, as a fraction of the circle.
    """

    def __init__(self, brightness: float = 0, contrast: float = 0, saturation: float = 0, hue: float = 0) -> None:
        super().__init__()
        self._limits = {"brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue}

    def draw(self, x: NDArray) -> NDArray:
        names = [name for name, limit in self._limits.items() if limit > 0]
        for name in rng.current().sample(names, len(names)):
            limit = self._limits[name]
            x = adjust(name, x, max(0.0, 1 + rng.current().uniform(-limit, limit)))
        return x if names else x.copy()

    def operator(self, F: Functions, x: Tensor) -> Tensor:
        return F.image.random_color_jitter(x, **self._limits)


class RandomLighting(RandomTransform):
    """Add noise along the principal components of ImageNet's colors (Krizhevsky et al., 2012).

    Args:
        alpha: the standard deviation of the noise.
    """

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self._alpha = alpha

    def draw(self, x: NDArray) -> NDArray:
        alpha = tuple(rng.current().gauss(0, self._alpha) for _ in range(3))
        result: NDArray = nd.image.adjust_lighting(x, alpha=alpha)
        return result

    def operator(self, F: Functions, x: Tensor) -> Tensor:
        return F.image.random_lighting(x, alpha_std=self._alpha)


class RandomGray(Block):
    """Convert to gray with probability ``p``, keeping the three channels and the element type.

    Args:
        p: the probability.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self._gray = RandomGrayAug(p)

    def forward(self, x: NDArray, *args: object) -> NDArray:
        return self._gray(x.astype("float32")).astype(x.dtype)
