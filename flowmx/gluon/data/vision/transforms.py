"""Changes of images, as blocks: ``mx.gluon.data.vision.transforms``.

An image has the shape (height, width, channels) up to :class:`ToTensor`, and (channels, height, width) after it.

What is random draws, for an array, from the generator that ``mx.random.seed`` seeds and that a `DataLoader` starts anew
for each batch: so it is the same in whichever process or thread. Composed with symbols it is an operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flowmx import image
from flowmx import ndarray as nd
from flowmx import symbol as sym
from flowmx.data import rng
from flowmx.gluon.block import Block, HybridBlock
from flowmx.gluon.data.vision.transform_bases import OnHost, RandomTransform, as_array, is_for_host
from flowmx.gluon.nn import HybridSequential, Sequential
from flowmx.image.augmenters import RandomGrayAug
from flowmx.ndarray import NDArray
from flowmx.ops.registry.dtypes import as_dtype

__all__ = [
    "Cast", "CenterCrop", "Compose", "CropResize", "HybridCompose", "HybridRandomApply", "Normalize", "RandomApply",
    "RandomBrightness", "RandomColorJitter", "RandomContrast", "RandomCrop", "RandomFlipLeftRight",
    "RandomFlipTopBottom", "RandomGray", "RandomHue", "RandomLighting", "RandomResizedCrop", "RandomRotation",
    "RandomSaturation", "Resize", "Rotate", "ToTensor",
]  # fmt: skip

Size = int | Sequence[int]
Range = tuple[float, float]


def _pair(size: Size) -> tuple[int, int]:
    """(width, height)."""
    return (int(size), int(size)) if isinstance(size, int | np.integer) else (size[0], size[1])


# -- several -----------------------------------------------------------------------------------------------


class Compose(Sequential):
    """Several changes, one after the other.

    Args:
        transforms: the changes.

    Example:
        >>> change = transforms.Compose([transforms.Resize(300), transforms.CenterCrop(256), transforms.ToTensor()])
        >>> change(mx.nd.zeros((224, 224, 3), dtype="uint8")).shape
        (3, 256, 256)
    """

    def __init__(self, transforms: Iterable[Block]) -> None:
        super().__init__()
        self.add(*transforms)

    def hybridize(self, active: bool = True, **kwargs: Any) -> None:
        """Nothing: a graph would be compiled for each size that images have."""

    def forward(self, x: Any, *args: Any) -> Any:
        """The changed image."""
        for change in self._children.values():
            if is_for_host(change, x):
                x = change.host(x._host() if isinstance(x, NDArray) else x)
            else:
                x = change(as_array(x))
        return as_array(x)


class HybridCompose(HybridSequential):
    """Several changes, one after the other, that may be compiled together by :meth:`hybridize`: for images of one size.

    Args:
        transforms: the changes.

    Raises:
        TypeError: one is no HybridBlock.
    """

    def __init__(self, transforms: Iterable[HybridBlock]) -> None:
        super().__init__()
        self.add(*transforms)


class RandomApply(Sequential):
    """A change that is made with a probability.

    Args:
        transforms: the change; a list is composed.
        p: the probability.
    """

    def __init__(self, transforms: Any, p: float = 0.5) -> None:
        super().__init__()
        self.transforms = Compose(transforms) if isinstance(transforms, (list, tuple)) else transforms
        self.p = p

    def forward(self, x: Any, *args: Any) -> Any:
        return self.transforms(x) if rng.current().random() < self.p else x


class HybridRandomApply(HybridSequential):
    """A change that is made with a probability; composed with symbols it is made always, and taken with it.

    Args:
        transforms: the change, a HybridBlock; it must keep the shape.
        p: the probability.
    """

    def __init__(self, transforms: HybridBlock, p: float = 0.5) -> None:
        super().__init__()
        self.transforms = transforms
        self.p = p

    def hybrid_forward(self, F: Any, x: Any, *args: Any) -> Any:
        if F is not sym:
            return self.transforms(x) if rng.current().random() < self.p else x
        drawn = F.broadcast_add(F.zeros_like(F.cast(x, dtype="float32")), F.random.uniform(0, 1, shape=(1,)))
        return F.where(drawn < self.p, self.transforms(x), x)


# -- types and scales --------------------------------------------------------------------------------------


class Cast(OnHost, HybridBlock):
    """Another element type.

    Args:
        dtype: the element type.
    """

    def __init__(self, dtype: Any = "float32") -> None:
        super().__init__()
        self._dtype = dtype

    def hybrid_forward(self, F: Any, x: Any, **kwargs: Any) -> Any:
        return F.cast(x, dtype=self._dtype)

    def host(self, image: Any) -> Any:
        return image.astype(as_dtype(self._dtype), order="C")


class ToTensor(OnHost, HybridBlock):
    """Convert images (H, W, C) with values from 0 to 255 to float32 (C, H, W) with values from 0 to 1."""

    def hybrid_forward(self, F: Any, x: Any, **kwargs: Any) -> Any:
        return F.image.to_tensor(x)

    def host(self, image: Any) -> Any:
        if image.ndim not in (3, 4):
            return nd.image.to_tensor(as_array(image)).asnumpy()  # which says what is wrong
        made = np.empty((*image.shape[:-3], image.shape[-1], *image.shape[-3:-1]), np.float32)
        return np.divide(np.moveaxis(image, -1, -3), np.float32(255), out=made, casting="unsafe", dtype=np.float32)


class Normalize(OnHost, HybridBlock):
    """``(x - mean) / std`` for each channel of (channels, height, width), or of a batch.

    Args:
        mean: a number, or one for each channel.
        std: a number, or one for each channel.
    """

    def __init__(self, mean: Any = 0.0, std: Any = 1.0) -> None:
        super().__init__()
        self._mean, self._std = (tuple(np.atleast_1d(each).astype(float).tolist()) for each in (mean, std))

    def hybrid_forward(self, F: Any, x: Any, **kwargs: Any) -> Any:
        return F.image.normalize(x, mean=self._mean, std=self._std)

    def host(self, image: Any) -> Any:
        if (
            image.dtype != np.float32
            or image.ndim not in (3, 4)
            or {len(self._mean), len(self._std)} - {1, image.shape[-3]}
        ):
            return nd.image.normalize(as_array(image), mean=self._mean, std=self._std).asnumpy()
        mean, std = (np.array(each, np.float32).reshape(-1, 1, 1) for each in (self._mean, self._std))
        made = image - mean
        return np.divide(made, std, out=made)


# -- geometry ----------------------------------------------------------------------------------------------


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


# -- colours -----------------------------------------------------------------------------------------------


class _RandomFactor(RandomTransform):
    """Base of what changes by a factor from ``max(0, 1 - most)`` to ``1 + most``."""

    _name: str

    def __init__(self, most: float) -> None:
        super().__init__()
        self._range = (max(0.0, 1 - most), 1 + most)

    def drawn(self, x: NDArray) -> NDArray:
        return changed(self._name, x, rng.current().uniform(*self._range))

    def operator(self, F: Any, x: Any) -> Any:
        return getattr(F.image, f"random_{self._name}")(x, min_factor=self._range[0], max_factor=self._range[1])


def changed(name: str, x: NDArray, factor: float) -> NDArray:
    """An image with its brightness, contrast, saturation or hue changed by a factor."""
    made: NDArray = getattr(nd.image, f"random_{name}")(x, min_factor=factor, max_factor=factor)
    return made


class RandomBrightness(_RandomFactor):
    """Brighter or darker.

    Args:
        brightness: the factor differs from 1 by at most this.
    """

    _name = "brightness"

    def __init__(self, brightness: float) -> None:
        super().__init__(brightness)


class RandomContrast(_RandomFactor):
    """Nearer to its mean brightness, or farther from it.

    Args:
        contrast: the factor differs from 1 by at most this.
    """

    _name = "contrast"

    def __init__(self, contrast: float) -> None:
        super().__init__(contrast)


class RandomSaturation(_RandomFactor):
    """Less or more colourful.

    Args:
        saturation: the factor differs from 1 by at most this.
    """

    _name = "saturation"

    def __init__(self, saturation: float) -> None:
        super().__init__(saturation)


class RandomHue(_RandomFactor):
    """With its colours turned.

    Args:
        hue: at most by this part of the circle.
    """

    _name = "hue"

    def __init__(self, hue: float) -> None:
        super().__init__(hue)


class RandomColorJitter(RandomTransform):
    """Brightness, contrast, saturation and hue, in random order.

    Args:
        brightness: the factor differs from 1 by at most this.
        contrast: likewise.
        saturation: likewise.
        hue: the colours turn by at most this part of the circle.
    """

    def __init__(self, brightness: float = 0, contrast: float = 0, saturation: float = 0, hue: float = 0) -> None:
        super().__init__()
        self._most = {"brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue}

    def drawn(self, x: NDArray) -> NDArray:
        names = [name for name, most in self._most.items() if most > 0]
        for name in rng.current().sample(names, len(names)):
            most = self._most[name]
            x = changed(name, x, max(0.0, 1 + rng.current().uniform(-most, most)))
        return x if names else x.copy()

    def operator(self, F: Any, x: Any) -> Any:
        return F.image.random_color_jitter(x, **self._most)


class RandomLighting(RandomTransform):
    """Noise along the principal components of ImageNet's colours (Krizhevsky et al., 2012).

    Args:
        alpha: its standard deviation.
    """

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self._alpha = alpha

    def drawn(self, x: NDArray) -> NDArray:
        alpha = tuple(rng.current().gauss(0, self._alpha) for _ in range(3))
        made: NDArray = nd.image.adjust_lighting(x, alpha=alpha)
        return made

    def operator(self, F: Any, x: Any) -> Any:
        return F.image.random_lighting(x, alpha_std=self._alpha)


class RandomGray(Block):
    """Gray with a probability; it keeps its three channels and its element type.

    Args:
        p: the probability.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self._gray = RandomGrayAug(p)

    def forward(self, x: Any, *args: Any) -> Any:
        return self._gray(x.astype("float32")).astype(x.dtype)
