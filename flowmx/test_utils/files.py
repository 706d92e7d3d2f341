"""Data sets for tests, from files that are here, or else from the network."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flowmx import download as files
from flowmx.data.idx import read_mnist
from flowmx.gluon.data.vision import MNIST
from flowmx.io import DataBatch, DataIter, MNISTIter
from flowmx.test_utils.tolerance import Numbers

__all__ = ["DummyIter", "download", "get_mnist", "get_mnist_iterator", "get_mnist_ubyte"]

_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

Folder = str | os.PathLike[str]


def download(
    url: str, fname: str | None = None, dirname: Folder | None = None, overwrite: bool = False, retries: int = 5
) -> str:
    """Fetch a file, unless it is there; see :func:`mx.gluon.utils.download <flowmx.gluon.utils.download>`.

    Args:
        url: where it is.
        fname: the name of the local file (default: the end of the address).
        dirname: the folder (default: the current one).
        overwrite: fetch it although it is there.
        retries: the maximum number of attempts.

    Returns:
        the file's path.

    Raises:
        DownloadError: it can not be had.
    """
    path = Path(dirname or "", fname or url.split("/")[-1])
    return files.download(url, path, overwrite, retries=retries)


def get_mnist_ubyte(root: Folder | None = None) -> Path:
    """The folder that has MNIST's four files, compressed with gzip or not; fetched where they are nowhere.

    Args:
        root: the folder; by default ``data``, or the current one, or the one where Gluon keeps them.

    Raises:
        DownloadError: one is not there and can not be fetched (a FileNotFoundError, too); says where to put it.
    """
    usual = files.data_dir() / "datasets" / "mnist"
    folders = [Path("data"), Path(), usual] if root is None else [Path(root).expanduser()]
    for folder in folders:
        if not _missing(folder):
            return folder
    for train in (True, False):
        MNIST(folders[-1], train)
    return folders[-1]


def _missing(folder: Path) -> list[str]:
    return [name for name in _FILES if not any((folder / f"{name}{end}").exists() for end in ("", ".gz"))]


def get_mnist(root: Folder | None = None) -> dict[str, Numbers]:
    """MNIST in arrays: images from 0 to 1, (60000, 1, 28, 28) and (10000, 1, 28, 28), and labels.

    Args:
        root: as for :func:`get_mnist_ubyte`.

    Returns:
        ``train_data``, ``train_label``, ``test_data`` and ``test_label``.

    Raises:
        DownloadError: one is not there and can not be fetched (a FileNotFoundError, too).
        ValueError: one is in another format.
    """
    folder = get_mnist_ubyte(root)
    found = {}
    for part, files_of_part in (("train", _FILES[:2]), ("test", _FILES[2:])):
        images, labels = read_mnist(*(folder / name for name in files_of_part))
        found[f"{part}_data"] = images[:, None].astype(np.float32) / 255
        found[f"{part}_label"] = labels.astype(np.int8)
    return found


def get_mnist_iterator(
    batch_size: int, input_shape: Sequence[int], num_parts: int = 1, part_index: int = 0, root: Folder | None = None
) -> tuple[MNISTIter, MNISTIter]:
    """Iterators over MNIST's training and test data.

    Args:
        batch_size: instances in a batch.
        input_shape: images if it has three lengths, otherwise rows of numbers.
        num_parts: the number of workers that share the instances.
        part_index: the index of this worker's share, from 0.
        root: as for :func:`get_mnist_ubyte`.

    Raises:
        DownloadError: one is not there and can not be fetched (a FileNotFoundError, too).
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
