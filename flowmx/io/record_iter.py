"""Batches of images from RecordIO files that threads decode ahead: the base of the iterators that read such files."""

from __future__ import annotations

import asyncio
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

from flowmx import engine
from flowmx import ndarray as nd
from flowmx.data import codecs
from flowmx.data.augmentation.options import Reading
from flowmx.data.batch_order import Batch, BatchOrder
from flowmx.data.records.reader import Records
from flowmx.devices import pool
from flowmx.errors import MXNetError, ParameterError
from flowmx.io.base import BatchIter, DataBatch, DataDesc

_FLAGS = {1: 0, 3: 1, 4: -1}
"""The flag with which an image is decoded, by its number of channels."""
_KINDS = ("float32", "float64", "float16", "uint8", "int8")
_LIGHT = 60e-6
"""Seconds of processor time up to which one thread makes all images: others would wait for the interpreter's lock."""


class ImageRecordError(MXNetError, ValueError):
    """A record could not be made into an instance; the message says which one and why."""


class RecordIter(BatchIter):
    """Batches of images from a RecordIO file; a subclass makes the instances, and calls :meth:`_fetch` once it can.

    Args:
        reading: the options of the files and the batches.
        data_name: the name of the images.
        label_name: the name of the labels.
        records: the records to read.
        label_width: the numbers of each label; 0 for labels that are one number.
    """

    is_single = True

    def __init__(self, reading: Reading, data_name: str, label_name: str, records: Records, label_width: int) -> None:
        if reading.dtype not in _KINDS:
            raise ParameterError(f"{reading.iterator}: dtype is {reading.dtype!r}, expected one of {', '.join(_KINDS)}")
        super().__init__(reading.batch_size)
        self._reading, self._records, self._label_width = reading, records, label_width
        self._dtype = np.dtype(reading.dtype)
        self._order = BatchOrder(
            len(records), reading.batch_size, "wrap" if reading.round_batch else "repeat", reading.shuffle, reading.seed
        )
        self.provide_data = [DataDesc(data_name, (reading.batch_size, *reading.data_shape), self._dtype.type)]
        labels = (reading.batch_size, label_width) if label_width else (reading.batch_size,)
        self.provide_label = [DataDesc(label_name, labels)]
        self._ahead: deque[_Job] = deque()
        self._threads = min(reading.preprocess_threads, os.cpu_count() or 1)
        self._are_light = False
        self._workers: dict[int, ThreadPoolExecutor] = {}
        self._workers_of = 0

    # -- for subclasses to define ------------------------------------------------------------------------------

    def _random(self, batch: Batch) -> Any:
        """The random numbers of each image of a batch."""
        raise NotImplementedError

    def _instance(self, row: int, random: Any, data: Any, label: Any) -> int:
        """Read, decode, augment and normalize an image into its place; returns its number."""
        raise NotImplementedError

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
        label = np.empty((reading.batch_size, max(1, self._label_width)), np.float32)
        index = np.empty(reading.batch_size, np.uint64)
        work = partial(self._process, job, iter(self._places(batch)), data, label, index)
        loop = asyncio.get_running_loop()
        threads = 1 if self._are_light else self._threads
        workers = self._pool(threads)
        failed = await asyncio.gather(*(loop.run_in_executor(workers, work) for _ in range(threads)))
        self._are_light = sum(job.seconds) < _LIGHT * reading.batch_size
        errors = sorted((each for each in failed if each is not None), key=lambda each: each[0])
        if errors:
            row, error = errors[0][1:]
            raise ImageRecordError(self._describe(row, error)) from error
        if not self._label_width:
            label = label[:, 0].copy()
        return DataBatch(
            [nd.from_numpy(data)], [nd.from_numpy(label)], batch.pad, index,
            provide_data=self.provide_data, provide_label=self.provide_label,
        )  # fmt: skip

    def _places(self, batch: Batch) -> list[tuple[int, int, Any]]:
        """The images of a batch: (row in the batch, record number, random numbers of its augmentation)."""
        return list(zip(range(len(batch.rows)), batch.rows.tolist(), self._random(batch), strict=True))

    def _process(
        self, job: _Job, places: Iterator[tuple[int, int, Any]], data: Any, label: Any, index: Any
    ) -> tuple[int, int, Exception] | None:
        """A thread's work: one image after the other, until none is left (a list's iterator may be shared).

        Returns:
            the place, the record and the error of an image that was none; the first of all threads' is raised.
        """
        start = time.thread_time()
        for place, row, u in places:
            if not job.wanted:
                break
            try:
                index[place] = self._instance(row, u, data[place], label[place])
            except Exception as error:
                job.wanted = False
                return place, row, error
        job.seconds.append(time.thread_time() - start)
        return None

    def _describe(self, row: int, error: Exception) -> str:
        offset = int(self._records.offsets[row])
        return f"record {row} of {self._reading.path_imgrec!r}, at offset {offset}: {error}"

    def _decoded(self, raw: bytes) -> codecs.Image:
        """Decode an image.

        Raises:
            ValueError: it is none, or has other channels.
        """
        channels = self._reading.data_shape[0]
        image = codecs.decode(raw, _FLAGS[channels])
        if image.shape[2] != channels:
            raise ValueError(f"the image has {image.shape[2]} channels, expected {channels}")
        return image

    def _mean_image(self, file: str, images: Iterator[Any]) -> Any:
        """The mean of all images, from its file; made and written now where there is none, as MXNet does.

        Args:
            file: where it is.
            images: bytes (height, width, channels), each one's; not looked at where the file exists.
        """
        path, shape = Path(file), self._reading.data_shape
        if path.exists():
            loaded: Any = nd.load(path)
            found = (next(iter(loaded.values())) if isinstance(loaded, dict) else loaded[0]).asnumpy()
            if found.shape != shape:
                raise ValueError(
                    f"{self._reading.iterator}: {file!r} holds an array of shape {found.shape}, expected {shape}, as "
                    "data_shape"
                )
            return found
        total = np.zeros(shape, np.float64)
        for image in images:
            total += image.transpose(2, 0, 1)
        mean = (total / max(1, len(self._records))).astype(np.float32)
        nd.save(path, {"mean_img": nd.array(mean)})
        return mean

    def _pool(self, threads: int) -> ThreadPoolExecutor:
        """So many threads that decode; anew in the child of a fork, which has none."""
        if self._workers_of != os.getpid():
            self._workers, self._workers_of = {}, os.getpid()
        if threads not in self._workers:
            made = self._workers[threads] = ThreadPoolExecutor(threads, "flowmx-decode")
            weakref.finalize(self, made.shutdown, wait=False, cancel_futures=True)
        return self._workers[threads]


class _Job:
    """A batch in progress: the state before it, what each thread took, and a flag once it was abandoned."""

    __slots__ = ("batch", "handle", "seconds", "state", "wanted")
    handle: engine.Handle

    def __init__(self, state: dict[str, Any], batch: Batch) -> None:
        self.state = state
        self.batch = batch
        self.wanted = True
        self.seconds: list[float] = []


async def _make(reference: weakref.ref[RecordIter], job: _Job) -> DataBatch | Exception | None:
    """Make a batch, or return its error; errors of abandoned batches are dropped."""
    iterator = reference()
    if iterator is None or not job.wanted:
        return None
    try:
        return await iterator._batch(job)
    except Exception as error:
        return error
