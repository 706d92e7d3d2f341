"""Augmenters: changes of an image, fixed or random, as objects that tell what they do."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowmx import ndarray as nd
from flowmx.data import rng
from flowmx.image import functions
from flowmx.ndarray import NDArray
from flowmx.ops.vision import color

_MEAN, _STD = (123.68, 116.28, 103.53), (58.395, 57.12, 57.375)


class Described:
    """Base of augmenters: keeps the constructor's arguments for ``dumps``.

    Args:
        **kwargs: these arguments.
    """

    def __init__(self, **kwargs: Any) -> None:
        self._kwargs = {name: _plain(value) for name, value in kwargs.items()}

    def dumps(self) -> Any:
        """Its name and arguments as JSON."""
        return json.dumps([type(self).__name__.lower(), self._kwargs])


class Augmenter(Described):
    """Base of the augmenters: called with an image, it returns another."""

    def __call__(self, src: NDArray) -> NDArray:
        raise NotImplementedError(f"{type(self).__name__} must implement __call__(src)")


def _plain(value: Any) -> Any:
    if isinstance(value, NDArray):
        value = value.asnumpy()
    return value.tolist() if isinstance(value, np.ndarray) else value


class SequentialAug(Augmenter):
    """Several augmenters, one after the other."""

    def __init__(self, ts: Sequence[Augmenter]) -> None:
        super().__init__()
        self.ts = list(ts)

    def dumps(self) -> Any:
        return [type(self).__name__.lower(), [each.dumps() for each in self.ts]]

    def __call__(self, src: NDArray) -> NDArray:
        for each in self.ts:
            src = each(src)
        return src


class RandomOrderAug(SequentialAug):
    """Several augmenters, in a random order."""

    def __call__(self, src: NDArray) -> NDArray:
        for each in rng.current().sample(self.ts, len(self.ts)):
            src = each(src)
        return src


# -- sizes -------------------------------------------------------------------------------------------------


class ResizeAug(Augmenter):
    """The shorter side gets this length (see :func:`~flowmx.image.resize_short`)."""

    def __init__(self, size: int, interp: int = 2) -> None:
        super().__init__(size=size, interp=interp)
        self.size = size
        self.interp = interp

    def __call__(self, src: NDArray) -> NDArray:
        return functions.resize_short(src, self.size, self.interp)


class ForceResizeAug(Augmenter):
    """The image gets this size (width, height), whatever its proportions were."""

    def __init__(self, size: Sequence[int], interp: int = 2) -> None:
        super().__init__(size=size, interp=interp)
        self.size = size
        self.interp = interp

    def __call__(self, src: NDArray) -> NDArray:
        return functions.imresize(src, self.size[0], self.size[1], self.interp)


class RandomCropAug(ForceResizeAug):
    """A part of this size from anywhere (see :func:`~flowmx.image.random_crop`)."""

    def __call__(self, src: NDArray) -> NDArray:
        return functions.random_crop(src, self.size, self.interp)[0]


class CenterCropAug(ForceResizeAug):
    """The middle of the image (see :func:`~flowmx.image.center_crop`)."""

    def __call__(self, src: NDArray) -> NDArray:
        return functions.center_crop(src, self.size, self.interp)[0]


class RandomSizedCropAug(Augmenter):
    """A random part, brought to one size (see :func:`~flowmx.image.random_size_crop`)."""

    def __init__(
        self,
        size: Sequence[int],
        area: float | tuple[float, float],
        ratio: tuple[float, float],
        interp: int = 2,
        **kwargs: Any,
    ) -> None:
        self.area = functions.older_area(area, kwargs, "RandomSizedCropAug")
        super().__init__(size=size, area=self.area, ratio=ratio, interp=interp)
        self.size = size
        self.ratio = ratio
        self.interp = interp

    def __call__(self, src: NDArray) -> NDArray:
        return functions.random_size_crop(src, self.size, self.area, self.ratio, self.interp)[0]


class HorizontalFlipAug(Augmenter):
    """Mirrored with this probability."""

    def __init__(self, p: float) -> None:
        super().__init__(p=p)
        self.p = p

    def __call__(self, src: NDArray) -> NDArray:
        return nd.flip(src, axis=1) if rng.current().random() < self.p else src


# -- colours -----------------------------------------------------------------------------------------------


class CastAug(Augmenter):
    """Another dtype."""

    def __init__(self, typ: str = "float32") -> None:
        super().__init__(type=typ)
        self.typ = typ

    def __call__(self, src: NDArray) -> NDArray:
        return src.astype(self.typ)


class BrightnessJitterAug(Augmenter):
    """Brighter or darker by a random share, at most this one."""

    def __init__(self, brightness: float) -> None:
        super().__init__(brightness=brightness)
        self.brightness = brightness

    def __call__(self, src: NDArray) -> NDArray:
        src *= 1.0 + rng.current().uniform(-self.brightness, self.brightness)
        return src


class ContrastJitterAug(Augmenter):
    """Nearer to its mean brightness or farther from it, by a random share, at most this one."""

    def __init__(self, contrast: float) -> None:
        super().__init__(contrast=contrast)
        self.contrast = contrast
        self.coef = nd.array([[color.LUMINANCE]])

    def __call__(self, src: NDArray) -> NDArray:
        alpha = 1.0 + rng.current().uniform(-self.contrast, self.contrast)
        gray = src * self.coef
        mean = nd.sum(gray) * (3.0 * (1.0 - alpha) / gray.size)
        src *= alpha
        src += mean
        return src


class SaturationJitterAug(Augmenter):
    """Less or more colourful by a random share, at most this one."""

    def __init__(self, saturation: float) -> None:
        super().__init__(saturation=saturation)
        self.saturation = saturation
        self.coef = nd.array([[color.LUMINANCE]])

    def __call__(self, src: NDArray) -> NDArray:
        alpha = 1.0 + rng.current().uniform(-self.saturation, self.saturation)
        gray = nd.sum(src * self.coef, axis=2, keepdims=True) * (1.0 - alpha)
        src *= alpha
        src += gray
        return src


class HueJitterAug(Augmenter):
    """Colours turned by a random share of half a circle, at most this one (in the YIQ space)."""

    def __init__(self, hue: float) -> None:
        super().__init__(hue=hue)
        self.hue = hue
        self.tyiq, self.ityiq = color.RGB_TO_YIQ, color.YIQ_TO_RGB

    def __call__(self, src: NDArray) -> NDArray:
        turn = color.yiq_rotation(rng.current().uniform(-self.hue, self.hue))
        return nd.dot(src, nd.array(turn.T))


class ColorJitterAug(RandomOrderAug):
    """Brightness, contrast and saturation, in a random order."""

    def __init__(self, brightness: float, contrast: float, saturation: float) -> None:
        made = [
            (BrightnessJitterAug, brightness),
            (ContrastJitterAug, contrast),
            (SaturationJitterAug, saturation),
        ]
        super().__init__([kind(share) for kind, share in made if share > 0])


class LightingAug(Augmenter):
    """Noise along the principal components of the colours.

    Args:
        alphastd: the noise's standard deviation.
        eigval: the components' spread, (3,).
        eigvec: the components, (3, 3).
    """

    def __init__(self, alphastd: float, eigval: Any, eigvec: Any) -> None:
        super().__init__(alphastd=alphastd, eigval=eigval, eigvec=eigvec)
        self.alphastd = alphastd
        self.eigval = np.asarray(eigval)
        self.eigvec = np.asarray(eigvec)

    def __call__(self, src: NDArray) -> NDArray:
        alpha = np.array([rng.current().gauss(0, self.alphastd) for _ in range(3)])
        src += nd.array(np.dot(self.eigvec * alpha, self.eigval))
        return src


class ColorNormalizeAug(Augmenter):
    """Less a mean, divided by a standard deviation, by channel."""

    def __init__(self, mean: Any, std: Any) -> None:
        super().__init__(mean=mean, std=std)
        self.mean = None if mean is None else mean if isinstance(mean, NDArray) else nd.array(mean)
        self.std = None if std is None else std if isinstance(std, NDArray) else nd.array(std)

    def __call__(self, src: NDArray) -> NDArray:
        return functions.color_normalize(src, self.mean, self.std)


class RandomGrayAug(Augmenter):
    """Gray with this probability; it keeps its three channels."""

    def __init__(self, p: float) -> None:
        super().__init__(p=p)
        self.p = p
        self.mat = nd.array([[0.21] * 3, [0.72] * 3, [0.07] * 3])

    def __call__(self, src: NDArray) -> NDArray:
        return nd.dot(src, self.mat) if rng.current().random() < self.p else src


def colour_augmenters(
    brightness: float, contrast: float, saturation: float, hue: float, pca_noise: float, rand_gray: float
) -> list[Augmenter]:
    """The random changes of colour whose share is above 0, in MXNet's order."""
    found: list[Augmenter] = []
    if brightness or contrast or saturation:
        found.append(ColorJitterAug(brightness, contrast, saturation))
    if hue:
        found.append(HueJitterAug(hue))
    if pca_noise > 0:
        found.append(LightingAug(pca_noise, np.array(color.PCA_VALUES), np.array(color.PCA_VECTORS)))
    if rand_gray > 0:
        found.append(RandomGrayAug(rand_gray))
    return found


def normalizing_augmenters(mean: Any, std: Any, array: Callable[[Any], Any] = nd.array) -> list[Augmenter]:
    """The normalization that a mean and a standard deviation ask for; True stands for ImageNet's, in such an array.

    Raises:
        ValueError: one has neither 1 nor 3 numbers.
    """
    given = {"mean": (mean, _MEAN), "std": (std, _STD)}
    for name, (value, _) in given.items():
        if value is not None and value is not True and np.shape(value) not in ((1,), (3,)):
            raise ValueError(f"{name} has shape {np.shape(value)}, expected 1 or 3 numbers, or True")
    arrays = [array(usual) if value is True else value for value, usual in given.values()]
    return [] if mean is None and std is None else [ColorNormalizeAug(*arrays)]


def CreateAugmenter(  # noqa: N802 - MXNet's name
    data_shape: Sequence[int],
    resize: int = 0,
    rand_crop: bool = False,
    rand_resize: bool = False,
    rand_mirror: bool = False,
    mean: Any = None,
    std: Any = None,
    brightness: float = 0,
    contrast: float = 0,
    saturation: float = 0,
    hue: float = 0,
    pca_noise: float = 0,
    rand_gray: float = 0,
    inter_method: int = 2,
) -> list[Augmenter]:
    """The augmenters that are usual for classification.

    Args:
        data_shape: the shape that images get, (channels, height, width).
        resize: the length of the shorter side, before all else; 0 leaves it.
        rand_crop: cut anywhere; else the middle.
        rand_resize: cut parts of random size and proportions (needs ``rand_crop``).
        rand_mirror: mirror every second image, at random.
        mean: the mean of each channel, which is subtracted; True for ImageNet's.
        std: the standard deviation of each channel, a divisor; True for ImageNet's.
        brightness: at most this share brighter or darker.
        contrast: likewise.
        saturation: likewise.
        hue: likewise, of half a circle.
        pca_noise: the standard deviation of the noise along the principal components of the colours.
        rand_gray: the probability of gray.
        inter_method: the interpolation; see :func:`~flowmx.image.imresize`.

    Raises:
        ValueError: ``rand_resize`` without ``rand_crop``, or a mean or std of another length.
    """
    size = (data_shape[2], data_shape[1])
    if rand_resize and not rand_crop:
        raise ValueError("CreateAugmenter: rand_resize cuts parts of random size, and needs rand_crop=True")
    found: list[Augmenter] = [ResizeAug(resize, inter_method)] if resize > 0 else []
    if rand_resize:
        found.append(RandomSizedCropAug(size, 0.08, (3.0 / 4.0, 4.0 / 3.0), inter_method))
    else:
        found.append((RandomCropAug if rand_crop else CenterCropAug)(size, inter_method))
    if rand_mirror:
        found.append(HorizontalFlipAug(0.5))
    found.append(CastAug())
    found += colour_augmenters(brightness, contrast, saturation, hue, pca_noise, rand_gray)
    return found + normalizing_augmenters(mean, std)
