"""`ImageDetIter`: batches of images with boxes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from flowmx.image import augmenters
from flowmx.image.detection.augmenters import CreateDetAugmenter, Label
from flowmx.image.iterator import ImageIter
from flowmx.io.data_iter import DataDesc
from flowmx.ndarray import NDArray

_log = logging.getLogger("flowmx.image")


class ImageDetIter(ImageIter):
    """Batches of images with boxes; labels of images with fewer objects are padded with -1.

    An image's label in the file is ``[n, k, ..., objects]``: n numbers before the objects (the first two are n and k),
    then k numbers for each object. The arguments are those of :class:`ImageIter` and :func:`CreateDetAugmenter`.

    Attributes:
        label_shape: the maximum number of objects in an image, and k.
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
        damaged_images: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            batch_size, data_shape, path_imgrec=path_imgrec, path_imglist=path_imglist, path_root=path_root,
            path_imgidx=path_imgidx, shuffle=shuffle, part_index=part_index, num_parts=num_parts, aug_list=[],
            imglist=imglist, data_name=data_name, label_name=label_name, last_batch_handle=last_batch_handle,
            damaged_images=damaged_images,
        )  # fmt: skip
        self.auglist = [*(CreateDetAugmenter(self.data_shape, **kwargs) if aug_list is None else aug_list)]
        labels = [self._parse_label(self._read(key)[0]) for key in self.seq]
        self.label_shape = max(map(len, labels)), labels[-1].shape[1]
        self.provide_label = [DataDesc(label_name, (batch_size, *self.label_shape))]

    def _parse_label(self, label: object) -> Label:
        """Return the objects of an image.

        Raises:
            RuntimeError: the label is invalid, or no object has an area.
        """
        raw = np.asarray(label, np.float32).ravel()
        if raw.size < 7:
            raise RuntimeError(f"ImageDetIter: a label has {raw.size} numbers, expected at least 7: n, k, then objects")
        start, width = int(raw[0]), int(raw[1])
        if width < 5 or start < 2 or (raw.size - start) % width:
            raise RuntimeError(
                f"ImageDetIter: a label has {raw.size} numbers, expected {start} and a multiple of {width}, which are "
                "its first two numbers"
            )
        objects = raw[start:].reshape(-1, width)
        objects = objects[(objects[:, 3] > objects[:, 1]) & (objects[:, 4] > objects[:, 2])]
        if not len(objects):
            raise RuntimeError("ImageDetIter: a label has no object with an area")
        return objects

    def _make_sample(self, label: Any, raw: bytes) -> tuple[NDArray, Any] | None:
        data = self.imdecode(raw)
        try:
            self.check_valid_image([data])
            data, objects = self.augmentation_transform(data, self._parse_label(label))
            self._check_valid_label(objects)
        except RuntimeError as error:
            _log.debug("skipped an image: %s", error)
            return None
        return self.postprocess_data(data), objects

    @staticmethod
    def _check_valid_label(label: Label) -> None:
        is_valid = (label[:, 0] >= 0) & (label[:, 3] > label[:, 1]) & (label[:, 4] > label[:, 2])
        if not is_valid.any():
            raise RuntimeError("ImageDetIter: no object remains")

    def augmentation_transform(self, data: NDArray, label: object = None) -> Any:
        """Apply all augmenters to an image and its label."""
        for augmenter in self.auglist:
            data, label = augmenter(data, label)
        return data, label

    def _reshape_label(self, label: Any, shape: tuple[int, ...]) -> Any:
        result = np.full(shape, -1, np.float32)
        result[: len(label)] = label
        return result

    # -- shapes ----------------------------------------------------------------------------------------------

    def reshape(self, data_shape: Sequence[int] | None = None, label_shape: Sequence[int] | None = None) -> None:
        """Change the shapes of batches.

        Raises:
            ValueError: the iterator does not support a shape, or labels do not fit.
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
        """Check that labels fit a shape.

        Raises:
            ValueError: they do not fit.
        """
        count, width = self.label_shape
        if len(label_shape) != 2 or label_shape[0] < count or label_shape[1] != width:
            raise ValueError(
                f"ImageDetIter: label_shape is {tuple(label_shape)}, expected (at least {count}, {width}) for the "
                "labels"
            )

    def sync_label_shape(self, it: ImageDetIter, verbose: bool = False) -> ImageDetIter:
        """Set the larger of two label shapes on this iterator and another; return the other.

        Raises:
            TypeError: the other is not an ImageDetIter.
            ValueError: their objects have different numbers of values.
        """
        if not isinstance(it, ImageDetIter):
            raise TypeError(f"sync_label_shape: it is {type(it).__name__}, expected an ImageDetIter")
        if it.label_shape[1] != self.label_shape[1]:
            raise ValueError(f"sync_label_shape: objects have {self.label_shape[1]} and {it.label_shape[1]} values")
        shape = max(self.label_shape[0], it.label_shape[0]), self.label_shape[1]
        for iterator in (self, it):
            iterator.reshape(None, shape)
        if verbose:
            _log.info("label_shape is now %s", shape)
        return it

    def draw_next(
        self,
        color: tuple[int, int, int] | None = None,
        thickness: int = 2,
        mean: object = None,
        std: object = None,
        clip: bool = True,
        waitKey: object = None,
        window_name: str = "draw_next",
        id2labels: dict[int, str] | None = None,
    ) -> Iterator[Any]:
        """Iterate over the images with their boxes drawn (needs Pillow).

        Args:
            color: the color of the boxes (default: one per class).
            thickness: the thickness of the boxes' lines.
            mean: the mean to add, which an augmenter subtracted; True for ImageNet's.
            std: the standard deviation to multiply by, which an augmenter divided by; True for ImageNet's.
            clip: clip the numbers to 0 to 255.
            waitKey: ignored; accepted for MXNet's scripts: no window is opened.
            window_name: ignored; accepted for MXNet's scripts.
            id2labels: names of the classes, written next to the boxes.

        Returns:
            An iterator over uint8 NumPy arrays, blue first as in OpenCV.
        """
        imagenet = {"mean": augmenters._MEAN, "std": augmenters._STD}
        scaling = {name: imagenet[name] if value is True else value for name, value in (("mean", mean), ("std", std))}
        while True:
            try:
                label, raw = self.next_sample()
            except StopIteration:
                return
            data, objects = self.augmentation_transform(self.imdecode(raw), self._parse_label(label))
            image = data.asnumpy() * np.asarray(1 if scaling["std"] is None else scaling["std"])
            image = image + np.asarray(0 if scaling["mean"] is None else scaling["mean"])
            image = np.clip(image, 0, 255) if clip else image
            yield _draw(image.astype(np.uint8), objects, color, thickness, id2labels)[:, :, ::-1]


def _draw(image: Any, objects: Label, color: Any, thickness: int, names: Any) -> Any:
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
