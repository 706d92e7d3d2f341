"""Transforms of the values of images: their element type, scale and colours."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowmx import ndarray as nd
from flowmx.data import rng
from flowmx.gluon.block import Block, HybridBlock
from flowmx.gluon.data.vision.transforms.composing import OnHost, RandomTransform, as_array
from flowmx.image.augmenters import RandomGrayAug
from flowmx.ndarray import NDArray
from flowmx.ops.registry.dtypes import as_dtype


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
