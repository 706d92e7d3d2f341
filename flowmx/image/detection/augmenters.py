"""Augmenters that transform an image and its boxes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from flowmx import ndarray as nd
from flowmx.data import rng
from flowmx.data.augmentation import box_geometry
from flowmx.image import augmenters, functions
from flowmx.image.augmenters import Augmenter, AugmenterBase, ShuffledList
from flowmx.ndarray import NDArray
from flowmx.ops.registry.operators import Array

Label = Array


class DetAugmenter(AugmenterBase):
    """Base class of augmenters of images with boxes: called with an image and its label, it returns both."""

    def __call__(self, src: NDArray, label: Label) -> tuple[NDArray, Label]:
        raise NotImplementedError(f"{type(self).__name__} must implement __call__(src, label)")


class DetBorrowAug(DetAugmenter):
    """Apply an augmenter that does not move boxes.

    Raises:
        TypeError: the argument is not an augmenter.
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
    """Apply one of several augmenters, selected at random; with probability ``skip_prob``, apply none.

    Raises:
        ValueError: an element is not a DetAugmenter.
    """

    def __init__(self, aug_list: DetAugmenter | Sequence[DetAugmenter], skip_prob: float = 0) -> None:
        super().__init__(skip_prob=skip_prob)
        self.aug_list = ShuffledList([aug_list] if isinstance(aug_list, DetAugmenter) else aug_list)
        if not all(isinstance(augmenter, DetAugmenter) for augmenter in self.aug_list):
            raise ValueError("DetRandomSelectAug: aug_list may only hold DetAugmenters")
        self.skip_prob = skip_prob if self.aug_list else 1

    def dumps(self) -> Any:
        return [type(self).__name__.lower(), [augmenter.dumps() for augmenter in self.aug_list]]

    def __call__(self, src: NDArray, label: Label) -> tuple[NDArray, Label]:
        if rng.python().random() < self.skip_prob:
            return src, label
        rng.python().shuffle(self.aug_list)
        augmenter: DetAugmenter = self.aug_list[0]
        return augmenter(src, label)


class DetHorizontalFlipAug(DetAugmenter):
    """Mirror an image and its boxes with probability ``p``."""

    def __init__(self, p: float) -> None:
        super().__init__(p=p)
        self.p = p

    def __call__(self, src: NDArray, label: Label) -> tuple[NDArray, Label]:
        if rng.python().random() < self.p:
            src = nd.flip(src, axis=1)
            box_geometry.mirror(label[:, 1:5])
        return src, label


# -- cropping and padding ----------------------------------------------------------------------------------


class _Rectangle(NamedTuple):
    """A rectangle relative to an image, in pixels; it may extend beyond the image."""

    x: int
    y: int
    width: int
    height: int


def _range(value: Any) -> tuple[float, float]:
    return (value, value) if isinstance(value, Real) else tuple(value)


def _check_ranges(name: str, areas: tuple[float, float], ratios: tuple[float, float], minimum: float) -> bool:
    """Return whether the ranges of areas and aspect ratios allow any crop; warn if they do not."""
    bad_areas = areas[1] <= minimum or areas[0] > areas[1]
    bad_ratios = ratios[0] <= 0 or ratios[0] > ratios[1]
    for argument, value, is_bad in (("area_range", areas, bad_areas), ("aspect_ratio_range", ratios, bad_ratios)):
        if is_bad:
            warnings.warn(f"{name} does nothing: its {argument} is {value}", stacklevel=3)
    return not (bad_areas or bad_ratios)


def _to_frame(label: Label, frame: _Rectangle, height: int, width: int) -> Label:
    """Convert a label's boxes from fractions of the image to fractions of a frame."""
    out = label.copy()
    out[:, [1, 3]] = (out[:, [1, 3]] * width - frame.x) / frame.width
    out[:, [2, 4]] = (out[:, [2, 4]] * height - frame.y) / frame.height
    return out


class DetRandomCropAug(DetAugmenter):
    """Crop at random, keeping enough of the objects; drop objects of which too little remains.

    Args:
        min_object_covered: the crop must contain at least this fraction of every object that it overlaps.
        aspect_ratio_range: the smallest and the largest width divided by height.
        area_range: the smallest and the largest fraction of the image's area.
        min_eject_coverage: drop an object if less than this fraction of it remains.
        max_attempts: the number of attempts; the image is not cropped if all fail.
    """

    def __init__(
        self,
        min_object_covered: float = 0.1,
        aspect_ratio_range: object = (0.75, 1.33),
        area_range: object = (0.05, 1.0),
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
        self.enabled = _check_ranges("DetRandomCropAug", self.area_range, self.aspect_ratio_range, 0)

    def __call__(self, src: NDArray, label: Label) -> tuple[NDArray, Label]:
        height, width = src.shape[:2]
        for _ in range(self.max_attempts if self.enabled else 0):
            frame = self._frame(height, width)
            if frame is not None and self._covers(label, frame, height, width):
                objects = self._covered_objects(label, frame, height, width)
                if len(objects):
                    return functions.fixed_crop(src, *frame), objects
        return src, label

    def _frame(self, height: int, width: int) -> _Rectangle | None:
        """Draw a random crop; return None if it does not fit."""
        low, high = (fraction * height * width for fraction in self.area_range)
        ratio = rng.python().uniform(*self.aspect_ratio_range)
        max_h = min(round(math.sqrt(high / ratio)), height, int((width + 0.4999999) / ratio))
        min_h = min(round(math.sqrt(low / ratio)), max_h)
        h = rng.python().randint(min_h, max_h) if min_h < max_h else max_h
        # Add or remove one row if rounding left the range.
        h += (h * round(h * ratio) < low) - (h * round(h * ratio) > high)
        w = round(h * ratio)
        if not (low <= h * w <= high and 0 < w <= width and 0 < h <= height):
            return None
        y, x = rng.python().randint(0, height - h), rng.python().randint(0, width - w)
        return _Rectangle(x, y, w, h)

    def _covers(self, label: Label, frame: _Rectangle, height: int, width: int) -> bool:
        """Return whether a crop overlaps an object, and contains enough of every object that it overlaps."""
        boxes = label[:, 1:5]
        boxes = boxes[box_geometry.areas(boxes) * width * height > 2]
        edges = np.array([frame.x, frame.y, frame.x + frame.width, frame.y + frame.height])
        left, top, right, bottom = edges / [width, height, width, height]
        coverage = box_geometry.intersection_areas(boxes, left, top, right, bottom) / box_geometry.areas(boxes)
        coverage = coverage[coverage > 0]
        return frame.width * frame.height >= 2 and coverage.size > 0 and coverage.min() > self.min_object_covered

    def _covered_objects(self, label: Label, frame: _Rectangle, height: int, width: int) -> Label:
        """Return the objects with enough coverage, relative to the crop."""
        out = _to_frame(label, frame, height, width)
        out[:, 1:5] = np.clip(out[:, 1:5], 0, 1)
        fraction = frame.width * frame.height / (width * height)
        with np.errstate(divide="ignore", invalid="ignore"):
            coverage = box_geometry.areas(out[:, 1:5]) * fraction / box_geometry.areas(label[:, 1:5])
        is_valid = (out[:, 3] > out[:, 1]) & (out[:, 4] > out[:, 2]) & (coverage > self.min_eject_coverage)
        objects: Label = out[is_valid]
        return objects


class DetRandomPadAug(DetAugmenter):
    """Place the image at a random position in a larger frame of one color.

    Args:
        aspect_ratio_range: the smallest and the largest width of the frame divided by its height.
        area_range: the smallest and the largest area of the frame, as a multiple of the image's.
        max_attempts: the number of attempts; the image is not changed if all fail.
        pad_val: the color.
    """

    def __init__(
        self,
        aspect_ratio_range: object = (0.75, 1.33),
        area_range: object = (1.0, 3.0),
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
        self.enabled = _check_ranges("DetRandomPadAug", self.area_range, self.aspect_ratio_range, 1.0)

    def __call__(self, src: NDArray, label: Label) -> tuple[NDArray, Label]:
        height, width = src.shape[:2]
        for _ in range(self.max_attempts if self.enabled else 0):
            w, h = self._size(height, width)
            if h - height < 2 or w - width < 2:  # too narrow a border
                continue
            y, x = rng.python().randint(0, h - height), rng.python().randint(0, w - width)
            frame = functions.copyMakeBorder(src, y, h - y - height, x, w - x - width, values=self.pad_val)
            return frame, _to_frame(label, _Rectangle(-x, -y, w, h), height, width)
        return src, label

    def _size(self, height: int, width: int) -> tuple[int, int]:
        low, high = (fraction * height * width for fraction in self.area_range)
        ratio = rng.python().uniform(*self.aspect_ratio_range)
        max_h = round(math.sqrt(high / ratio))
        min_h = max(round(math.sqrt(low / ratio)), int((width + 0.499999) / ratio), height)
        h = rng.python().randint(min_h, max_h) if min_h < max_h else max_h
        return round(h * ratio), h


# -- lists of augmenters -----------------------------------------------------------------------------------


def CreateMultiRandCropAugmenter(  # noqa: N802 - MXNet's name
    min_object_covered: object = 0.1,
    aspect_ratio_range: object = (0.75, 1.33),
    area_range: object = (0.05, 1.0),
    min_eject_coverage: object = 0.3,
    max_attempts: object = 50,
    skip_prob: float = 0,
) -> DetRandomSelectAug:
    """Return a random selection of several :class:`DetRandomCropAug`: each argument may be a list of values.

    Raises:
        ValueError: the lists have different lengths.
    """
    arguments = [min_object_covered, aspect_ratio_range, area_range, min_eject_coverage, max_attempts]
    lists = [argument if isinstance(argument, list) else [argument] for argument in arguments]
    count = max(map(len, lists))
    if any(len(values) not in (1, count) for values in lists):
        raise ValueError(
            f"CreateMultiRandCropAugmenter: lists of {sorted({*map(len, lists)})} values, expected 1 or {count}"
        )
    rows = zip(*(values * (count // len(values)) for values in lists), strict=True)
    return DetRandomSelectAug([DetRandomCropAug(*row) for row in rows], skip_prob)


def CreateDetAugmenter(  # noqa: N802 - MXNet's name
    data_shape: Sequence[int],
    resize: int = 0,
    rand_crop: float = 0,
    rand_pad: float = 0,
    rand_gray: float = 0,
    rand_mirror: bool = False,
    mean: object = None,
    std: object = None,
    brightness: float = 0,
    contrast: float = 0,
    saturation: float = 0,
    pca_noise: float = 0,
    hue: float = 0,
    inter_method: int = 2,
    min_object_covered: object = 0.1,
    aspect_ratio_range: Any = (0.75, 1.33),
    area_range: Any = (0.05, 3.0),
    min_eject_coverage: object = 0.3,
    max_attempts: Any = 50,
    pad_val: Any = (127, 127, 127),
) -> list[DetAugmenter]:
    """Return the usual augmenters for detection.

    Args:
        data_shape: the shape of the results, (channels, height, width).
        resize: the length of the shorter side, before all other transforms; 0 does not resize.
        rand_crop: the probability of a crop (see :class:`DetRandomCropAug`).
        rand_pad: the probability of a frame (see :class:`DetRandomPadAug`).
        rand_gray: the probability of gray.
        rand_mirror: mirror left and right with probability 0.5.
        mean: the mean of each channel, to subtract; True for ImageNet's.
        std: the standard deviation of each channel, to divide by; True for ImageNet's.
        brightness: the largest difference of the brightness factor from 1.
        contrast: the largest difference of the contrast factor from 1.
        saturation: the largest difference of the saturation factor from 1.
        pca_noise: the standard deviation of the noise along the principal components of the colors.
        hue: the largest rotation, as a fraction of half a circle.
        inter_method: the interpolation; see :func:`~flowmx.image.imresize`.
        min_object_covered: see :class:`DetRandomCropAug`; a list makes several croppers.
        aspect_ratio_range: like ``min_object_covered``; also for frames.
        area_range: like ``min_object_covered``; its upper end is also used for frames.
        min_eject_coverage: like ``min_object_covered``.
        max_attempts: like ``min_object_covered``; also for frames.
        pad_val: the color of frames.
    """
    sequence: list[DetAugmenter] = []
    if resize > 0:
        sequence.append(DetBorrowAug(augmenters.ResizeAug(resize, inter_method)))
    if rand_crop > 0:
        sequence.append(CreateMultiRandCropAugmenter(
            min_object_covered, aspect_ratio_range, area_range, min_eject_coverage, max_attempts, 1 - rand_crop,
        ))  # fmt: skip
    if rand_mirror:
        sequence.append(DetHorizontalFlipAug(0.5))
    if rand_pad > 0:
        frame = DetRandomPadAug(aspect_ratio_range, (1.0, area_range[1]), max_attempts, pad_val)
        sequence.append(DetRandomSelectAug([frame], 1 - rand_pad))
    colors = augmenters.color_augmenters(brightness, contrast, saturation, hue, pca_noise, rand_gray)
    return sequence + _image_augmenters(data_shape, inter_method, colors, mean, std)


def _image_augmenters(
    data_shape: Sequence[int], inter_method: int, colors: Sequence[Augmenter], mean: object, std: object
) -> list[DetAugmenter]:
    """Return the last augmenters, which leave the labels unchanged: resizing, colors, normalization."""
    image_augmenters: list[Augmenter] = [
        augmenters.ForceResizeAug((data_shape[2], data_shape[1]), inter_method),
        augmenters.CastAug(),
        *colors,
        *augmenters.normalizing_augmenters(mean, std, np.array),
    ]
    return [DetBorrowAug(augmenter) for augmenter in image_augmenters]
