"""Batches of MNIST's digits."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from flowmx.data import rng
from flowmx.data.idx import read_mnist
from flowmx.data.sharding import share
from flowmx.io.rows import RowsIter, dtype_of, ignore_rest


class MNISTIter(RowsIter):
    """Batches of MNIST's digits, as numbers from 0 to 1.

    Instances that fill no batch are left out.

    Args:
        image: the images' file (IDX; compressed with gzip too).
        label: the labels' file.
        batch_size: instances in a batch.
        shuffle: in a random order, drawn once, as MXNet does.
        flat: images as rows of numbers, (batch, 784), instead of (batch, 1, 28, 28).
        seed: the seed of the order.
        silent: kept for MXNet's scripts.
        num_parts: the number of workers that share the instances.
        part_index: the index of this worker's share, from 0.
        prefetch_buffer: kept for MXNet's scripts: all is in memory.
        ctx: kept for MXNet's scripts.
        dtype: the element type, float32 by default.
        data_name: the name of the input.
        label_name: the name of the label.
        **kwargs: ignored with a warning (MXNet's scripts give ``input_shape``, which follows from the files).

    Raises:
        OSError: a file can not be read.
        ValueError: a file in another format, or fewer instances than a batch.
    """

    def __init__(
        self,
        image: str | os.PathLike[str] = "./train-images-idx3-ubyte",
        label: str | os.PathLike[str] = "./train-labels-idx1-ubyte",
        batch_size: int = 128,
        shuffle: bool = True,
        flat: bool = False,
        seed: int = 0,
        silent: bool = False,
        num_parts: int = 1,
        part_index: int = 0,
        prefetch_buffer: int = 4,
        ctx: str = "cpu",
        dtype: Any = None,
        data_name: str = "data",
        label_name: str = "softmax_label",
        **kwargs: Any,
    ) -> None:
        ignore_rest("MNISTIter", kwargs)
        kind = dtype_of("MNISTIter", dtype)
        images, labels = read_mnist(image, label)
        part = share(len(images), part_index, num_parts)
        images, labels = images[part], labels[part]
        if shuffle:
            order = rng.seeded(seed).permutation(len(images))
            images, labels = images[order], labels[order]
        images = images.reshape(len(images), -1) if flat else images[:, None]
        self._scale = np.float32(1 / 256)
        self._kind = kind
        super().__init__(
            images, labels.astype(kind), batch_size, "discard", data_name=data_name, label_name=label_name
        )  # fmt: skip
        self.provide_data[0].dtype = kind.type

    def _taken(self, source: np.ndarray[Any, Any], rows: Any) -> Any:
        if source is self._data:
            source, rows = (source[rows] * self._scale).astype(self._kind), slice(None)
        return super()._taken(source, rows)
