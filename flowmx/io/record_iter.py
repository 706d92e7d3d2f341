"""The base class of iterators over images in RecordIO files, which threads decode in advance."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flowmx import engine, forks
from flowmx import ndarray as nd
from flowmx.data import codecs
from flowmx.data.augmentation.options import ReadingOptions
from flowmx.data.batch_order import Batch, BatchOrder
from flowmx.data.pending_batches import Failure, PendingIterator
from flowmx.data.records.framing import RecordFormatError
from flowmx.data.records.reader import Records
from flowmx.devices import cpu_pool
from flowmx.errors import MXNetError, ParameterError
from flowmx.io.data_iter import BatchIter, DataBatch, DataDesc

_FLAGS = {1: 0, 3: 1, 4: -1}
"""The flag for decoding an image, by its number of channels."""
_KINDS = ("float32", "float64", "float16", "uint8", "int8")
_LIGHT_IMAGE = 60e-6
"""Maximum CPU seconds per image for using a single thread: more threads would contend for the GIL."""
DAMAGED = (codecs.DamagedImageError, RecordFormatError)
"""The errors of damaged records."""
_log = logging.getLogger("flowmx.io")


class ImageRecordError(MXNetError, ValueError):
    """A record cannot be converted to a sample; the message has the record's number and the reason."""


class RecordIter(PendingIterator[DataBatch], BatchIter):
    """Batches of images from a RecordIO file.

    A subclass makes the samples, and calls :meth:`_fetch` when it is initialized.

    Args:
        reading: the options of the files and the batches.
        data_name: the name of the images.
        label_name: the name of the labels.
        records: the records to read.
        label_width: the length of each label; 0 if labels are single numbers.
    """

    is_single = True

    def __init__(
        self, reading: ReadingOptions, data_name: str, label_name: str, records: Records, label_width: int
    ) -> None:
        if reading.dtype not in _KINDS:
            raise ParameterError(f"{reading.iterator}: dtype is {reading.dtype!r}, expected one of {', '.join(_KINDS)}")
        PendingIterator.__init__(self)
        BatchIter.__init__(self, reading.batch_size)
        self._reading, self._records, self._label_width = reading, records, label_width
        self._dtype = np.dtype(reading.dtype)
        self._damaged = codecs.damaged_policy(reading.damaged_images, reading.iterator)
        self._order = BatchOrder(
            len(records), reading.batch_size, "wrap" if reading.round_batch else "repeat", reading.shuffle, reading.seed
        )
        self.provide_data = [DataDesc(data_name, (reading.batch_size, *reading.data_shape), self._dtype.type)]
        labels = (reading.batch_size, label_width) if label_width else (reading.batch_size,)
        self.provide_label = [DataDesc(label_name, labels)]
        self._ahead: deque[_Job] = deque()
        self._fork_generation = forks.generation()
        self._threads = min(reading.preprocess_threads, os.cpu_count() or 1)
        self._images_are_light = False
        self._workers: dict[int, ThreadPoolExecutor] = {}
        self._workers_pid = 0

    # -- implemented by subclasses -----------------------------------------------------------------------------

    def _random(self, batch: Batch) -> Any:
        """Return the random numbers for each image in a batch."""
        raise NotImplementedError

    def _make_sample(self, row: int, random: Any, data: Any, label: Any) -> int:
        """Read, decode, augment and normalize an image into its place in the batch; return its number."""
        raise NotImplementedError

    # -- batches -----------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Begin the next epoch, abandoning the current one."""
        self._seek(self.state())
        self._order.reset()
        self._fetch()

    def next(self) -> DataBatch:
        return self._take()

    async def __anext__(self) -> DataBatch:
        return await self._take_async()

    def _head(self) -> engine.Handle[Any] | None:
        if self._fork_generation != forks.generation():
            self._restart()
        if self._ahead:
            self._fetch(1)  # in addition to the batch that the caller waits for
        return self._ahead[0].handle if self._ahead else None

    def _pop(self, result: Any) -> DataBatch:
        self._ahead.popleft()
        self._fetch()
        if isinstance(result, Failure):
            raise result.error
        self.current_batch = result
        return self.current_batch

    def state(self) -> dict[str, Any]:
        return self._ahead[0].state if self._ahead else self._order.state()

    def set_state(self, state: dict[str, Any]) -> None:
        self._seek(state)
        self._fetch()

    def _seek(self, state: dict[str, Any]) -> None:
        """Set the position, discarding pending batches."""
        self._order.set_state(state)
        for job in self._ahead:
            job.is_needed = False
        self._ahead.clear()

    def _fetch(self, extra: int = 0) -> None:
        """Submit jobs until `prefetch_buffer` (at least 1) plus `extra` batches are pending."""
        while len(self._ahead) < max(1, self._reading.prefetch_buffer) + extra:
            state = self._order.state()
            batch = self._order.take()
            if batch is None:
                return
            self._ahead.append(self._submit(state, batch))

    def _submit(self, state: dict[str, Any], batch: Batch) -> _Job:
        job = _Job(state, batch)
        job.handle = engine.push(partial(_make_batch, weakref.ref(self), job), name=type(self).__name__)
        return job

    def _restart(self) -> None:
        """Submit again the jobs that were pending when this process was forked."""
        self._fork_generation = forks.generation()
        self._ahead = deque(
            job if job.handle.done() and job.handle.failure is None else self._submit(job.state, job.batch)
            for job in self._ahead
        )

    # -- one batch ---------------------------------------------------------------------------------------------

    async def _batch(self, job: _Job) -> DataBatch:
        """Make a batch in the decoding threads."""
        reading, batch = self._reading, job.batch
        data = cpu_pool.allocate((reading.batch_size, *reading.data_shape), self._dtype)
        label = np.empty((reading.batch_size, max(1, self._label_width)), np.float32)
        index = np.empty(reading.batch_size, np.uint64)
        work = partial(self._process, job, iter(self._items(batch)), data, label, index)
        loop = asyncio.get_running_loop()
        threads = 1 if self._images_are_light else self._threads
        workers = self._pool(threads)
        failures = await asyncio.gather(*(loop.run_in_executor(workers, work) for _ in range(threads)))
        self._images_are_light = sum(job.seconds) < _LIGHT_IMAGE * reading.batch_size
        errors = sorted((failure for failure in failures if failure is not None), key=lambda failure: failure[0])
        if errors:
            row, error = errors[0][1:]
            raise ImageRecordError(self._describe(row, error)) from error
        if not self._label_width:
            label = label[:, 0].copy()
        return DataBatch(
            [nd.from_numpy(data)], [nd.from_numpy(label)], batch.pad, index,
            provide_data=self.provide_data, provide_label=self.provide_label,
        )  # fmt: skip

    def _items(self, batch: Batch) -> list[tuple[int, int, Any]]:
        """Return the images of a batch: (row in the batch, record number, random numbers of its augmentation)."""
        return list(zip(range(len(batch.rows)), batch.rows.tolist(), self._random(batch), strict=True))

    def _process(
        self, job: _Job, items: Iterator[tuple[int, int, Any]], data: Any, label: Any, index: Any
    ) -> tuple[int, int, Exception] | None:
        """Make samples in a thread until no images remain (all threads share the iterator).

        Returns:
            The position, the record and the error of a failed image, or None.
        """
        start = time.thread_time()
        for position, row, numbers in items:
            if not job.is_needed:
                break
            try:
                index[position] = self._make_sample_from(row, numbers, data[position], label[position])
            except Exception as error:  # a decoder may fail in any way; the batch raises it
                job.is_needed = False
                return position, row, error
        job.seconds.append(time.thread_time() - start)
        return None

    def _make_sample_from(self, row: int, numbers: object, data: object, label: object) -> int:
        """Make a sample from a record, or from the next undamaged record if damaged ones are skipped."""
        count = len(self._records)
        for number in range(row, row + count):
            try:
                return self._make_sample(number % count, numbers, data, label)
            except DAMAGED as error:
                if self._damaged != "skip" or number == row + count - 1:
                    raise
                _log.warning("%s is skipped: %s", self._reading.iterator, self._describe(number % count, error))
        raise AssertionError("unreachable: the file has at least one record")

    def _describe(self, row: int, error: Exception) -> str:
        offset = int(self._records.offsets[row])
        return f"record {row} of {self._reading.path_imgrec!r}, at offset {offset}: {error}"

    def _decode(self, raw: bytes) -> codecs.Image:
        """Decode an image.

        Raises:
            ValueError: the image is damaged, or has another number of channels.
        """
        channels = self._reading.data_shape[0]
        image = codecs.decode(raw, _FLAGS[channels], upright=True, damaged=self._damaged)
        if image.shape[2] != channels:
            raise ValueError(f"the image has {image.shape[2]} channels, expected {channels}")
        return image

    def _mean_image(self, file: str, images: Iterator[Any]) -> Any:
        """Load the mean image from a file; if the file is missing, compute and save it, as MXNet does.

        Args:
            file: the file.
            images: all images, uint8 (height, width, channels); not read if the file exists.
        """
        path, shape = Path(file), self._reading.data_shape
        if path.exists():
            loaded: Any = nd.load(path)
            mean_image = (next(iter(loaded.values())) if isinstance(loaded, dict) else loaded[0]).asnumpy()
            if mean_image.shape != shape:
                raise ValueError(
                    f"{self._reading.iterator}: {file!r} holds an array of shape {mean_image.shape}, expected {shape}, "
                    "as data_shape"
                )
            return mean_image
        total = np.zeros(shape, np.float64)
        for image in images:
            total += image.transpose(2, 0, 1)
        mean = (total / max(1, len(self._records))).astype(np.float32)
        nd.save(path, {"mean_img": nd.array(mean)}, format="params")
        return mean

    def _pool(self, threads: int) -> ThreadPoolExecutor:
        """Return a pool of this number of decoding threads; the child of a fork makes a new one."""
        if self._workers_pid != os.getpid():
            self._workers, self._workers_pid = {}, os.getpid()
        if threads not in self._workers:
            workers = self._workers[threads] = ThreadPoolExecutor(threads, "flowmx-decode")
            weakref.finalize(self, workers.shutdown, wait=False, cancel_futures=True)
        return self._workers[threads]


class _Job:
    """A pending batch: the state before it, the CPU seconds of each thread, and whether it is still needed."""

    __slots__ = ("batch", "handle", "is_needed", "seconds", "state")
    handle: engine.Handle[Any]

    def __init__(self, state: dict[str, Any], batch: Batch) -> None:
        self.state = state
        self.batch = batch
        self.is_needed = True
        self.seconds: list[float] = []


async def _make_batch(reference: weakref.ref[RecordIter], job: _Job) -> DataBatch | Failure | None:
    """Make a batch, or return its error; errors of abandoned batches are dropped."""
    iterator = reference()
    if iterator is None or not job.is_needed:
        return None
    try:
        return await iterator._batch(job)
    except Exception as error:  # raised by the call that takes the batch
        return Failure(error)
