"""`ImageRecordIter`: images from RecordIO files, augmented and normalized as MXNet does."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from flowmx.data import codecs, rng
from flowmx.data.augmentation import normalize, options
from flowmx.data.augmentation.augment import RANDOM, augment
from flowmx.data.batch_order import Batch
from flowmx.data.image_lists import read_labels
from flowmx.data.records.header import unpack
from flowmx.data.records.reader import Records
from flowmx.io.record_iter import DAMAGED, RecordIter


class ImageRecordIter(RecordIter):
    """Batches of images from a RecordIO file, decoded and augmented in advance by threads.

    With the same seed the batches are the same for any number of threads; :meth:`state` returns the position. The
    arguments are MXNet's, by name::

        path_imgrec, path_imgidx            the file, and its index (without it, all records' headers are read first)
        path_imglist, label_width           labels from a list (.lst) instead; number of labels per image
        data_shape, batch_size, dtype       (channels, height, width); images in a batch; float32, uint8, int8, ...
        shuffle, seed, seed_aug             a new random order each epoch; the seeds of the order and the augmentation
        num_parts, part_index               number of workers that share the images; this worker's share
        round_batch                         fill the last batch from the next epoch, which begins after that
        preprocess_threads, prefetch_buffer number of decoding threads; number of prefetched batches
        resize, inter_method, pad           length of the shorter side; OpenCV's interpolation; width of a border
        rand_crop, max_crop_size, ...       crop at a random position instead of the centre; squares of random size
        random_resized_crop, max_random_area, max_aspect_ratio, ...   crops of random area and proportions
        max_rotate_angle, max_shear_ratio, max_random_scale, rotate, fill_value   affine maps
        brightness, contrast, saturation, pca_noise, random_h, ...   random changes of color
        mirror, rand_mirror                 mirror left and right, always or with probability 0.5
        damaged_images                      "decode" the readable part of a damaged JPEG, "raise" an error, or "skip"
                                            to the next record
        mean_r, std_r, scale, mean_img, ... normalization

    Affine maps use linear interpolation for all interpolation methods except 0.

    Raises:
        ValueError: an argument is missing or invalid; the file is empty.
        RecordFormatError: the file is damaged.
        OSError: a file cannot be read.
        ImageRecordError: (from :meth:`next`) a record is not an image, is too small, or has other labels.

    Example:
        >>> batches = mx.io.ImageRecordIter(
        ...     path_imgrec="train.rec", data_shape=(3, 224, 224), batch_size=64, shuffle=True, rand_crop=True,
        ...     rand_mirror=True, mean_r=123.68, mean_g=116.28, mean_b=103.53,
        ... )
    """

    def __init__(self, *, data_name: str = "data", label_name: str = "softmax_label", **kwargs: object) -> None:
        reading, self._augmenting, self._normalizing = options.parse(kwargs, *options.CLASSIFICATION)
        records = Records(reading.path_imgrec, reading.path_imgidx or None, reading.part_index, reading.num_parts)
        self._labels = read_labels(reading.path_imglist, reading.label_width) if reading.path_imglist else None
        super().__init__(
            reading, data_name, label_name, records, 0 if reading.label_width == 1 else reading.label_width
        )
        self._mean = self._channel_values("mean")
        if self._normalizing.mean_img:
            self._mean = self._mean_image(self._normalizing.mean_img, self._unnormalized_images())
        self._fetch()

    # -- one image ---------------------------------------------------------------------------------------------

    def _random(self, batch: Batch) -> Any:
        seed = self._reading.seed if self._reading.seed_aug is None else self._reading.seed_aug
        return rng.make_generator(seed, 1, batch.number).random((len(batch.rows), RANDOM + 3))

    def _make_sample(self, row: int, numbers: Any, data: Any, label: Any) -> int:
        header, raw = unpack(self._records.read(row))
        if header.flag or self._labels is not None or len(label) > 1:
            label[:] = self._read_label(header)
        else:
            label[0] = header.label
        image = self._decode_and_augment(raw, numbers)
        normalizing = self._normalizing
        is_mirrored = normalizing.mirror or (normalizing.rand_mirror and numbers[RANDOM] < 0.5)
        normalize.write_image(data, image, is_mirrored, self._scaling(numbers[RANDOM + 1 :]))
        return header.id

    def _decode_and_augment(self, raw: bytes, numbers: object) -> codecs.Image:
        """Decode an image, and augment it."""
        return augment(self._decode(raw), self._augmenting, self._reading.size, numbers)

    def _read_label(self, header: Any) -> Any:
        width = self._reading.label_width
        if self._labels is not None:
            try:
                return self._labels[header.id]
            except KeyError:
                raise ValueError(
                    f"its image has the number {header.id}, and {self._reading.path_imglist!r} has no labels for it"
                ) from None
        count = max(1, header.flag)
        if count != width:
            raise ValueError(f"it has {count} label(s), but label_width is {width}")
        return header.label

    # -- normalization -----------------------------------------------------------------------------------------

    def _channel_values(self, name: str) -> Any:
        channels = self._reading.data_shape[0]
        values = [getattr(self._normalizing, f"{name}_{channel}") for channel in "rgba"]
        return np.array(values[:channels], np.float32)

    def _scaling(self, numbers: Any) -> normalize.Scaling | None:
        normalizing = self._normalizing
        if not normalizing.max_random_contrast and not normalizing.max_random_illumination:
            return self._constant_scaling
        return self._scaling_by((2 * numbers[0] - 1) * normalizing.max_random_contrast, (2 * numbers[1] - 1))

    @cached_property
    def _constant_scaling(self) -> normalize.Scaling | None:
        """The scaling of images without random contrast and illumination."""
        return self._scaling_by(0.0, 0.0)

    def _scaling_by(self, contrast: float, illumination: float) -> normalize.Scaling | None:
        if self._dtype == np.uint8:
            return None
        normalizing = self._normalizing
        factor = np.float32((contrast + 1) * normalizing.scale)
        shift = np.float32(illumination * normalizing.max_random_illumination * normalizing.scale)
        std = self._channel_values("std")
        return normalize.Scaling(self._mean, factor / std, shift / std)

    def _unnormalized_images(self) -> Iterator[Any]:
        """Iterate over all images, augmented but not normalized."""
        random = rng.make_generator(self._reading.seed, 2)
        for row in range(len(self._records)):
            numbers = random.random(RANDOM)
            try:
                image = self._decode_and_augment(unpack(self._records.read(row))[1], numbers)
            except DAMAGED:
                if self._damaged != "skip":
                    raise
            else:
                yield image


class ImageRecordUInt8Iter(ImageRecordIter):
    """Batches of images from a RecordIO file as uint8, without normalization; see :class:`ImageRecordIter`."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "dtype": "uint8"})


class ImageRecordInt8Iter(ImageRecordIter):
    """Batches of images from a RecordIO file as int8; only the mean is subtracted. See :class:`ImageRecordIter`."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "dtype": "int8"})


ImageRecordIter_v1 = ImageRecordIter
ImageRecordUInt8Iter_v1 = ImageRecordUInt8Iter
