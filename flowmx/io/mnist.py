"""`MNISTIter`: batches of the MNIST digits."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from flowmx.data import rng
from flowmx.data.idx import read_mnist
from flowmx.data.sharding import share
from flowmx.io.memory_iter import MemoryIter, element_type, ignore_rest
from flowmx.ops.registry.operators import Array


class MNISTIter(MemoryIter):
    """Batches of the MNIST digits, with pixels from 0 to 1. An incomplete last batch is dropped.

    Args:
        image: the images' file (IDX; may be compressed with gzip).
        label: the labels' file.
        batch_size: the number of samples in a batch.
        shuffle: whether to use a random order, drawn once, as MXNet does.
        flat: return images of shape (batch, 784) instead of (batch, 1, 28, 28).
        seed: the seed of the order.
        silent: ignored; accepted for MXNet's scripts.
        num_parts: the number of workers that share the samples.
        part_index: the index of this worker's share, from 0.
        prefetch_buffer: ignored; accepted for MXNet's scripts: all data is in memory.
        ctx: ignored; accepted for MXNet's scripts.
        dtype: the element type, float32 by default.
        data_name: the name of the input.
        label_name: the name of the label.
        **kwargs: ignored with a warning (MXNet's scripts pass ``input_shape``, which the files determine).

    Raises:
        OSError: a file cannot be read.
        ValueError: a file has a different format, or there are fewer samples than a batch.
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
        dtype: object = None,
        data_name: str = "data",
        label_name: str = "softmax_label",
        **kwargs: object,
    ) -> None:
        ignore_rest("MNISTIter", kwargs)
        kind = element_type("MNISTIter", dtype)
        images, labels = read_mnist(image, label)
        part = share(len(images), part_index, num_parts)
        images, labels = images[part], labels[part]
        if shuffle:
            order = rng.make_generator(seed).permutation(len(images))
            images, labels = images[order], labels[order]
        images = images.reshape(len(images), -1) if flat else images[:, None]
        self._scale = np.float32(1 / 256)
        self._kind = kind
        super().__init__(
            images, labels.astype(kind), batch_size, "discard", data_name=data_name, label_name=label_name
        )  # fmt: skip
        self.provide_data[0].dtype = kind.type

    def _select(self, source: Array, rows: Any) -> Any:
        if source is self._data:
            source, rows = (source[rows] * self._scale).astype(self._kind), slice(None)
        return super()._select(source, rows)
