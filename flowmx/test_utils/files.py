"""Data sets for tests, from files that are here: nothing is downloaded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flowmx.gluon.utils import download
from flowmx.io import DataBatch, DataIter, MNISTIter
from flowmx.io.mnist import read_idx
from flowmx.test_utils.tolerance import Numbers

__all__ = ["DummyIter", "download", "get_mnist", "get_mnist_iterator", "get_mnist_ubyte"]

_FOLDERS = ("data", "~/.mxnet/datasets/mnist")
_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

Folder = str | os.PathLike[str]


def get_mnist_ubyte(root: Folder | None = None) -> Path:
    """The folder that has MNIST's four files, compressed with gzip or not.

    Args:
        root: where to look; by default in ``data``, and where Gluon keeps them.

    Raises:
        FileNotFoundError: they are not all there; says which are missing.
    """
    folders = [Path(each).expanduser() for each in ([root] if root is not None else _FOLDERS)]
    for folder in folders:
        if not _missing(folder):
            return folder
    raise FileNotFoundError(
        f"MNIST's files {', '.join(_missing(folders[0]))} (with or without .gz) are not in "
        f"{' nor in '.join(map(str, folders))}: flowmx loads nothing from the network, so put them there"
    )


def _missing(folder: Path) -> list[str]:
    return [name for name in _FILES if not any((folder / f"{name}{end}").exists() for end in ("", ".gz"))]


def get_mnist(root: Folder | None = None) -> dict[str, Numbers]:
    """MNIST in arrays: images from 0 to 1, (60000, 1, 28, 28) and (10000, 1, 28, 28), and labels.

    Args:
        root: as for :func:`get_mnist_ubyte`.

    Returns:
        ``train_data``, ``train_label``, ``test_data`` and ``test_label``.

    Raises:
        FileNotFoundError: the files are not there.
        ValueError: one is in another format.
    """
    folder = get_mnist_ubyte(root)
    images = [read_idx(folder / name, 3)[:, None].astype(np.float32) / 255 for name in (_FILES[0], _FILES[2])]
    labels = [read_idx(folder / name, 1).astype(np.int8) for name in (_FILES[1], _FILES[3])]
    return {
        "train_data": images[0], "train_label": labels[0], "test_data": images[1], "test_label": labels[1],
    }  # fmt: skip


def get_mnist_iterator(
    batch_size: int, input_shape: Sequence[int], num_parts: int = 1, part_index: int = 0, root: Folder | None = None
) -> tuple[MNISTIter, MNISTIter]:
    """Iterators over MNIST's training and test data.

    Args:
        batch_size: instances in a batch.
        input_shape: images if it has three lengths, otherwise rows of numbers.
        num_parts: how many workers share the instances.
        part_index: which share this one reads.
        root: as for :func:`get_mnist_ubyte`.

    Raises:
        FileNotFoundError: the files are not there.
    """
    folder = get_mnist_ubyte(root)
    common = {"flat": len(input_shape) != 3, "num_parts": num_parts, "part_index": part_index}
    train, label, test, test_label = (folder / name for name in _FILES)
    return (
        MNISTIter(train, label, batch_size, shuffle=True, **common),  # type: ignore[arg-type]
        MNISTIter(test, test_label, batch_size, shuffle=False, **common),  # type: ignore[arg-type]
    )


class DummyIter(DataIter):
    """Gives the first batch of another iterator again and again, without an end: to measure all but the reading.

    Args:
        real_iter: where the batch is from.
    """

    def __init__(self, real_iter: DataIter) -> None:
        super().__init__(real_iter.batch_size)
        self.real_iter = real_iter
        self.the_batch: Any = next(real_iter)

    @property
    def provide_data(self) -> Any:
        return self.real_iter.provide_data

    @property
    def provide_label(self) -> Any:
        return self.real_iter.provide_label

    def next(self) -> DataBatch:
        """The batch."""
        found: DataBatch = self.the_batch
        return found
