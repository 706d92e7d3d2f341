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
from flowmx.io.record_iter import RecordIter


class ImageRecordIter(RecordIter):
    """Batches of images from a RecordIO file, decoded and augmented by threads, some batches ahead.

    With the same seed the batches are the same, whatever the number of threads; :meth:`state` is where it stands. The
    arguments are MXNet's, by name::

        path_imgrec, path_imgidx            the file, and its index (without one, the records' heads are read first)
        path_imglist, label_width           labels from a list (.lst) instead; labels an image
        data_shape, batch_size, dtype   (channels, height, width); images a batch; float32, uint8, int8, ...
        shuffle, seed, seed_aug         a new random order each epoch; what it and the augmentation follow from
        num_parts, part_index               how many workers share the images, and which share this one reads
        round_batch                             fill the last batch from the next epoch, which begins after that
        preprocess_threads, prefetch_buffer  threads that decode; batches made ahead
        resize, inter_method, pad       the length of the shorter side; OpenCV's number of the interpolation
        rand_crop, max_crop_size, ...       cut anywhere (else the middle); squares of random size
        random_resized_crop, max_random_area, max_aspect_ratio, ...   parts of random area and proportions
        max_rotate_angle, max_shear_ratio, max_random_scale, rotate, fill_value   affine maps
        brightness, contrast, saturation, pca_noise, random_h, ...   random changes of colour
        mirror, rand_mirror                 left and right exchanged, always or by chance
        mean_r, std_r, scale, mean_img, ...   normalization

    Affine maps with an interpolation other than 0 are linear.

    Raises:
        ValueError: an argument is missing or has a value that it does not take; the file is empty.
        RecordFormatError: the file is damaged.
        OSError: a file can not be read.
        ImageRecordError: (from :meth:`next`) a record is no image, is too small, or has other labels.

    Example:
        >>> batches = mx.io.ImageRecordIter(
        ...     path_imgrec="train.rec", data_shape=(3, 224, 224), batch_size=64, shuffle=True, rand_crop=True,
        ...     rand_mirror=True, mean_r=123.68, mean_g=116.28, mean_b=103.53,
        ... )
    """

    def __init__(self, *, data_name: str = "data", label_name: str = "softmax_label", **kwargs: Any) -> None:
        reading, self._augmenting, self._normalizing = options.parse(kwargs, *options.CLASSIFICATION)
        records = Records(reading.path_imgrec, reading.path_imgidx or None, reading.part_index, reading.num_parts)
        self._labels = read_labels(reading.path_imglist, reading.label_width) if reading.path_imglist else None
        super().__init__(
            reading, data_name, label_name, records, 0 if reading.label_width == 1 else reading.label_width
        )
        self._mean = self._channel_values("mean")
        if self._normalizing.mean_img:
            self._mean = self._mean_image(self._normalizing.mean_img, self._plain_images())
        self._fetch()

    # -- one image ---------------------------------------------------------------------------------------------

    def _random(self, batch: Batch) -> Any:
        seed = self._reading.seed if self._reading.seed_aug is None else self._reading.seed_aug
        return rng.seeded(seed, 1, batch.number).random((len(batch.rows), RANDOM + 3))

    def _instance(self, row: int, u: Any, data: Any, label: Any) -> int:
        header, raw = unpack(self._records.read(row))
        if header.flag or self._labels is not None or len(label) > 1:
            label[:] = self._label_of(header)
        else:
            label[0] = header.label
        image = self._augmented(raw, u)
        given = self._normalizing
        mirrored = given.mirror or (given.rand_mirror and u[RANDOM] < 0.5)
        normalize.into(data, image, mirrored, self._scaling(u[RANDOM + 1 :]))
        return header.id

    def _augmented(self, raw: bytes, u: Any) -> codecs.Image:
        """Decode an image, and augment it."""
        return augment(self._decoded(raw), self._augmenting, self._reading.size, u)

    def _label_of(self, header: Any) -> Any:
        width = self._reading.label_width
        if self._labels is not None:
            try:
                return self._labels[header.id]
            except KeyError:
                raise ValueError(
                    f"its image has the number {header.id}, which {self._reading.path_imglist!r} has no labels for"
                ) from None
        found = max(1, header.flag)
        if found != width:
            raise ValueError(f"it has {found} label(s), but label_width is {width}")
        return header.label

    # -- normalization -----------------------------------------------------------------------------------------

    def _channel_values(self, name: str) -> Any:
        channels = self._reading.data_shape[0]
        values = [getattr(self._normalizing, f"{name}_{channel}") for channel in "rgba"]
        return np.array(values[:channels], np.float32)

    def _scaling(self, u: Any) -> normalize.Scaling | None:
        given = self._normalizing
        if not given.max_random_contrast and not given.max_random_illumination:
            return self._usual_scaling
        return self._scaling_by((2 * u[0] - 1) * given.max_random_contrast, (2 * u[1] - 1))

    @cached_property
    def _usual_scaling(self) -> normalize.Scaling | None:
        """The scaling of images where nothing of it is random."""
        return self._scaling_by(0.0, 0.0)

    def _scaling_by(self, contrast: float, illumination: float) -> normalize.Scaling | None:
        if self._dtype == np.uint8:
            return None
        given = self._normalizing
        factor = np.float32((contrast + 1) * given.scale)
        shift = np.float32(illumination * given.max_random_illumination * given.scale)
        std = self._channel_values("std")
        return normalize.Scaling(self._mean, factor / std, shift / std)

    def _plain_images(self) -> Iterator[Any]:
        """All images, augmented and not normalized."""
        random = rng.seeded(self._reading.seed, 2)
        for row in range(len(self._records)):
            yield self._augmented(unpack(self._records.read(row))[1], random.random(RANDOM))


class ImageRecordUInt8Iter(ImageRecordIter):
    """As :class:`ImageRecordIter` with bytes: nothing is normalized."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "dtype": "uint8"})


class ImageRecordInt8Iter(ImageRecordIter):
    """As :class:`ImageRecordIter` with bytes from -128 to 127: the mean is taken off, and that is all."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "dtype": "int8"})


ImageRecordIter_v1 = ImageRecordIter
ImageRecordUInt8Iter_v1 = ImageRecordUInt8Iter
