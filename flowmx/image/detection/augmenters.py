"""Augmenters that change an image and its boxes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from flowmx import ndarray as nd
from flowmx.data import rng
from flowmx.image import augmenters, functions
from flowmx.image.augmenters import Augmenter, Described
from flowmx.ndarray import NDArray

Label = np.ndarray[Any, Any]


class DetAugmenter(Described):
    """Base of these augmenters: called with an image and its label, it returns both."""

    def __call__(self, src: NDArray, label: Label) -> tuple[NDArray, Label]:
        raise NotImplementedError(f"{type(self).__name__} must implement __call__(src, label)")


class DetBorrowAug(DetAugmenter):
    """An augmenter that leaves boxes where they are.

    Raises:
        TypeError: it is no augmenter.
    """

    def __init__(self, augmenter: Augmenter) -> None:
        if not isinstance(augmenter, Augmenter):
            raise TypeError(f"DetBorrowAug: augmenter is {type(augmenter).__name__}, expected an Augmenter")
        super().__init__(augmenter=augmenter.dumps())
        self.augmenter = augmenter

    def dumps(self) -> Any:
        return [type(self).__name__.lower(), self.augmenter.dumps()]

    def __call__(self, src: NDArray, label: Label) -> tuple[NDArray, Label]:
        return self.augmenter(src), label


class DetRandomSelectAug(DetAugmenter):
    """One of several augmenters at random, or, with a probability, none.

    Raises:
        ValueError: one is no DetAugmenter.
    """

    def __init__(self, aug_list: DetAugmenter | Sequence[DetAugmenter], skip_prob: float = 0) -> None:
        super().__init__(skip_prob=skip_prob)
        self.aug_list = [aug_list] if isinstance(aug_list, DetAugmenter) else list(aug_list)
        if not all(isinstance(each, DetAugmenter) for each in self.aug_list):
            raise ValueError("DetRandomSelectAug: aug_list holds something else than DetAugmenters")
        self.skip_prob = skip_prob if self.aug_list else 1

    def dumps(self) -> Any:
        return [type(self).__name__.lower(), [each.dumps() for each in self.aug_list]]

    def __call__(self, src: NDArray, label: Label) -> tuple[NDArray, Label]:
        if rng.current().random() < self.skip_prob:
            return src, label
        return rng.current().choice(self.aug_list)(src, label)


class DetHorizontalFlipAug(DetAugmenter):
    """Mirrored, with the boxes, with this probability."""

    def __init__(self, p: float) -> None:
        super().__init__(p=p)
        self.p = p

    def __call__(self, src: NDArray, label: Label) -> tuple[NDArray, Label]:
        if rng.current().random() < self.p:
            src = nd.flip(src, axis=1)
            label[:, [1, 3]] = 1.0 - label[:, [3, 1]]
        return src, label


# -- cutting and padding -----------------------------------------------------------------------------------


class _Rectangle(NamedTuple):
    """A rectangle beside an image, in pixels."""

    x: int
    y: int
    width: int
    height: int


def _range(value: Any) -> tuple[float, float]:
    return (value, value) if isinstance(value, Real) else tuple(value)


def _allows_crops(name: str, areas: tuple[float, float], ratios: tuple[float, float], least: float) -> bool:
    """Tell whether the ranges of areas and aspect ratios allow any crop; warns where they do not."""
    bad_areas = areas[1] <= least or areas[0] > areas[1]
    bad_ratios = ratios[0] <= 0 or ratios[0] > ratios[1]
    for argument, value, bad in (("area_range", areas, bad_areas), ("aspect_ratio_range", ratios, bad_ratios)):
        if bad:
            warnings.warn(f"{name} does nothing: its {argument} is {value}", stacklevel=3)
    return not (bad_areas or bad_ratios)


def _areas(boxes: Label) -> Any:
    """The areas of boxes (left, top, right, bottom)."""
    return np.maximum(0, boxes[:, 2] - boxes[:, 0]) * np.maximum(0, boxes[:, 3] - boxes[:, 1])


def _relative_to(label: Label, frame: _Rectangle, height: int, width: int) -> Label:
    """The label with boxes as shares of a frame instead of the image."""
    out = label.copy()
    out[:, [1, 3]] = (out[:, [1, 3]] * width - frame.x) / frame.width
    out[:, [2, 4]] = (out[:, [2, 4]] * height - frame.y) / frame.height
    return out


class DetRandomCropAug(DetAugmenter):
    """A random part that holds enough of the objects in it; objects of which little is left are dropped.

    Args:
        min_object_covered: the part must hold at least this share of every object that it touches.
        aspect_ratio_range: the least and the most of its width divided by its height.
        area_range: the least and the most of the image's area that it takes.
        min_eject_coverage: an object of which less than this share is left is dropped.
        max_attempts: after so many tries the image stays as it is.
    """

    def __init__(
        self,
        min_object_covered: float = 0.1,
        aspect_ratio_range: Any = (0.75, 1.33),
        area_range: Any = (0.05, 1.0),
        min_eject_coverage: float = 0.3,
        max_attempts: int = 50,
    ) -> None:
        self.aspect_ratio_range, self.area_range = _range(aspect_ratio_range), _range(area_range)
        super().__init__(
            min_object_covered=min_object_covered, aspect_ratio_range=self.aspect_ratio_range,
            area_range=self.area_range, min_eject_coverage=min_eject_coverage, max_attempts=max_attempts,
        )  # fmt: skip
        self.min_object_covered = min_object_covered
        self.min_eject_coverage = min_eject_coverage
        self.max_attempts = max_attempts
        self.enabled = _allows_crops("DetRandomCropAug", self.area_range, self.aspect_ratio_range, 0)

    def __call__(self, src: NDArray, label: Label) -> tuple[NDArray, Label]:
        height, width = src.shape[:2]
        for _ in range(self.max_attempts if self.enabled else 0):
            frame = self._frame(height, width)
            if frame is not None and self._covers(label, frame, height, width):
                left = self._remaining(label, frame, height, width)
                if len(left):
                    return functions.fixed_crop(src, *frame), left
        return src, label

    def _frame(self, height: int, width: int) -> _Rectangle | None:
        """A random part; None where it does not fit."""
        low, high = (share * height * width for share in self.area_range)
        ratio = rng.current().uniform(*self.aspect_ratio_range)
        most = min(round(math.sqrt(high / ratio)), height, int((width + 0.4999999) / ratio))
        least = min(round(math.sqrt(low / ratio)), most)
        h = rng.current().randint(least, most)
        # One row more or less, where rounding has missed the range.
        h += (h * round(h * ratio) < low) - (h * round(h * ratio) > high)
        w = round(h * ratio)
        if not (low <= h * w <= high and 0 < w <= width and 0 < h <= height):
            return None
        return _Rectangle(rng.current().randint(0, width - w), rng.current().randint(0, height - h), w, h)

    def _covers(self, label: Label, frame: _Rectangle, height: int, width: int) -> bool:
        """True where a crop touches an object, and covers enough of every object that it touches."""
        boxes = label[:, 1:5]
        boxes = boxes[_areas(boxes) * width * height > 2]
        edges = np.array([frame.x, frame.y, frame.x + frame.width, frame.y + frame.height])
        left, top, right, bottom = edges / [width, height, width, height]
        common = np.stack([
            np.maximum(boxes[:, 0], left), np.maximum(boxes[:, 1], top),
            np.minimum(boxes[:, 2], right), np.minimum(boxes[:, 3], bottom),
        ], 1)  # fmt: skip
        covered = _areas(common) / _areas(boxes)
        covered = covered[covered > 0]
        return frame.width * frame.height >= 2 and covered.size > 0 and covered.min() > self.min_object_covered

    def _remaining(self, label: Label, frame: _Rectangle, height: int, width: int) -> Label:
        """The objects of which enough is left, seen from the part."""
        out = _relative_to(label, frame, height, width)
        out[:, 1:5] = np.clip(out[:, 1:5], 0, 1)
        share = frame.width * frame.height / (width * height)
        with np.errstate(divide="ignore", invalid="ignore"):
            kept = _areas(out[:, 1:5]) * share / _areas(label[:, 1:5])
        is_valid = (out[:, 3] > out[:, 1]) & (out[:, 4] > out[:, 2]) & (kept > self.min_eject_coverage)
        left: Label = out[is_valid]
        return left


class DetRandomPadAug(DetAugmenter):
    """The image somewhere in a larger frame of one colour.

    Args:
        aspect_ratio_range: the least and the most of the frame's width divided by its height.
        area_range: the least and the most of its area, as a multiple of the image's.
        max_attempts: after so many tries the image stays as it is.
        pad_val: the colour.
    """

    def __init__(
        self,
        aspect_ratio_range: Any = (0.75, 1.33),
        area_range: Any = (1.0, 3.0),
        max_attempts: int = 50,
        pad_val: Any = (128, 128, 128),
    ) -> None:
        self.pad_val = (pad_val,) * 3 if isinstance(pad_val, Real) else tuple(pad_val)
        self.aspect_ratio_range, self.area_range = _range(aspect_ratio_range), _range(area_range)
        super().__init__(
            aspect_ratio_range=self.aspect_ratio_range, area_range=self.area_range, max_attempts=max_attempts,
            pad_val=self.pad_val,
        )  # fmt: skip
        self.max_attempts = max_attempts
        self.enabled = _allows_crops("DetRandomPadAug", self.area_range, self.aspect_ratio_range, 1.0)

    def __call__(self, src: NDArray, label: Label) -> tuple[NDArray, Label]:
        height, width = src.shape[:2]
        for _ in range(self.max_attempts if self.enabled else 0):
            w, h = self._size(height, width)
            if h - height < 2 or w - width < 2:  # so narrow a border does not help
                continue
            y, x = rng.current().randint(0, h - height), rng.current().randint(0, w - width)
            padded = functions.copyMakeBorder(src, y, h - y - height, x, w - x - width, values=self.pad_val)
            return padded, _relative_to(label, _Rectangle(-x, -y, w, h), height, width)
        return src, label

    def _size(self, height: int, width: int) -> tuple[int, int]:
        low, high = (share * height * width for share in self.area_range)
        ratio = rng.current().uniform(*self.aspect_ratio_range)
        most = round(math.sqrt(high / ratio))
        least = max(round(math.sqrt(low / ratio)), int((width + 0.499999) / ratio), height)
        h = rng.current().randint(min(least, most), most)
        return round(h * ratio), h


# -- lists of augmenters -----------------------------------------------------------------------------------


def CreateMultiRandCropAugmenter(  # noqa: N802 - MXNet's name
    min_object_covered: Any = 0.1,
    aspect_ratio_range: Any = (0.75, 1.33),
    area_range: Any = (0.05, 1.0),
    min_eject_coverage: Any = 0.3,
    max_attempts: Any = 50,
    skip_prob: float = 0,
) -> DetRandomSelectAug:
    """One of several :class:`DetRandomCropAug` at random: each argument may be a list with a value for each.

    Raises:
        ValueError: lists of different lengths.
    """
    given = [min_object_covered, aspect_ratio_range, area_range, min_eject_coverage, max_attempts]
    lists = [each if isinstance(each, list) else [each] for each in given]
    count = max(map(len, lists))
    if any(len(each) not in (1, count) for each in lists):
        raise ValueError(
            f"CreateMultiRandCropAugmenter: lists of {sorted({*map(len, lists)})} values, expected 1 or {count}"
        )
    aligned = zip(*(each * (count // len(each)) for each in lists), strict=True)
    return DetRandomSelectAug([DetRandomCropAug(*arguments) for arguments in aligned], skip_prob)


def CreateDetAugmenter(  # noqa: N802 - MXNet's name
    data_shape: Sequence[int],
    resize: int = 0,
    rand_crop: float = 0,
    rand_pad: float = 0,
    rand_gray: float = 0,
    rand_mirror: bool = False,
    mean: Any = None,
    std: Any = None,
    brightness: float = 0,
    contrast: float = 0,
    saturation: float = 0,
    pca_noise: float = 0,
    hue: float = 0,
    inter_method: int = 2,
    min_object_covered: Any = 0.1,
    aspect_ratio_range: Any = (0.75, 1.33),
    area_range: Any = (0.05, 3.0),
    min_eject_coverage: Any = 0.3,
    max_attempts: Any = 50,
    pad_val: Any = (127, 127, 127),
) -> list[DetAugmenter]:
    """The augmenters that are usual for detection.

    Args:
        data_shape: the shape that images get, (channels, height, width).
        resize: the length of the shorter side, before all else; 0 leaves it.
        rand_crop: the probability that a part is cut out (see :class:`DetRandomCropAug`).
        rand_pad: the probability of a frame (see :class:`DetRandomPadAug`).
        rand_gray: the probability of gray.
        rand_mirror: mirror every second image, at random.
        mean: the mean of each channel, which is subtracted; True for ImageNet's.
        std: the standard deviation of each channel, a divisor; True for ImageNet's.
        brightness: at most this share brighter or darker.
        contrast: likewise.
        saturation: likewise.
        pca_noise: the standard deviation of the noise along the principal components of the colours.
        hue: likewise, of half a circle.
        inter_method: the interpolation; see :func:`~flowmx.image.imresize`.
        min_object_covered: see :class:`DetRandomCropAug`, of which there may be several (lists).
        aspect_ratio_range: likewise, and of frames.
        area_range: likewise; frames take its upper end.
        min_eject_coverage: likewise.
        max_attempts: likewise, and of frames.
        pad_val: the colour of frames.
    """
    found: list[DetAugmenter] = []
    if resize > 0:
        found.append(DetBorrowAug(augmenters.ResizeAug(resize, inter_method)))
    if rand_crop > 0:
        found.append(CreateMultiRandCropAugmenter(
            min_object_covered, aspect_ratio_range, area_range, min_eject_coverage, max_attempts, 1 - rand_crop,
        ))  # fmt: skip
    if rand_mirror:
        found.append(DetHorizontalFlipAug(0.5))
    if rand_pad > 0:
        frame = DetRandomPadAug(aspect_ratio_range, (1.0, area_range[1]), max_attempts, pad_val)
        found.append(DetRandomSelectAug([frame], 1 - rand_pad))
    borrowed: list[Augmenter] = [
        augmenters.ForceResizeAug((data_shape[2], data_shape[1]), inter_method),
        augmenters.CastAug(),
        *augmenters.colour_augmenters(brightness, contrast, saturation, hue, pca_noise, rand_gray),
        *augmenters.normalizing_augmenters(mean, std, np.array),
    ]
    return found + [DetBorrowAug(each) for each in borrowed]
