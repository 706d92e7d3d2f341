"""`ImageIter`: batches of images from a RecordIO file or from image files, with custom augmenters."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flowmx import ndarray as nd
from flowmx.data import codecs, image_lists, rng
from flowmx.data.batch_order import check_last_batch, check_state
from flowmx.data.records import header as records
from flowmx.data.records.framing import RecordFormatError
from flowmx.data.records.index import read_index
from flowmx.data.records.reader import CHUNK, Source
from flowmx.data.sharding import share
from flowmx.errors import raised_as_mxnet
from flowmx.image.augmenters import CreateAugmenter, shuffled_lists
from flowmx.image.functions import decode_buffer
from flowmx.io.data_iter import BatchIter, DataBatch, DataDesc
from flowmx.ndarray import NDArray

_LABEL_DTYPES = ("int32", "float32", "int64", "float64")
_log = logging.getLogger("flowmx.image")


class ImageIter(BatchIter):
    """Batches of images, decoded and augmented in Python; :class:`flowmx.io.ImageRecordIter` is faster.

    A subclass may override a step: :meth:`next_sample`, :meth:`read_image`, :meth:`imdecode`,
    :meth:`augmentation_transform`, :meth:`postprocess_data`.

    Args:
        batch_size: the number of images in a batch.
        data_shape: (3, height, width).
        label_width: the number of labels per image.
        path_imgrec: a RecordIO file of images.
        path_imglist: a list of image files (.lst), or of other labels for the images of ``path_imgrec``.
        path_root: the folder that file names are relative to.
        path_imgidx: the index of ``path_imgrec``; without it, the headers of all records are read first.
        shuffle: whether to draw a new random order for each epoch (from Python's generator, as in MXNet).
        part_index: the index of this worker's share, from 0.
        num_parts: the number of workers that share the images.
        aug_list: the augmenters; by default :func:`CreateAugmenter` creates them from ``kwargs``.
        imglist: a list of labels and files, such as ``[[0, "a.jpg"], [[1, 2], "b.jpg"]]``.
        data_name: the name of the input.
        label_name: the name of the label.
        dtype: the labels' element type.
        last_batch_handle: the treatment of an incomplete last batch: ``"pad"`` fills it with the first images,
            ``"discard"`` drops it, ``"roll_over"`` puts its images at the beginning of the next epoch.
        damaged_images: ``"decode"`` the readable part of a damaged JPEG file, ``"raise"`` an error, or ``"skip"`` it,
            like files that are not images (default: the setting ``damaged_images``).
        **kwargs: arguments of :func:`CreateAugmenter`.

    Raises:
        ValueError: there are no images, or an argument is invalid.
        OSError: a file cannot be read.
    """

    is_single = True

    def __init__(
        self,
        batch_size: int,
        data_shape: Sequence[int],
        label_width: int = 1,
        path_imgrec: str | os.PathLike[str] | None = None,
        path_imglist: str | os.PathLike[str] | None = None,
        path_root: str | os.PathLike[str] | None = None,
        path_imgidx: str | os.PathLike[str] | None = None,
        shuffle: bool = False,
        part_index: int = 0,
        num_parts: int = 1,
        aug_list: Sequence[Any] | None = None,
        imglist: Sequence[Sequence[Any]] | None = None,
        data_name: str = "data",
        label_name: str = "softmax_label",
        dtype: str = "float32",
        last_batch_handle: str = "pad",
        damaged_images: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(batch_size)
        self._damaged = codecs.damaged_policy(damaged_images, type(self).__name__)
        self._check(dtype, last_batch_handle, path_imgrec or path_imglist or imglist)
        self.check_data_shape(data_shape)
        self.data_shape = tuple(data_shape)
        self.label_width = label_width
        self.path_root = path_root
        self.shuffle = shuffle
        self.last_batch_handle = last_batch_handle
        self._label_dtype = dtype
        self.auglist: list[Any] = [*(CreateAugmenter(self.data_shape, **kwargs) if aug_list is None else aug_list)]
        self.imglist = self._read_list(path_imglist, imglist)
        self._source = Source(path_imgrec) if path_imgrec else None
        keys = self._keys(path_imgidx)
        self.seq = keys[share(len(keys), part_index, num_parts, "drop rest")]
        if not self.seq:
            raise ValueError(f"{type(self).__name__}: there are no images: the file, the list or the part is empty")
        self.provide_data = [DataDesc(data_name, (batch_size, *self.data_shape))]
        labels = (batch_size, label_width) if label_width > 1 else (batch_size,)
        self.provide_label = [DataDesc(label_name, labels, np.dtype(dtype).type)]
        self.cur = 0
        self._rest: list[Any] = []  # keys that roll over into the next epoch
        self._ended = False
        self.hard_reset()

    @staticmethod
    def _check(dtype: str, last_batch_handle: str, images: object) -> None:
        if dtype not in _LABEL_DTYPES:
            raise ValueError(f"ImageIter: dtype is {dtype!r}, expected one of {_LABEL_DTYPES}")
        check_last_batch("ImageIter", last_batch_handle)
        if not images:
            raise ValueError("ImageIter: path_imgrec, path_imglist and imglist are all missing, expected one")

    def check_data_shape(self, data_shape: Sequence[int]) -> None:
        """Check the shape of images.

        Raises:
            ValueError: the iterator does not support it.
        """
        if len(data_shape) != 3 or data_shape[0] != 3:
            raise ValueError(f"{type(self).__name__}: data_shape is {tuple(data_shape)}, expected (3, height, width)")

    # -- source ----------------------------------------------------------------------------------------------

    def _read_list(self, path: Any, imglist: Any) -> dict[Any, tuple[Any, str]] | None:
        """Return labels and file names by key, from a file or a list."""
        if path:
            entries: dict[Any, Any] = {int(parts[0]): parts[1:] for _, _, parts in image_lists.lines(path)}
        elif imglist is None:
            return None
        else:
            entries = {str(number): entry for number, entry in enumerate(imglist, 1)}
        pairs = {key: image_lists.labels_and_path(entry) for key, entry in entries.items()}
        return {key: (labels.astype(self._label_dtype), name) for key, (labels, name) in pairs.items()}

    def _keys(self, index: Any) -> list[Any]:
        """Return the images' keys, in order: for a RecordIO file, the keys of its index, or offsets without one."""
        if self._source is None:
            assert self.imglist is not None, "checked by _check"
            return list(self.imglist)
        self._offsets: dict[Any, int] = dict(read_index(index)) if index else {}
        return list(self._offsets) or list(self._source.offsets())

    def _read(self, key: Any) -> tuple[Any, bytes]:
        """Return an image's label, and its file's bytes."""
        if self._source is None:
            assert self.imglist is not None
            label, name = self.imglist[key]
            return label, self.read_image(name)
        header, raw = records.unpack(self._source.record(self._offsets.get(key, key), CHUNK)[0])
        if self.imglist is None:
            return header.label, raw
        return self.imglist[key if self._offsets else header.id][0], raw

    # -- batches ---------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Begin the next epoch, in a new order if shuffled; images that rolled over come first."""
        self._shuffle_images()
        self.cur = 0
        self._ended = False

    def hard_reset(self) -> None:
        """Begin the next epoch, dropping images that rolled over."""
        self._rest = []
        self.reset()

    def _shuffle_images(self) -> None:
        if self.shuffle:
            rng.python().shuffle(self.seq)

    def next_sample(self) -> tuple[Any, bytes]:
        """Return the next image's label, and its file's bytes.

        Raises:
            StopIteration: there are no more images.
        """
        if self.cur >= len(self.seq):
            raise StopIteration
        self.cur += 1
        return self._read(self.seq[self.cur - 1])

    def next(self) -> DataBatch:
        if self._ended:
            raise StopIteration
        start = self.cur
        keys, self._rest = self._rest, []
        samples = [sample for key in keys if (sample := self._next_sample(partial(self._read, key))) is not None]
        self._fill(samples)
        pad = self.batch_size - (len(keys) if keys else len(samples))
        if len(samples) < self.batch_size:
            self._ended = True
            if not samples or self.last_batch_handle == "discard":
                raise StopIteration
            if self.last_batch_handle == "roll_over" and not keys:
                self._rest = self.seq[start:]
                raise StopIteration
            while len(samples) < self.batch_size:
                self.cur = 0
                self._fill(samples)
        self.current_batch = self._batch(samples, pad)
        return self.current_batch

    def _fill(self, samples: list[Any]) -> None:
        """Add samples until the batch is full, or there are no more images."""
        try:
            while len(samples) < self.batch_size:
                sample = self._next_sample(self.next_sample)
                if sample is not None:
                    samples.append(sample)
        except StopIteration:
            pass

    def _next_sample(self, read: Callable[[], tuple[Any, bytes]]) -> Any:
        """Read an image and make a sample; return None if the image is skipped."""
        try:
            return self._make_sample(*read())
        except (codecs.DamagedImageError, RecordFormatError) as error:
            if self._damaged != "skip":
                raise
            _log.warning("skipped an image: %s", error)
            return None

    def _make_sample(self, label: Any, raw: bytes) -> tuple[NDArray, Any] | None:
        """Make a sample; return None if the image is skipped."""
        data = self.imdecode(raw)
        try:
            self.check_valid_image([data])
        except RuntimeError as error:
            _log.debug("skipped an image: %s", error)
            return None
        return self.postprocess_data(self.augmentation_transform(data)), label

    def _batch(self, samples: list[tuple[NDArray, Any]], pad: int) -> DataBatch:
        data = nd.zeros(self.provide_data[0].shape)
        label = np.zeros(self.provide_label[0].shape, self._label_dtype)
        for position, (image, image_label) in enumerate(samples):
            data[position] = image
            label[position] = self._reshape_label(image_label, label[position].shape)
        return DataBatch([data], [nd.array(label, dtype=label.dtype)], pad)

    def _reshape_label(self, label: object, shape: tuple[int, ...]) -> Any:
        values = np.asarray(label)
        if values.size != int(np.prod(shape)):
            raise ValueError(
                f"{type(self).__name__}: an image has {values.size} label(s), but label_width is {self.label_width}"
            )
        return values.reshape(shape)

    def state(self) -> dict[str, Any]:
        """Return the position in the epoch, with the states of all random generators (also Python's and NumPy's)."""
        return {
            "count": len(self.seq), "batch_size": self.batch_size, "cur": self.cur, "ended": self._ended,
            "rest": list(self._rest), "order": self.seq if self.shuffle else None, "random": rng.all_states(),
            "augmenters": [augmenters.order() for augmenters in shuffled_lists(self.auglist)],
        }  # fmt: skip

    def set_state(self, state: dict[str, Any]) -> None:
        check_state(state, {"count": len(self.seq), "batch_size": self.batch_size})
        self.cur, self._ended, self._rest = int(state["cur"]), bool(state["ended"]), list(state["rest"])
        if state["order"] is not None:
            self.seq = list(state["order"])
        rng.set_all_states(state["random"])
        for augmenters, order in zip(shuffled_lists(self.auglist), state.get("augmenters", ()), strict=False):
            augmenters.set_order(order)

    # -- steps for one image ---------------------------------------------------------------------------------

    def check_valid_image(self, data: Sequence[NDArray]) -> None:
        """Check a decoded image; an image is skipped if this raises RuntimeError."""
        if not data[0].shape:
            raise RuntimeError("the image has no shape")

    def imdecode(self, s: bytes) -> NDArray:
        """Decode an image from a file's bytes.

        Raises:
            ValueError: the image is damaged; the message has its name or offset.
        """
        try:
            return decode_buffer(s, damaged=self._damaged)
        except codecs.DamagedImageError as error:
            raise codecs.DamagedImageError(f"{type(self).__name__}: {self._locate()}: {error}") from error
        except ValueError as error:
            raise ValueError(f"{type(self).__name__}: {self._locate()}: {error}") from error

    def _locate(self) -> str:
        key = self.seq[max(0, self.cur - 1)]
        if self.imglist is not None and key in self.imglist:
            return f"image {self.imglist[key][1]!r}"
        path = self._source.path if self._source else None
        return f"record {key} of {path!r}" if self._offsets else f"the record at offset {key} of {path!r}"

    @raised_as_mxnet(OSError)
    def read_image(self, fname: str) -> bytes:
        """Return the bytes of an image file."""
        return Path(self.path_root or "", fname).read_bytes()

    def augmentation_transform(self, data: NDArray) -> NDArray:
        """Apply all augmenters to an image."""
        for augmenter in self.auglist:
            data = augmenter(data)
        return data

    def postprocess_data(self, datum: NDArray) -> NDArray:
        """Move an image's channels to the first axis."""
        return datum.transpose((2, 0, 1))
