"""Images with boxes: augmenters that change both, and `ImageDetIter`.

The label of an image is an array with a row for each object: its class, then left, top, right and bottom as shares of
the image's width and height, then what else there is.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from flowmx import ndarray as nd
from flowmx.data import rng
from flowmx.image import augmenters, functions
from flowmx.image.augmenters import Augmenter, Described
from flowmx.image.iterator import ImageIter
from flowmx.io.base import DataDesc
from flowmx.ndarray import NDArray

_log = logging.getLogger("flowmx.image")
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


class _Frame(NamedTuple):
    """A rectangle beside an image, in pixels."""

    x: int
    y: int
    width: int
    height: int


def _range(value: Any) -> tuple[float, float]:
    return (value, value) if isinstance(value, Real) else tuple(value)


def _usable(name: str, areas: tuple[float, float], ratios: tuple[float, float], least: float) -> bool:
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


def _seen_from(label: Label, frame: _Frame, height: int, width: int) -> Label:
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
        self.enabled = _usable("DetRandomCropAug", self.area_range, self.aspect_ratio_range, 0)

    def __call__(self, src: NDArray, label: Label) -> tuple[NDArray, Label]:
        height, width = src.shape[:2]
        for _ in range(self.max_attempts if self.enabled else 0):
            frame = self._frame(height, width)
            if frame is not None and self._covers(label, frame, height, width):
                left = self._left(label, frame, height, width)
                if len(left):
                    return functions.fixed_crop(src, *frame), left
        return src, label

    def _frame(self, height: int, width: int) -> _Frame | None:
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
        return _Frame(rng.current().randint(0, width - w), rng.current().randint(0, height - h), w, h)

    def _covers(self, label: Label, frame: _Frame, height: int, width: int) -> bool:
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

    def _left(self, label: Label, frame: _Frame, height: int, width: int) -> Label:
        """The objects of which enough is left, seen from the part."""
        out = _seen_from(label, frame, height, width)
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
        self.enabled = _usable("DetRandomPadAug", self.area_range, self.aspect_ratio_range, 1.0)

    def __call__(self, src: NDArray, label: Label) -> tuple[NDArray, Label]:
        height, width = src.shape[:2]
        for _ in range(self.max_attempts if self.enabled else 0):
            w, h = self._size(height, width)
            if h - height < 2 or w - width < 2:  # so narrow a border does not help
                continue
            y, x = rng.current().randint(0, h - height), rng.current().randint(0, w - width)
            padded = functions.copyMakeBorder(src, y, h - y - height, x, w - x - width, values=self.pad_val)
            return padded, _seen_from(label, _Frame(-x, -y, w, h), height, width)
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


# -- batches -----------------------------------------------------------------------------------------------


class ImageDetIter(ImageIter):
    """Batches of images with boxes; labels of images with fewer objects are filled up with -1.

    An image's label in the file is ``[n, k, ..., objects]``: n numbers in front (the first two are n and k), then k for
    each object. The arguments are those of :class:`ImageIter`, with those of :func:`CreateDetAugmenter`.

    Attributes:
        label_shape: the most objects of an image, and k.
    """

    def __init__(
        self,
        batch_size: int,
        data_shape: Sequence[int],
        path_imgrec: Any = None,
        path_imglist: Any = None,
        path_root: Any = None,
        path_imgidx: Any = None,
        shuffle: bool = False,
        part_index: int = 0,
        num_parts: int = 1,
        aug_list: Sequence[Any] | None = None,
        imglist: Any = None,
        data_name: str = "data",
        label_name: str = "label",
        last_batch_handle: str = "pad",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            batch_size, data_shape, path_imgrec=path_imgrec, path_imglist=path_imglist, path_root=path_root,
            path_imgidx=path_imgidx, shuffle=shuffle, part_index=part_index, num_parts=num_parts, aug_list=[],
            imglist=imglist, data_name=data_name, label_name=label_name, last_batch_handle=last_batch_handle,
        )  # fmt: skip
        self.auglist = [*(CreateDetAugmenter(self.data_shape, **kwargs) if aug_list is None else aug_list)]
        labels = [self._parse_label(self._read(key)[0]) for key in self.seq]
        self.label_shape = max(map(len, labels)), labels[-1].shape[1]
        self.provide_label = [DataDesc(label_name, (batch_size, *self.label_shape))]

    def _parse_label(self, label: Any) -> Label:
        """The objects of an image.

        Raises:
            RuntimeError: the numbers are none, or no object has an area.
        """
        raw = np.asarray(label, np.float32).ravel()
        if raw.size < 7:
            raise RuntimeError(f"ImageDetIter: a label has {raw.size} numbers, expected at least 7: n, k, then objects")
        start, width = int(raw[0]), int(raw[1])
        if width < 5 or start < 2 or (raw.size - start) % width:
            raise RuntimeError(
                f"ImageDetIter: a label has {raw.size} numbers, of which the first {start} are to be left out and each "
                f"{width} that follow are an object: that does not come out"
            )
        objects = raw[start:].reshape(-1, width)
        objects = objects[(objects[:, 3] > objects[:, 1]) & (objects[:, 4] > objects[:, 2])]
        if not len(objects):
            raise RuntimeError("ImageDetIter: a label has no object with an area")
        return objects

    def _made(self, label: Any, raw: bytes) -> tuple[NDArray, Any] | None:
        data = self.imdecode(raw)
        try:
            self.check_valid_image([data])
            data, objects = self.augmentation_transform(data, self._parse_label(label))
            self._check_valid_label(objects)
        except RuntimeError as error:
            _log.debug("an image is left out: %s", error)
            return None
        return self.postprocess_data(data), objects

    @staticmethod
    def _check_valid_label(label: Label) -> None:
        is_valid = (label[:, 0] >= 0) & (label[:, 3] > label[:, 1]) & (label[:, 4] > label[:, 2])
        if not is_valid.any():
            raise RuntimeError("ImageDetIter: no object is left")

    def augmentation_transform(self, data: NDArray, label: Any = None) -> Any:
        """The image and its label after all augmenters."""
        for augmenter in self.auglist:
            data, label = augmenter(data, label)
        return data, label

    def _shaped(self, label: Any, shape: tuple[int, ...]) -> Any:
        filled = np.full(shape, -1, np.float32)
        filled[: len(label)] = label
        return filled

    # -- shapes ----------------------------------------------------------------------------------------------

    def reshape(self, data_shape: Sequence[int] | None = None, label_shape: Sequence[int] | None = None) -> None:
        """Give batches other shapes.

        Raises:
            ValueError: a shape is none that this iterator makes, or labels have no room in it.
        """
        if data_shape is not None:
            self.check_data_shape(data_shape)
            self.data_shape = tuple(data_shape)
            self.provide_data = [DataDesc(self.provide_data[0].name, (self.batch_size, *data_shape))]
        if label_shape is not None:
            self.check_label_shape(label_shape)
            self.label_shape = int(label_shape[0]), int(label_shape[1])
            self.provide_label = [DataDesc(self.provide_label[0].name, (self.batch_size, *self.label_shape))]

    def check_label_shape(self, label_shape: Sequence[int]) -> None:
        """Check whether labels have room in a shape.

        Raises:
            ValueError: they have not.
        """
        count, width = self.label_shape
        if len(label_shape) != 2 or label_shape[0] < count or label_shape[1] != width:
            raise ValueError(
                f"ImageDetIter: label_shape is {tuple(label_shape)}, expected (at least {count}, {width}), which the "
                "labels need"
            )

    def sync_label_shape(self, it: ImageDetIter, verbose: bool = False) -> ImageDetIter:
        """Give this iterator and another the larger of their label shapes; returns the other.

        Raises:
            TypeError: the other is no ImageDetIter.
            ValueError: their objects have different numbers of values.
        """
        if not isinstance(it, ImageDetIter):
            raise TypeError(f"sync_label_shape: it is {type(it).__name__}, expected an ImageDetIter")
        if it.label_shape[1] != self.label_shape[1]:
            raise ValueError(f"sync_label_shape: objects have {self.label_shape[1]} and {it.label_shape[1]} values")
        both = max(self.label_shape[0], it.label_shape[0]), self.label_shape[1]
        for each in (self, it):
            each.reshape(None, both)
        if verbose:
            _log.info("label_shape is now %s", both)
        return it

    def draw_next(
        self,
        color: tuple[int, int, int] | None = None,
        thickness: int = 2,
        mean: Any = None,
        std: Any = None,
        clip: bool = True,
        waitKey: Any = None,
        window_name: str = "draw_next",
        id2labels: dict[int, str] | None = None,
    ) -> Iterator[Any]:
        """The images one after the other, their boxes drawn into them (needs Pillow).

        Args:
            color: of the boxes; by default another for each class.
            thickness: of their lines.
            mean: the mean that was subtracted, to be added again; True for ImageNet's.
            std: the standard deviation that they were divided by; True for ImageNet's.
            clip: keep the numbers from 0 to 255.
            waitKey: kept for MXNet's scripts: no window is opened.
            window_name: likewise.
            id2labels: names of the classes, written beside the boxes.

        Returns:
            an iterator over NumPy arrays of bytes, blue first as in OpenCV.
        """
        usual = {"mean": augmenters._MEAN, "std": augmenters._STD}
        back = {name: usual[name] if value is True else value for name, value in (("mean", mean), ("std", std))}
        while True:
            try:
                label, raw = self.next_sample()
            except StopIteration:
                return
            data, objects = self.augmentation_transform(self.imdecode(raw), self._parse_label(label))
            image = data.asnumpy() * np.asarray(1 if back["std"] is None else back["std"])
            image = image + np.asarray(0 if back["mean"] is None else back["mean"])
            image = np.clip(image, 0, 255) if clip else image
            yield _drawn(image.astype(np.uint8), objects, color, thickness, id2labels)[:, :, ::-1]


def _drawn(image: Any, objects: Label, color: Any, thickness: int, names: Any) -> Any:
    import PIL.Image
    import PIL.ImageDraw

    picture = PIL.Image.fromarray(image)
    pen = PIL.ImageDraw.Draw(picture)
    height, width = image.shape[:2]
    for row in objects[objects[:, 1] >= 0]:
        box = tuple(int(value) for value in row[1:5] * [width, height, width, height])
        ink = color or tuple(64 + (int(row[0]) * 97 + channel * 61) % 192 for channel in range(3))
        pen.rectangle(box, outline=ink, width=thickness)
        if names and int(row[0]) in names:
            pen.text((box[0] + 5, box[1] + 5), names[int(row[0])], fill=(255, 255, 255))
    return np.asarray(picture)
