"""`ImageDetRecordIter`: images with boxes from RecordIO files, augmented and normalized as MXNet does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from flowmx.data import codecs, rng
from flowmx.data.augmentation import boxes, normalize, options
from flowmx.data.batch_order import Batch
from flowmx.data.image_lists import read_all_labels
from flowmx.data.records.header import unpack
from flowmx.data.records.reader import Records
from flowmx.errors import ParameterError
from flowmx.io.record_iter import RecordIter

_FRONT = 4
"""Numbers before those of a record in a label: channels, height and width of the image, and how many follow."""


class ImageDetRecordIter(RecordIter):
    """Batches of images with boxes from a RecordIO file, decoded and augmented by threads, some batches ahead.

    An image's label is ``[channels, height, width, m, then m numbers]``, filled up to the longest of the file. The m
    numbers are ``[n, k, ..., objects]``: n in front, of which the first two are n and k, then k for each object: class,
    left, top, right, bottom (as shares of the image), and more. Objects without an area are left out.

    With the same seed the batches are the same, whatever the number of threads. The arguments are MXNet's, by name::

        path_imgrec, path_imgidx            the file, and its index (without one, the records' heads are read first)
        path_imglist, label_width           labels from a list (.lst) instead; numbers of a label, -1 for any
        label_pad_width, label_pad_value    numbers that labels are filled up to (the longest by default), and by which
        data_shape, batch_size, dtype       (channels, height, width); images a batch; float32, uint8, int8, ...
        shuffle, seed                       a new random order each epoch; what it and the augmentation follow from
        num_parts, part_index               how many workers share the images, and which share this one reads
        preprocess_threads, prefetch_buffer threads that decode; batches made ahead
        resize, inter_method, resize_mode   the shorter side, at first; OpenCV's number of the interpolation; "force" to
                                            data_shape, or "shrink" or "fit" into its upper left with proportions kept
        random_hue_prob, max_random_hue, ...   random changes of colour
        rand_mirror_prob                    left and right exchanged
        rand_pad_prob, max_pad_scale, fill_value   the image somewhere in a larger one
        rand_crop_prob, num_crop_sampler, min_crop_scales, max_crop_overlaps, ...   parts, drawn by several samplers
        mean_r, std_r, scale, mean_img, ... normalization

    Raises:
        ValueError: an argument is missing or has a value that it does not take; the file is empty; labels are longer
            than ``label_pad_width``.
        RecordFormatError: the file is damaged.
        OSError: a file can not be read.
        ImageRecordError: (from :meth:`next`) a record is no image, or has another label.

    Example:
        >>> batches = mx.io.ImageDetRecordIter(
        ...     path_imgrec="train.rec", data_shape=(3, 300, 300), batch_size=32, shuffle=True, rand_mirror_prob=0.5,
        ...     mean_r=123, mean_g=117, mean_b=104,
        ... )
    """

    def __init__(self, *, data_name: str = "data", label_name: str = "softmax_label", **kwargs: Any) -> None:
        reading, self._augmenting, normalizing = options.parse(kwargs, *options.DETECTION)
        records = Records(reading.path_imgrec, reading.path_imgidx or None, reading.part_index, reading.num_parts)
        self._pad_value = reading.label_pad_value
        self._labels = read_all_labels(reading.path_imglist) if reading.path_imglist else None
        width = _longest(reading, records, self._labels)
        super().__init__(reading, data_name, label_name, records, width + _FRONT)
        self._scaling = self._scaling_of(normalizing)
        self._fetch()

    def _random(self, batch: Batch) -> list[tuple[int, int]]:
        return [(batch.number, place) for place in range(len(batch.rows))]

    def _instance(self, row: int, random: tuple[int, int], data: Any, label: Any) -> int:
        header, raw = unpack(self._records.read(row))
        found = self._label_of(header)
        given = rng.seeded(self._reading.seed, 1, *random)
        image, numbers = boxes.augment(self._decoded(raw), found, self._augmenting, self._reading.size, given)
        self._place(image, data)
        label[:_FRONT] = image.shape[2], *image.shape[:2], len(numbers)
        label[_FRONT : _FRONT + len(numbers)] = numbers
        label[_FRONT + len(numbers) :] = self._pad_value
        return header.id

    def _place(self, image: codecs.Image, data: Any) -> None:
        """Normalize an image into its place; what it does not fill is black before that."""
        size = self._reading.size
        if image.shape[:2] != size:
            whole = np.zeros((*size, image.shape[2]), np.uint8)
            whole[: image.shape[0], : image.shape[1]] = image
            image = whole
        normalize.into(data, image, False, self._scaling)

    def _label_of(self, header: Any) -> Any:
        if self._labels is not None:
            if header.id not in self._labels:
                raise ValueError(
                    f"its image has the number {header.id}, which {self._reading.path_imglist!r} has no labels for"
                )
            return self._labels[header.id]
        return _numbers(header, self._reading.label_width)

    # -- normalization -----------------------------------------------------------------------------------------

    def _scaling_of(self, given: options.DetNormalizing) -> normalize.Scaling | None:
        if self._dtype == np.uint8:
            return None
        channels = self._reading.data_shape[0]
        mean, std = (
            np.array([getattr(given, f"{name}_{channel}") for channel in "rgba"][:channels], np.float32)
            for name in ("mean", "std")
        )
        if given.mean_img and not (mean > 0).any():
            mean = self._mean_image(given.mean_img, self._plain_images())
        factor = np.float32(given.scale) / np.where(std > 0, std, np.float32(1))
        return normalize.Scaling(mean, factor, np.zeros(channels, np.float32))

    def _plain_images(self) -> Iterator[Any]:
        """All images, augmented and not normalized."""
        size = self._reading.size
        for row in range(len(self._records)):
            header, raw = unpack(self._records.read(row))
            random = rng.seeded(self._reading.seed, 2, row)
            yield boxes.augment(self._decoded(raw), self._label_of(header), self._augmenting, size, random)[0]


def _numbers(header: Any, width: int) -> Any:
    """The label of a record.

    Raises:
        ValueError: it has not the given number of numbers.
    """
    label = np.atleast_1d(np.asarray(header.label, np.float32))
    if width > 0 and len(label) != width:
        raise ValueError(f"it has {len(label)} label(s), but label_width is {width}")
    return label


def _longest(reading: options.DetReading, records: Records, labels: Mapping[int, Any] | None) -> int:
    """The numbers that labels are filled up to.

    Raises:
        ParameterError: it is given, and a label is longer.
    """
    if labels is None:
        found = max((_length(records, row) for row in range(len(records))), default=0)
    else:
        found = max(map(len, labels.values()), default=0)
    if 0 < reading.label_pad_width < found:
        raise ParameterError(
            f"{reading.iterator}: label_pad_width is {reading.label_pad_width}, but a label has {found} numbers"
        )
    return max(found, reading.label_pad_width)


def _length(records: Records, row: int) -> int:
    return max(1, unpack(records.read(row))[0].flag)
