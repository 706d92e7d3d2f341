"""`ImageIter`: batches of images from a RecordIO file, or from image files, through any augmenters."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flowmx import ndarray as nd
from flowmx.data import image_lists, rng
from flowmx.data.batch_order import check_last_batch, check_state
from flowmx.data.records import header as records
from flowmx.data.records.index import read_index
from flowmx.data.records.reader import CHUNK, Source
from flowmx.data.sharding import share
from flowmx.errors import raised_as_mxnet
from flowmx.image.augmenters import CreateAugmenter
from flowmx.image.functions import imdecode
from flowmx.io.base import BatchIter, DataBatch, DataDesc
from flowmx.ndarray import NDArray

_LABELS = ("int32", "float32", "int64", "float64")
_log = logging.getLogger("flowmx.image")


class ImageIter(BatchIter):
    """Batches of images, each decoded and augmented in Python; :class:`flowmx.io.ImageRecordIter` is faster.

    A subclass may change a step: :meth:`next_sample`, :meth:`read_image`, :meth:`imdecode`,
    :meth:`augmentation_transform`, :meth:`postprocess_data`.

    Args:
        batch_size: images in a batch.
        data_shape: (3, height, width).
        label_width: labels an image.
        path_imgrec: a RecordIO file of images.
        path_imglist: a list of image files (.lst), or of other labels for the images of ``path_imgrec``.
        path_root: the folder that files are named from.
        path_imgidx: the index of ``path_imgrec``; without one, the records' heads are read first.
        shuffle: in a new random order each epoch (from the generator that ``mx.random.seed`` seeds).
        part_index: the index of this worker's share, from 0.
        num_parts: the number of workers that share them.
        aug_list: the augmenters; by default those that :func:`CreateAugmenter` makes of ``kwargs``.
        imglist: a list of labels and files, such as ``[[0, "a.jpg"], [[1, 2], "b.jpg"]]``.
        data_name: the name of the input.
        label_name: the name of the label.
        dtype: the labels' element type.
        last_batch_handle: the treatment of images that fill no batch: ``"pad"`` fills it with the first ones,
            ``"discard"`` drops them, ``"roll_over"`` puts them before the next epoch's first.
        **kwargs: arguments of :func:`CreateAugmenter`.

    Raises:
        ValueError: there are no images, or an argument has a value that it does not take.
        OSError: a file can not be read.
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
        **kwargs: Any,
    ) -> None:
        super().__init__(batch_size)
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
        self._rest: list[Any] = []  # what rolls over into the next epoch
        self._ended = False
        self.hard_reset()

    @staticmethod
    def _check(dtype: str, last_batch_handle: str, images: Any) -> None:
        if dtype not in _LABELS:
            raise ValueError(f"ImageIter: dtype is {dtype!r}, expected one of {_LABELS}")
        check_last_batch("ImageIter", last_batch_handle)
        if not images:
            raise ValueError("ImageIter: expected path_imgrec, path_imglist or imglist, and none was given")

    def check_data_shape(self, data_shape: Sequence[int]) -> None:
        """Check the shape that images get.

        Raises:
            ValueError: it is none that this iterator makes.
        """
        if len(data_shape) != 3 or data_shape[0] != 3:
            raise ValueError(f"{type(self).__name__}: data_shape is {tuple(data_shape)}, expected (3, height, width)")

    # -- what there is ---------------------------------------------------------------------------------------

    def _read_list(self, path: Any, given: Any) -> dict[Any, tuple[Any, str]] | None:
        """Labels and file names by key, from a file or a list."""
        if path:
            entries: dict[Any, Any] = {int(parts[0]): parts[1:] for _, _, parts in image_lists.lines(path)}
        elif given is None:
            return None
        else:
            entries = {str(number): entry for number, entry in enumerate(given, 1)}
        split = {key: image_lists.labels_and_path(entry) for key, entry in entries.items()}
        return {key: (labels.astype(self._label_dtype), name) for key, (labels, name) in split.items()}

    def _keys(self, index: Any) -> list[Any]:
        """The images' keys, in order; of a RecordIO file, numbers of the index, else offsets."""
        if self._source is None:
            assert self.imglist is not None, "checked by _check"
            return list(self.imglist)
        self._offsets: dict[Any, int] = dict(read_index(index)) if index else {}
        return list(self._offsets) or list(self._source.offsets())

    def _read(self, key: Any) -> tuple[Any, bytes]:
        """An image's label, and its file's bytes."""
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
        """Begin the next epoch, in a new order where images are shuffled; with what rolled over first."""
        self._order()
        self.cur = 0
        self._ended = False

    def hard_reset(self) -> None:
        """As :meth:`reset`, and forget what rolled over."""
        self._rest = []
        self.reset()

    def _order(self) -> None:
        if self.shuffle:
            self.seq = rng.current().sample(self.seq, len(self.seq))

    def next_sample(self) -> tuple[Any, bytes]:
        """The next image's label, and its file's bytes.

        Raises:
            StopIteration: there is none.
        """
        if self.cur >= len(self.seq):
            raise StopIteration
        self.cur += 1
        return self._read(self.seq[self.cur - 1])

    def next(self) -> DataBatch:
        if self._ended:
            raise StopIteration
        start = self.cur
        rest, self._rest = self._rest, []
        made = [instance for key in rest if (instance := self._make_instance(*self._read(key))) is not None]
        self._fill(made)
        pad = self.batch_size - (len(rest) if rest else len(made))
        if len(made) < self.batch_size:
            self._ended = True
            if not made or self.last_batch_handle == "discard":
                raise StopIteration
            if self.last_batch_handle == "roll_over" and not rest:
                self._rest = self.seq[start:]
                raise StopIteration
            while len(made) < self.batch_size:
                self.cur = 0
                self._fill(made)
        self.current_batch = self._batch(made, pad)
        return self.current_batch

    def _fill(self, made: list[Any]) -> None:
        """Make instances until the batch is full, or there are no more images."""
        try:
            while len(made) < self.batch_size:
                instance = self._make_instance(*self.next_sample())
                if instance is not None:
                    made.append(instance)
        except StopIteration:
            pass

    def _make_instance(self, label: Any, raw: bytes) -> tuple[NDArray, Any] | None:
        """An instance; None for an image that is left out."""
        data = self.imdecode(raw)
        try:
            self.check_valid_image([data])
        except RuntimeError as error:
            _log.debug("an image is left out: %s", error)
            return None
        return self.postprocess_data(self.augmentation_transform(data)), label

    def _batch(self, made: list[tuple[NDArray, Any]], pad: int) -> DataBatch:
        data = nd.zeros(self.provide_data[0].shape)
        label = np.zeros(self.provide_label[0].shape, self._label_dtype)
        for place, (image, own) in enumerate(made):
            data[place] = image
            label[place] = self._reshape_label(own, label[place].shape)
        return DataBatch([data], [nd.array(label, dtype=label.dtype)], pad)

    def _reshape_label(self, label: Any, shape: tuple[int, ...]) -> Any:
        found = np.asarray(label)
        if found.size != int(np.prod(shape)):
            raise ValueError(
                f"{type(self).__name__}: an image has {found.size} label(s), but label_width is {self.label_width}"
            )
        return found.reshape(shape)

    def state(self) -> dict[str, Any]:
        """The position in the epoch, with the state of the augmentations' random generator."""
        return {
            "count": len(self.seq), "batch_size": self.batch_size, "cur": self.cur, "ended": self._ended,
            "rest": list(self._rest), "order": self.seq if self.shuffle else None, "random": rng.state(),
        }  # fmt: skip

    def set_state(self, state: dict[str, Any]) -> None:
        check_state(state, {"count": len(self.seq), "batch_size": self.batch_size})
        self.cur, self._ended, self._rest = int(state["cur"]), bool(state["ended"]), list(state["rest"])
        if state["order"] is not None:
            self.seq = list(state["order"])
        rng.set_state(state["random"])

    # -- the steps of an image -------------------------------------------------------------------------------

    def check_valid_image(self, data: Sequence[NDArray]) -> None:
        """Check a decoded image; a RuntimeError leaves it out."""
        if not data[0].shape:
            raise RuntimeError("the image has no shape")

    def imdecode(self, s: bytes) -> NDArray:
        """The image in a file's bytes.

        Raises:
            ValueError: it is damaged; the message says which image it was.
        """
        try:
            return imdecode(s)
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
        """The bytes of an image file."""
        return Path(self.path_root or "", fname).read_bytes()

    def augmentation_transform(self, data: NDArray) -> NDArray:
        """The image after all augmenters."""
        for augmenter in self.auglist:
            data = augmenter(data)
        return data

    def postprocess_data(self, datum: NDArray) -> NDArray:
        """The image with its channels in front."""
        return datum.transpose((2, 0, 1))
