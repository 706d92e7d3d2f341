"""Augmenters: fixed or random transforms of an image, as objects that can be dumped as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from flowmx import ndarray as nd
from flowmx.data import rng
from flowmx.image import functions
from flowmx.ndarray import NDArray
from flowmx.ops.vision import color

_MEAN, _STD = (123.68, 116.28, 103.53), (58.395, 57.12, 57.375)


class AugmenterBase:
    """Base class of augmenters of images, with or without boxes: keeps the constructor's arguments for ``dumps``.

    Args:
        **kwargs: the arguments.
    """

    def __init__(self, **kwargs: Any) -> None:
        self._kwargs = {name: _plain(value) for name, value in kwargs.items()}

    def dumps(self) -> str:
        """Return the augmenter's name and arguments as JSON."""
        return json.dumps([type(self).__name__.lower(), self._kwargs])


class Augmenter(AugmenterBase):
    """Base class of augmenters: called with an image, it returns the transformed image."""

    def __call__(self, src: NDArray) -> NDArray:
        raise NotImplementedError(f"{type(self).__name__} must implement __call__(src)")


def _plain(value: object) -> Any:
    if isinstance(value, NDArray):
        value = value.asnumpy()
    return value.tolist() if isinstance(value, np.ndarray) else value


class SequentialAug(Augmenter):
    """Apply several augmenters in turn."""

    def __init__(self, ts: Sequence[Augmenter]) -> None:
        super().__init__()
        self.ts = list(ts)

    def dumps(self) -> Any:
        return [type(self).__name__.lower(), [augmenter.dumps() for augmenter in self.ts]]

    def __call__(self, src: NDArray) -> NDArray:
        for augmenter in self.ts:
            src = augmenter(src)
        return src


class ShuffledList(list[Any]):
    """A list of augmenters; each shuffle starts from the previous order, as in MXNet."""

    def __init__(self, augmenters: Iterable[object]) -> None:
        super().__init__(augmenters)
        self._items = [*self]

    def order(self) -> list[int]:
        """Return the initial positions of the augmenters, in the current order."""
        positions = {id(item): position for position, item in enumerate(self._items)}
        return [positions[id(augmenter)] for augmenter in self]

    def set_order(self, order: Sequence[int]) -> None:
        """Restore an order."""
        self[:] = [self._items[position] for position in order]


def shuffled_lists(augmenters: Iterable[object]) -> Iterator[ShuffledList]:
    """Iterate over all lists that augmenters shuffle, from the outside in."""
    for augmenter in augmenters:
        for value in vars(augmenter).values():
            if isinstance(value, ShuffledList):
                yield value
            if isinstance(value, (list, AugmenterBase)):
                # The items in their initial order, so that the lists of a state match those of another iterator.
                inner = (
                    value._items if isinstance(value, ShuffledList) else value if isinstance(value, list) else [value]
                )
                yield from shuffled_lists([item for item in inner if isinstance(item, AugmenterBase)])


class RandomOrderAug(SequentialAug):
    """Apply several augmenters in a random order."""

    def __init__(self, ts: Sequence[Augmenter]) -> None:
        super().__init__(ts)
        self.ts = ShuffledList(ts)

    def __call__(self, src: NDArray) -> NDArray:
        rng.python().shuffle(self.ts)
        for augmenter in self.ts:
            src = augmenter(src)
        return src


# -- sizes -------------------------------------------------------------------------------------------------


class ResizeAug(Augmenter):
    """Resize the shorter side to a length (see :func:`~flowmx.image.resize_short`)."""

    def __init__(self, size: int, interp: int = 2) -> None:
        super().__init__(size=size, interp=interp)
        self.size = size
        self.interp = interp

    def __call__(self, src: NDArray) -> NDArray:
        return functions.resize_short(src, self.size, self.interp)


class ForceResizeAug(Augmenter):
    """Resize to (width, height), ignoring the proportions."""

    def __init__(self, size: Sequence[int], interp: int = 2) -> None:
        super().__init__(size=size, interp=interp)
        self.size = size
        self.interp = interp

    def __call__(self, src: NDArray) -> NDArray:
        return functions.imresize(src, self.size[0], self.size[1], self.interp)


class RandomCropAug(ForceResizeAug):
    """Crop at a random position (see :func:`~flowmx.image.random_crop`)."""

    def __call__(self, src: NDArray) -> NDArray:
        return functions.random_crop(src, self.size, self.interp)[0]


class CenterCropAug(ForceResizeAug):
    """Crop the centre (see :func:`~flowmx.image.center_crop`)."""

    def __call__(self, src: NDArray) -> NDArray:
        return functions.center_crop(src, self.size, self.interp)[0]


class RandomSizedCropAug(Augmenter):
    """Crop a random area, and resize it (see :func:`~flowmx.image.random_size_crop`)."""

    def __init__(
        self,
        size: Sequence[int],
        area: float | tuple[float, float],
        ratio: tuple[float, float],
        interp: int = 2,
        **kwargs: object,
    ) -> None:
        self.area = functions.area_argument(area, kwargs, "RandomSizedCropAug")
        super().__init__(size=size, area=self.area, ratio=ratio, interp=interp)
        self.size = size
        self.ratio = ratio
        self.interp = interp

    def __call__(self, src: NDArray) -> NDArray:
        return functions.random_size_crop(src, self.size, self.area, self.ratio, self.interp)[0]


class HorizontalFlipAug(Augmenter):
    """Mirror left and right with probability ``p``."""

    def __init__(self, p: float) -> None:
        super().__init__(p=p)
        self.p = p

    def __call__(self, src: NDArray) -> NDArray:
        return nd.flip(src, axis=1) if rng.python().random() < self.p else src


# -- colors -----------------------------------------------------------------------------------------------


class CastAug(Augmenter):
    """Convert to a different dtype."""

    def __init__(self, typ: str = "float32") -> None:
        super().__init__(type=typ)
        self.typ = typ

    def __call__(self, src: NDArray) -> NDArray:
        return src.astype(self.typ)


class BrightnessJitterAug(Augmenter):
    """Multiply by a random factor; ``brightness`` is its largest difference from 1."""

    def __init__(self, brightness: float) -> None:
        super().__init__(brightness=brightness)
        self.brightness = brightness

    def __call__(self, src: NDArray) -> NDArray:
        src *= 1.0 + rng.python().uniform(-self.brightness, self.brightness)
        return src


class ContrastJitterAug(Augmenter):
    """Change the contrast by a random factor; ``contrast`` is its largest difference from 1."""

    def __init__(self, contrast: float) -> None:
        super().__init__(contrast=contrast)
        self.contrast = contrast
        self.coef = nd.array([[color.LUMINANCE]])

    def __call__(self, src: NDArray) -> NDArray:
        alpha = 1.0 + rng.python().uniform(-self.contrast, self.contrast)
        gray = src * self.coef
        mean = nd.sum(gray) * (3.0 * (1.0 - alpha) / gray.size)
        src *= alpha
        src += mean
        return src


class SaturationJitterAug(Augmenter):
    """Change the saturation by a random factor; ``saturation`` is its largest difference from 1."""

    def __init__(self, saturation: float) -> None:
        super().__init__(saturation=saturation)
        self.saturation = saturation
        self.coef = nd.array([[color.LUMINANCE]])

    def __call__(self, src: NDArray) -> NDArray:
        alpha = 1.0 + rng.python().uniform(-self.saturation, self.saturation)
        gray = nd.sum(src * self.coef, axis=2, keepdims=True) * (1.0 - alpha)
        src *= alpha
        src += gray
        return src


class HueJitterAug(Augmenter):
    """Rotate the hue by at most a fraction ``hue`` of half a circle (in the YIQ space)."""

    def __init__(self, hue: float) -> None:
        super().__init__(hue=hue)
        self.hue = hue
        self.tyiq, self.ityiq = color.RGB_TO_YIQ, color.YIQ_TO_RGB

    def __call__(self, src: NDArray) -> NDArray:
        rotation = color.yiq_rotation(rng.python().uniform(-self.hue, self.hue))
        return nd.dot(src, nd.array(rotation.T))


class ColorJitterAug(RandomOrderAug):
    """Change brightness, contrast and saturation, in a random order."""

    def __init__(self, brightness: float, contrast: float, saturation: float) -> None:
        jitters = [
            (BrightnessJitterAug, brightness),
            (ContrastJitterAug, contrast),
            (SaturationJitterAug, saturation),
        ]
        super().__init__([kind(limit) for kind, limit in jitters if limit > 0])


class LightingAug(Augmenter):
    """Add noise along the principal components of the colors.

    Args:
        alphastd: the standard deviation of the noise.
        eigval: the eigenvalues of the components, (3,).
        eigvec: the components, (3, 3).
    """

    def __init__(self, alphastd: float, eigval: object, eigvec: object) -> None:
        super().__init__(alphastd=alphastd, eigval=eigval, eigvec=eigvec)
        self.alphastd = alphastd
        self.eigval = np.asarray(eigval)
        self.eigvec = np.asarray(eigvec)

    def __call__(self, src: NDArray) -> NDArray:
        alpha = rng.numpy().normal(0, self.alphastd, size=(3,))
        src += nd.array(np.dot(self.eigvec * alpha, self.eigval))
        return src


class ColorNormalizeAug(Augmenter):
    """Subtract a mean and divide by a standard deviation, per channel."""

    def __init__(self, mean: object, std: object) -> None:
        super().__init__(mean=mean, std=std)
        self.mean = None if mean is None else mean if isinstance(mean, NDArray) else nd.array(mean)
        self.std = None if std is None else std if isinstance(std, NDArray) else nd.array(std)

    def __call__(self, src: NDArray) -> NDArray:
        return functions.color_normalize(src, self.mean, self.std)


class RandomGrayAug(Augmenter):
    """Convert to gray with probability ``p``, keeping the three channels."""

    def __init__(self, p: float) -> None:
        super().__init__(p=p)
        self.p = p
        self.mat = nd.array([[0.21] * 3, [0.72] * 3, [0.07] * 3])

    def __call__(self, src: NDArray) -> NDArray:
        return nd.dot(src, self.mat) if rng.python().random() < self.p else src


def color_augmenters(
    brightness: float, contrast: float, saturation: float, hue: float, pca_noise: float, rand_gray: float
) -> list[Augmenter]:
    """Return the random color augmenters whose parameter is above 0, in MXNet's order."""
    augmenters: list[Augmenter] = []
    if brightness or contrast or saturation:
        augmenters.append(ColorJitterAug(brightness, contrast, saturation))
    if hue:
        augmenters.append(HueJitterAug(hue))
    if pca_noise > 0:
        augmenters.append(LightingAug(pca_noise, np.array(color.PCA_VALUES), np.array(color.PCA_VECTORS)))
    if rand_gray > 0:
        augmenters.append(RandomGrayAug(rand_gray))
    return augmenters


def normalizing_augmenters(mean: Any, std: Any, array: Callable[[Any], Any] = nd.array) -> list[Augmenter]:
    """Return the augmenter that normalizes by a mean and a standard deviation, if any; True stands for ImageNet's.

    Raises:
        ValueError: a value has neither 1 nor 3 numbers.
    """
    arguments = {"mean": (mean, _MEAN), "std": (std, _STD)}
    for name, (value, _) in arguments.items():
        if value is not None and value is not True and np.shape(value) not in ((1,), (3,)):
            raise ValueError(f"{name} has shape {np.shape(value)}, expected 1 or 3 numbers, or True")
    arrays = [array(imagenet) if value is True else value for value, imagenet in arguments.values()]
    return [] if mean is None and std is None else [ColorNormalizeAug(*arrays)]


def CreateAugmenter(  # noqa: N802 - MXNet's name
    data_shape: Sequence[int],
    resize: int = 0,
    rand_crop: bool = False,
    rand_resize: bool = False,
    rand_mirror: bool = False,
    mean: object = None,
    std: object = None,
    brightness: float = 0,
    contrast: float = 0,
    saturation: float = 0,
    hue: float = 0,
    pca_noise: float = 0,
    rand_gray: float = 0,
    inter_method: int = 2,
) -> list[Augmenter]:
    """Return the usual augmenters for classification.

    Args:
        data_shape: the shape of the results, (channels, height, width).
        resize: the length of the shorter side, before all other transforms; 0 does not resize.
        rand_crop: crop at a random position instead of the centre.
        rand_resize: crop random areas with random proportions (needs ``rand_crop``).
        rand_mirror: mirror left and right with probability 0.5.
        mean: the mean of each channel, to subtract; True for ImageNet's.
        std: the standard deviation of each channel, to divide by; True for ImageNet's.
        brightness: the largest difference of the brightness factor from 1.
        contrast: the largest difference of the contrast factor from 1.
        saturation: the largest difference of the saturation factor from 1.
        hue: the largest rotation, as a fraction of half a circle.
        pca_noise: the standard deviation of the noise along the principal components of the colors.
        rand_gray: the probability of gray.
        inter_method: the interpolation; see :func:`~flowmx.image.imresize`.

    Raises:
        ValueError: ``rand_resize`` without ``rand_crop``, or a mean or std of another length.
    """
    size = (data_shape[2], data_shape[1])
    if rand_resize and not rand_crop:
        raise ValueError("CreateAugmenter: rand_resize needs rand_crop=True")
    augmenters: list[Augmenter] = [ResizeAug(resize, inter_method)] if resize > 0 else []
    if rand_resize:
        augmenters.append(RandomSizedCropAug(size, 0.08, (3.0 / 4.0, 4.0 / 3.0), inter_method))
    else:
        augmenters.append((RandomCropAug if rand_crop else CenterCropAug)(size, inter_method))
    if rand_mirror:
        augmenters.append(HorizontalFlipAug(0.5))
    augmenters.append(CastAug())
    augmenters += color_augmenters(brightness, contrast, saturation, hue, pca_noise, rand_gray)
    return augmenters + normalizing_augmenters(mean, std)
