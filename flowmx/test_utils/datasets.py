"""Datasets for tests, from local files or the network."""

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
    """Download a file, unless it exists; see :func:`mx.gluon.utils.download <flowmx.gluon.utils.download>`.

    Args:
        url: its URL.
        fname: name of the local file (default: the last part of the URL).
        dirname: the folder (default: the current one).
        overwrite: whether to download an existing file again.
        retries: maximum number of attempts.

    Returns:
        the path of the file.

    Raises:
        DownloadError: the download failed.
    """
    path = Path(dirname or "", fname or url.split("/")[-1])
    return files.download(url, path, overwrite, retries=retries)


def get_mnist_ubyte(root: Folder | None = None) -> Path:
    """Return the folder with MNIST's four files, optionally compressed with gzip; download them if missing.

    Args:
        root: the folder (default: ``data``, the current folder, or Gluon's folder).

    Raises:
        DownloadError: a file is missing and the download failed (also a FileNotFoundError); the message has the path.
    """
    default = files.data_dir() / "datasets" / "mnist"
    folders = [Path("data"), Path(), default] if root is None else [Path(root).expanduser()]
    for folder in folders:
        if not _missing_files(folder):
            return folder
    for train in (True, False):
        MNIST(folders[-1], train)
    return folders[-1]


def _missing_files(folder: Path) -> list[str]:
    return [name for name in _FILES if not any((folder / f"{name}{end}").exists() for end in ("", ".gz"))]


def get_mnist(root: Folder | None = None) -> dict[str, Numbers]:
    """Return MNIST as arrays: images from 0 to 1, (60000, 1, 28, 28) and (10000, 1, 28, 28), and labels.

    Args:
        root: as for :func:`get_mnist_ubyte`.

    Returns:
        ``train_data``, ``train_label``, ``test_data`` and ``test_label``.

    Raises:
        DownloadError: a file is missing and the download failed (also a FileNotFoundError).
        ValueError: a file has a different format.
    """
    folder = get_mnist_ubyte(root)
    arrays = {}
    for part, files_of_part in (("train", _FILES[:2]), ("test", _FILES[2:])):
        images, labels = read_mnist(*(folder / name for name in files_of_part))
        arrays[f"{part}_data"] = images[:, None].astype(np.float32) / 255
        arrays[f"{part}_label"] = labels.astype(np.int8)
    return arrays


def get_mnist_iterator(
    batch_size: int, input_shape: Sequence[int], num_parts: int = 1, part_index: int = 0, root: Folder | None = None
) -> tuple[MNISTIter, MNISTIter]:
    """Return iterators over MNIST's training and test data.

    Args:
        batch_size: the batch size.
        input_shape: three lengths for images, else flat rows.
        num_parts: number of workers that share the samples.
        part_index: index of this worker, from 0.
        root: as for :func:`get_mnist_ubyte`.

    Raises:
        DownloadError: a file is missing and the download failed (also a FileNotFoundError).
    """
    folder = get_mnist_ubyte(root)
    common: dict[str, Any] = {"flat": len(input_shape) != 3, "num_parts": num_parts, "part_index": part_index}
    train, label, test, test_label = (folder / name for name in _FILES)
    return (
        MNISTIter(train, label, batch_size, shuffle=True, **common),
        MNISTIter(test, test_label, batch_size, shuffle=False, **common),
    )


class DummyIter(DataIter):
    """Repeats the first batch of another iterator endlessly, for measurements without data loading.

    Args:
        real_iter: the source of the batch.
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
        """Return the batch."""
        batch: DataBatch = self.the_batch
        return batch
