"""`ImageRecordIter`: batches that threads decode ahead, each an operation of the engine."""

from __future__ import annotations

import asyncio
import itertools
import os
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from flowmx import engine
from flowmx import ndarray as nd
from flowmx.data import codecs, rng
from flowmx.data.augmentation import normalize, options
from flowmx.data.augmentation.augment import RANDOM, augment
from flowmx.data.batch_order import Batch, BatchOrder
from flowmx.data.image_lists import read_labels
from flowmx.data.records.header import unpack
from flowmx.data.records.reader import Records
from flowmx.devices import pool
from flowmx.errors import MXNetError, ParameterError
from flowmx.io.base import BatchIter, DataBatch, DataDesc

_FLAGS = {1: 0, 3: 1, 4: -1}
"""The flag with which an image is decoded, by its number of channels."""
_KINDS = ("float32", "float64", "float16", "uint8", "int8")


class ImageRecordError(MXNetError, ValueError):
    """A record could not be made into an instance; the message says which one and why."""


class ImageRecordIter(BatchIter):
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

    is_single = True

    def __init__(self, *, data_name: str = "data", label_name: str = "softmax_label", **kwargs: Any) -> None:
        self._reading, self._augmenting, self._normalizing = options.parse(kwargs)
        reading = self._reading
        if reading.dtype not in _KINDS:
            raise ParameterError(f"ImageRecordIter: dtype is {reading.dtype!r}, expected one of {', '.join(_KINDS)}")
        super().__init__(reading.batch_size)
        self._records = Records(
            reading.path_imgrec, reading.path_imgidx or None, reading.part_index, reading.num_parts
        )  # fmt: skip
        self._labels = read_labels(reading.path_imglist, reading.label_width) if reading.path_imglist else None
        self._dtype = np.dtype(reading.dtype)
        self._mean = self._channel_values("mean")
        if self._normalizing.mean_img:
            self._mean = self._mean_image()
        self._order = BatchOrder(
            len(self._records), reading.batch_size, "wrap" if reading.round_batch else "repeat", reading.shuffle,
            reading.seed,
        )  # fmt: skip
        self.provide_data = [DataDesc(data_name, (reading.batch_size, *reading.data_shape), self._dtype.type)]
        labels = (reading.batch_size,) if reading.label_width == 1 else (reading.batch_size, reading.label_width)
        self.provide_label = [DataDesc(label_name, labels)]
        self._ahead: deque[_Job] = deque()
        self._threads = min(reading.preprocess_threads, os.cpu_count() or 1)
        self._workers: ThreadPoolExecutor | None = None
        self._workers_of = 0
        self._fetch()

    # -- batches -----------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Begin the next epoch; in the middle of one, that is given up."""
        self._seek(self.state())
        self._order.reset()
        self._fetch()

    def next(self) -> DataBatch:
        job = self._next_job()
        if job is None:
            raise StopIteration
        return self._hand_out(job.handle.wait())

    async def __anext__(self) -> DataBatch:
        job = self._next_job()
        if job is None:
            raise StopAsyncIteration
        return self._hand_out(await job.handle)

    def _hand_out(self, made: DataBatch | Exception) -> DataBatch:
        if isinstance(made, Exception):
            raise made
        self.current_batch = made
        return made

    def state(self) -> dict[str, Any]:
        return self._ahead[0].state if self._ahead else self._order.state()

    def set_state(self, state: dict[str, Any]) -> None:
        self._seek(state)
        self._fetch()

    def _seek(self, state: dict[str, Any]) -> None:
        """Stand somewhere, with no batch under way."""
        self._order.set_state(state)
        for job in self._ahead:
            job.wanted = False
        self._ahead.clear()

    def _next_job(self) -> _Job | None:
        if not self._ahead:
            return None
        job = self._ahead.popleft()
        self._fetch()
        return job

    def _fetch(self) -> None:
        """Have as many batches under way as are to be ahead."""
        while len(self._ahead) < max(1, self._reading.prefetch_buffer):
            state = self._order.state()
            batch = self._order.take()
            if batch is None:
                return
            job = _Job(state, batch)
            job.handle = engine.push(partial(_make, weakref.ref(self), job), name=type(self).__name__)
            self._ahead.append(job)

    # -- one batch ---------------------------------------------------------------------------------------------

    async def _batch(self, job: _Job) -> DataBatch:
        """Make a batch, by all threads."""
        reading, batch = self._reading, job.batch
        data = pool.allocate((reading.batch_size, *reading.data_shape), self._dtype)
        label = np.empty((reading.batch_size, reading.label_width), np.float32)
        index = np.empty(reading.batch_size, np.uint64)
        work = partial(self._process, job, iter(self._places(batch)), data, label, index)
        loop = asyncio.get_running_loop()
        workers = self._pool()
        failed = await asyncio.gather(*(loop.run_in_executor(workers, work) for _ in range(self._threads)))
        errors = sorted((each for each in failed if each is not None), key=lambda each: each[0])
        if errors:
            row, error = errors[0][1:]
            raise ImageRecordError(self._describe(row, error)) from error
        if reading.label_width == 1:
            label = label[:, 0].copy()
        return DataBatch(
            [nd.from_numpy(data)], [nd.from_numpy(label)], batch.pad, index,
            provide_data=self.provide_data, provide_label=self.provide_label,
        )  # fmt: skip

    def _places(self, batch: Batch) -> list[tuple[int, int, Any]]:
        """The images of a batch: (row in the batch, record number, random numbers of its augmentation)."""
        seed = self._reading.seed if self._reading.seed_aug is None else self._reading.seed_aug
        drawn = rng.seeded(seed, 1, batch.number).random((len(batch.rows), RANDOM + 3))
        return list(zip(range(len(batch.rows)), batch.rows.tolist(), drawn, strict=True))

    def _process(
        self, job: _Job, places: Iterator[tuple[int, int, Any]], data: Any, label: Any, index: Any
    ) -> tuple[int, int, Exception] | None:
        """A thread's work: one image after the other, until none is left (a list's iterator may be shared).

        Returns:
            the place, the record and the error of an image that was none; the first of all threads' is raised.
        """
        for place, row, u in places:
            if not job.wanted:
                break
            try:
                index[place] = self._instance(row, u, data[place], label[place])
            except Exception as error:
                job.wanted = False
                return place, row, error
        return None

    def _describe(self, row: int, error: Exception) -> str:
        offset = int(self._records.offsets[row])
        return f"record {row} of {self._reading.path_imgrec!r}, at offset {offset}: {error}"

    def _instance(self, row: int, u: Any, data: Any, label: Any) -> int:
        """Read, decode, augment and normalize an image into its place; returns its number."""
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
        channels, height, width = self._reading.data_shape
        image = codecs.decode(raw, _FLAGS[channels])
        if image.shape[2] != channels:
            raise ValueError(f"the image has {image.shape[2]} channels, expected {channels}")
        return augment(image, self._augmenting, (height, width), u)

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

    def _mean_image(self) -> Any:
        """The mean of all images, from its file; made and written now where there is none, as MXNet does."""
        path = Path(self._normalizing.mean_img)
        if path.exists():
            loaded: Any = nd.load(path)
            found = (next(iter(loaded.values())) if isinstance(loaded, dict) else loaded[0]).asnumpy()
            if found.shape != self._reading.data_shape:
                raise ValueError(
                    f"ImageRecordIter: {str(path)!r} holds an array of shape {found.shape}, expected "
                    f"{self._reading.data_shape}, as data_shape"
                )
            return found
        total = np.zeros(self._reading.data_shape, np.float64)
        plain = normalize.Scaling(*(np.full(self._reading.data_shape[0], value, np.float32) for value in (0, 1, 0)))
        image = np.empty(self._reading.data_shape, np.float32)
        for row, u in enumerate(self._places_of_all()):
            normalize.into(image, self._augmented(unpack(self._records.read(row))[1], u), False, plain)
            total += image
        mean = (total / max(1, len(self._records))).astype(np.float32)
        nd.save(path, {"mean_img": nd.array(mean)})
        return mean

    def _places_of_all(self) -> Iterator[Any]:
        random = rng.seeded(self._reading.seed, 2)
        return (random.random(RANDOM) for _ in itertools.repeat(None, len(self._records)))

    def _pool(self) -> ThreadPoolExecutor:
        """The threads that decode; anew in the child of a fork, which has none."""
        if self._workers is None or self._workers_of != os.getpid():
            self._workers = ThreadPoolExecutor(self._threads, "flowmx-decode")
            self._workers_of = os.getpid()
            weakref.finalize(self, self._workers.shutdown, wait=False, cancel_futures=True)
        return self._workers


class _Job:
    """A batch in progress: the iterator's state before it, its instances, and a flag once it was abandoned."""

    __slots__ = ("batch", "handle", "state", "wanted")
    handle: engine.Handle

    def __init__(self, state: dict[str, Any], batch: Batch) -> None:
        self.state = state
        self.batch = batch
        self.wanted = True


async def _make(reference: weakref.ref[ImageRecordIter], job: _Job) -> DataBatch | Exception | None:
    """Make a batch, or return its error; errors of abandoned batches are dropped."""
    iterator = reference()
    if iterator is None or not job.wanted:
        return None
    try:
        return await iterator._batch(job)
    except Exception as error:
        return error


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
