"""`ImageDetIter`: batches of images with boxes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from flowmx.image import augmenters
from flowmx.image.detection.augmenters import CreateDetAugmenter, Label
from flowmx.image.iterator import ImageIter
from flowmx.io.base import DataDesc
from flowmx.ndarray import NDArray

_log = logging.getLogger("flowmx.image")


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

    def _make_instance(self, label: Any, raw: bytes) -> tuple[NDArray, Any] | None:
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

    def _reshape_label(self, label: Any, shape: tuple[int, ...]) -> Any:
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
