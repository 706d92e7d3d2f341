"""`ImageDetRecordIter`: images with boxes from RecordIO files, augmented and normalized as MXNet does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from flowmx.data import codecs, rng
from flowmx.data.augmentation import box_augment, normalize, options
from flowmx.data.batch_order import Batch
from flowmx.data.image_lists import read_all_labels
from flowmx.data.records.framing import RecordFormatError
from flowmx.data.records.header import unpack
from flowmx.data.records.reader import Records
from flowmx.errors import ParameterError
from flowmx.io.record_iter import RecordIter

_HEADER = 4
"""Numbers before a record's label: channels, height and width of the image, and the length of the record's label."""


class ImageDetRecordIter(RecordIter):
    """Batches of images with boxes from a RecordIO file, decoded and augmented in advance by threads.

    An image's label is ``[channels, height, width, m, then m numbers]``, padded to the longest label in the file. The m
    numbers are ``[n, k, ..., objects]``: n numbers before the objects, beginning with n and k, then k for
    each object: class, left, top, right, bottom (as fractions of the image), and more. Objects without an area are
    dropped. With the same seed the batches are the same for any number of threads. The arguments are MXNet's, by name::

        path_imgrec, path_imgidx            the file, and its index (without it, all records' headers are read first)
        path_imglist, label_width           labels from a list (.lst) instead; numbers of a label, -1 for any
        label_pad_width, label_pad_value    length to which labels are padded (the longest by default); padding value
        data_shape, batch_size, dtype       (channels, height, width); images in a batch; float32, uint8, int8, ...
        shuffle, seed                       a new random order each epoch; the seed of the order and the augmentation
        num_parts, part_index               number of workers that share the images; this worker's share
        preprocess_threads, prefetch_buffer number of decoding threads; number of prefetched batches
        resize, inter_method, resize_mode   the shorter side before augmentation; OpenCV's interpolation; "force" to
                                            data_shape, or "shrink" or "fit" into its upper left with proportions kept
        random_hue_prob, max_random_hue, ...   random changes of color
        rand_mirror_prob                    probability of mirroring left and right
        rand_pad_prob, max_pad_scale, fill_value   the image at a random position in a larger one
        rand_crop_prob, num_crop_sampler, min_crop_scales, max_crop_overlaps, ...   crops, drawn by several samplers
        mean_r, std_r, scale, mean_img, ... normalization

    Raises:
        ValueError: an argument is missing or invalid; the file is empty; labels are longer than ``label_pad_width``.
        RecordFormatError: the file is damaged.
        OSError: a file cannot be read.
        ImageRecordError: (from :meth:`next`) a record is not an image, or has another label.

    Example:
        >>> batches = mx.io.ImageDetRecordIter(
        ...     path_imgrec="train.rec", data_shape=(3, 300, 300), batch_size=32, shuffle=True, rand_mirror_prob=0.5,
        ...     mean_r=123, mean_g=117, mean_b=104,
        ... )
    """

    def __init__(self, *, data_name: str = "data", label_name: str = "softmax_label", **kwargs: object) -> None:
        reading, self._augmenting, normalizing = options.parse(kwargs, *options.DETECTION)
        records = Records(reading.path_imgrec, reading.path_imgidx or None, reading.part_index, reading.num_parts)
        self._pad_value = reading.label_pad_value
        self._labels = read_all_labels(reading.path_imglist) if reading.path_imglist else None
        width = _padded_length(reading, records, self._labels)
        super().__init__(reading, data_name, label_name, records, width + _HEADER)
        self._scaling = self._make_scaling(normalizing)
        self._fetch()

    def _random(self, batch: Batch) -> list[tuple[int, int]]:
        return [(batch.number, position) for position in range(len(batch.rows))]

    def _make_sample(self, row: int, random: tuple[int, int], data: Any, label: Any) -> int:
        header, raw = unpack(self._records.read(row))
        objects = self._read_label(header)
        generator = rng.make_generator(self._reading.seed, 1, *random)
        size = self._reading.size
        image, numbers = box_augment.augment(self._decode(raw), objects, self._augmenting, size, generator)
        self._write_image(image, data)
        label[:_HEADER] = image.shape[2], *image.shape[:2], len(numbers)
        label[_HEADER : _HEADER + len(numbers)] = numbers
        label[_HEADER + len(numbers) :] = self._pad_value
        return header.id

    def _write_image(self, image: codecs.Image, data: object) -> None:
        """Write a normalized image into the batch; the area around a smaller image is black before normalization."""
        size = self._reading.size
        if image.shape[:2] != size:
            canvas = np.zeros((*size, image.shape[2]), np.uint8)
            canvas[: image.shape[0], : image.shape[1]] = image
            image = canvas
        normalize.write_image(data, image, False, self._scaling)

    def _read_label(self, header: Any) -> Any:
        if self._labels is not None:
            if header.id not in self._labels:
                raise ValueError(
                    f"its image has the number {header.id}, and {self._reading.path_imglist!r} has no labels for it"
                )
            return self._labels[header.id]
        return _checked_label(header, self._reading.label_width)

    # -- normalization -----------------------------------------------------------------------------------------

    def _make_scaling(self, normalizing: options.DetNormalizeOptions) -> normalize.Scaling | None:
        if self._dtype == np.uint8:
            return None
        channels = self._reading.data_shape[0]
        mean, std = (
            np.array([getattr(normalizing, f"{name}_{channel}") for channel in "rgba"][:channels], np.float32)
            for name in ("mean", "std")
        )
        if normalizing.mean_img and not (mean > 0).any():
            mean = self._mean_image(normalizing.mean_img, self._unnormalized_images())
        factor = np.float32(normalizing.scale) / np.where(std > 0, std, np.float32(1))
        return normalize.Scaling(mean, factor, np.zeros(channels, np.float32))

    def _unnormalized_images(self) -> Iterator[Any]:
        """Iterate over all images, augmented but not normalized."""
        size = self._reading.size
        for row in range(len(self._records)):
            header, raw = unpack(self._records.read(row))
            random = rng.make_generator(self._reading.seed, 2, row)
            yield box_augment.augment(self._decode(raw), self._read_label(header), self._augmenting, size, random)[0]


def _checked_label(header: Any, width: int) -> Any:
    """Return the label of a record.

    Raises:
        ValueError: the label does not have ``width`` numbers.
    """
    label = np.atleast_1d(np.asarray(header.label, np.float32))
    if width > 0 and len(label) != width:
        raise ValueError(f"it has {len(label)} label(s), but label_width is {width}")
    return label


def _padded_length(reading: options.DetReadingOptions, records: Records, labels: Mapping[int, Any] | None) -> int:
    """Return the length to pad labels to.

    Raises:
        ParameterError: a label is longer than ``label_pad_width``.
    """
    if labels is None:
        is_skipping = codecs.damaged_policy(reading.damaged_images, reading.iterator) == "skip"
        longest = max((_label_length(records, row, is_skipping) for row in range(len(records))), default=0)
    else:
        longest = max(map(len, labels.values()), default=0)
    if 0 < reading.label_pad_width < longest:
        raise ParameterError(
            f"{reading.iterator}: label_pad_width is {reading.label_pad_width}, but a label has {longest} numbers"
        )
    return max(longest, reading.label_pad_width)


def _label_length(records: Records, row: int, is_skipping: bool) -> int:
    try:
        return max(1, unpack(records.read(row))[0].flag)
    except RecordFormatError:
        if not is_skipping:
            raise
        return 0
