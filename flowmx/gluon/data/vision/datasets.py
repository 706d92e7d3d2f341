"""Data sets of images, from files as MXNet keeps them. Nothing is downloaded."""

from __future__ import annotations

import os
import tarfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flowmx import image, recordio
from flowmx import ndarray as nd
from flowmx.gluon.data.dataset import Dataset, RecordFileDataset
from flowmx.io.mnist import read_idx
from flowmx.ndarray import NDArray

__all__ = [
    "CIFAR10", "CIFAR100", "MNIST", "FashionMNIST", "ImageFolderDataset", "ImageListDataset", "ImageRecordDataset",
]  # fmt: skip

Folder = str | os.PathLike[str]
Transform = Callable[[Any, Any], Any] | None

_ENDINGS = (".jpg", ".jpeg", ".png")


class _FromFiles(Dataset):
    """Images and labels in memory, from files in a folder.

    Args:
        root: the folder.
        transform: called with each image and its label; its result is the sample.

    Raises:
        FileNotFoundError: the files are not there; the message names them.
        ValueError: a file is damaged.
    """

    def __init__(self, root: Folder, transform: Transform) -> None:
        self._root = Path(root).expanduser()
        self._transform = transform
        self._data: NDArray
        self._label: Any
        images, self._label = self._read()
        self._data = nd.array(images, dtype=images.dtype)

    def __getitem__(self, idx: Any) -> Any:
        sample = self._data[idx], self._label[idx]
        return sample if self._transform is None else self._transform(*sample)

    def __len__(self) -> int:
        return len(self._label)

    def _read(self) -> tuple[Any, Any]:
        """The images, (number, height, width, channels), and the labels."""
        raise NotImplementedError

    def _missing(self, names: Sequence[str], source: str) -> FileNotFoundError:
        return FileNotFoundError(
            f"{type(self).__name__}: {', '.join(names)} expected in {str(self._root)!r}, and not there. flowmx "
            f"loads nothing from the network: fetch {source} yourself, or pass root= with the folder that they are in"
        )


class MNIST(_FromFiles):
    """MNIST's handwritten digits: images of shape (28, 28, 1) in bytes, and labels from 0 to 9.

    Args:
        root: the folder with ``train-images-idx3-ubyte.gz`` and ``train-labels-idx1-ubyte.gz``, or ``t10k-...`` for
            the test set; unpacked ones will do.
        train: the training set, or the test set.
        transform: called with each image and its label.

    Raises:
        FileNotFoundError: the files are not there.
        ValueError: a file is damaged.
    """

    def __init__(
        self, root: Folder = "~/.mxnet/datasets/mnist", train: bool = True, transform: Transform = None
    ) -> None:
        self._train = train
        super().__init__(root, transform)

    def _read(self) -> tuple[Any, Any]:
        part = "train" if self._train else "t10k"
        names = [f"{part}-images-idx3-ubyte.gz", f"{part}-labels-idx1-ubyte.gz"]
        images, labels = (self._file(name) for name in names)
        if images is None or labels is None:
            raise self._missing(names, "MNIST's or Fashion-MNIST's files")
        pixels, classes = read_idx(images, 3), read_idx(labels, 1)
        if len(pixels) != len(classes):
            raise ValueError(f"{str(images)!r} has {len(pixels)} images and {str(labels)!r} {len(classes)} labels")
        return pixels[..., None], classes.astype(np.int32)

    def _file(self, name: str) -> Path | None:
        found = [path for path in (self._root / name, self._root / name.removesuffix(".gz")) if path.exists()]
        return found[0] if found else None


class FashionMNIST(MNIST):
    """Zalando's images of clothes, in MNIST's form; the arguments are those of :class:`MNIST`."""

    def __init__(
        self, root: Folder = "~/.mxnet/datasets/fashion-mnist", train: bool = True, transform: Transform = None
    ) -> None:
        super().__init__(root, train, transform)


class CIFAR10(_FromFiles):
    """CIFAR-10: images of shape (32, 32, 3) in bytes, and labels from 0 to 9.

    Args:
        root: the folder with ``data_batch_1.bin`` to ``data_batch_5.bin``, or ``test_batch.bin`` for the test set, or
            with ``cifar-10-binary.tar.gz``, from which they are read then.
        train: the training set, or the test set.
        transform: called with each image and its label.

    Raises:
        FileNotFoundError: the files are not there.
        ValueError: a file is damaged.
    """

    _archive = "cifar-10-binary.tar.gz"
    _files: tuple[list[str], list[str]] = (["test_batch.bin"], [f"data_batch_{number}.bin" for number in range(1, 6)])
    _labels = 1

    def __init__(
        self, root: Folder = "~/.mxnet/datasets/cifar10", train: bool = True, transform: Transform = None
    ) -> None:
        self._train = train
        super().__init__(root, transform)

    def _label_column(self) -> int:
        return 0

    def _read(self) -> tuple[Any, Any]:
        rows = np.concatenate([self._rows(name, raw) for name, raw in self._contents()])
        images = rows[:, self._labels :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(images), rows[:, self._label_column()].astype(np.int32)

    def _rows(self, name: str, raw: bytes) -> Any:
        width = self._labels + 3072
        if not raw or len(raw) % width:
            raise ValueError(
                f"{type(self).__name__}: {name} in {str(self._root)!r} has {len(raw)} bytes, expected a multiple "
                f"of {width}: it is damaged, or in another format (the binary one is wanted, not that for Python)"
            )
        return np.frombuffer(raw, np.uint8).reshape(-1, width)

    def _contents(self) -> list[tuple[str, bytes]]:
        names = self._files[self._train]
        if all((self._root / name).exists() for name in names):
            return [(name, (self._root / name).read_bytes()) for name in names]
        archive = self._root / self._archive
        if not archive.exists():
            raise self._missing([*names, f"or {self._archive} with them"], "the binary version of CIFAR")
        try:
            with tarfile.open(archive) as tar:
                members = {Path(member.name).name: member for member in tar.getmembers() if member.isfile()}
                found = [(name, tar.extractfile(members[name])) for name in names]
                return [(name, file.read()) for name, file in found if file is not None]
        except (tarfile.TarError, KeyError, EOFError) as error:
            raise ValueError(f"{str(archive)!r} is damaged, or lacks one of {', '.join(names)}: {error}") from error


class CIFAR100(CIFAR10):
    """CIFAR-100: images of shape (32, 32, 3) in bytes, and labels of 20 classes, or of 100.

    Args:
        root: the folder with ``train.bin``, or ``test.bin`` for the test set, or ``cifar-100-binary.tar.gz``.
        fine_label: labels of the 100 classes.
        train: the training set, or the test set.
        transform: called with each image and its label.

    Raises:
        FileNotFoundError: the files are not there.
        ValueError: a file is damaged.
    """

    _archive = "cifar-100-binary.tar.gz"
    _files = (["test.bin"], ["train.bin"])
    _labels = 2

    def __init__(
        self, root: Folder = "~/.mxnet/datasets/cifar100", fine_label: bool = False, train: bool = True,
        transform: Transform = None,
    ) -> None:  # fmt: skip
        self._fine_label = fine_label
        super().__init__(root, train, transform)

    def _label_column(self) -> int:
        return int(self._fine_label)


class ImageRecordDataset(RecordFileDataset):
    """Images and labels from a RecordIO file.

    Args:
        filename: the file; its index lies beside it.
        flag: 1 for three channels, 0 for one.
        transform: called with each image and its label.

    Raises:
        OSError: the file or its index can not be read.
    """

    def __init__(self, filename: Folder, flag: int = 1, transform: Transform = None) -> None:
        super().__init__(filename)
        self._flag = flag
        self._transform = transform

    def __getitem__(self, idx: Any) -> Any:
        header, raw = recordio.unpack(super().__getitem__(idx))
        sample = image.imdecode(raw, self._flag), header.label
        return sample if self._transform is None else self._transform(*sample)


class _ImageFiles(Dataset):
    """Image files with labels.

    Attributes:
        items: the file and the label of each.
    """

    items: list[tuple[str, Any]]

    def __init__(self, flag: int, transform: Transform) -> None:
        self._flag = flag
        self._transform = transform

    def __getitem__(self, idx: Any) -> Any:
        name, label = self.items[idx]
        sample = image.imread(name, self._flag), label
        return sample if self._transform is None else self._transform(*sample)

    def __len__(self) -> int:
        return len(self.items)


class ImageFolderDataset(_ImageFiles):
    """Image files in a folder for each class: ``root/car/1.jpg``, ``root/bus/2.png``.

    Args:
        root: the folder of these folders.
        flag: 1 for three channels, 0 for one.
        transform: called with each image and its label.

    Attributes:
        synsets: the names of the classes, by label.
        items: the file and the label of each image.

    Raises:
        OSError: the folder can not be read.
    """

    def __init__(self, root: Folder, flag: int = 1, transform: Transform = None) -> None:
        super().__init__(flag, transform)
        self.synsets: list[str] = []
        self.items = []
        for folder in sorted(Path(root).expanduser().iterdir()):
            if not folder.is_dir():
                warnings.warn(f"ImageFolderDataset: {str(folder)!r} is no folder, and is left out", stacklevel=2)
                continue
            self._add(folder)

    def _add(self, folder: Path) -> None:
        label = len(self.synsets)
        self.synsets.append(folder.name)
        for path in sorted(folder.iterdir()):
            if path.suffix.lower() in _ENDINGS:
                self.items.append((str(path), label))
            else:
                warnings.warn(
                    f"ImageFolderDataset: {str(path)!r} is left out: its name ends with none of {', '.join(_ENDINGS)}",
                    stacklevel=3,
                )


class ImageListDataset(_ImageFiles):
    """Image files from a list: a file (.lst) as ``im2rec`` writes it, or a list of labels and names.

    Args:
        root: the folder that names start from.
        imglist: the file, or a list such as ``[[0, "a.jpg"], [[1, 2], "b.jpg"]]``.
        flag: 1 for three channels, 0 for one.
        transform: called with each image and its label, an array of float32.

    Raises:
        OSError: the file can not be read.
        ValueError: an entry is no label and name.
    """

    def __init__(self, root: Folder = ".", imglist: Any = None, flag: int = 1, transform: Transform = None) -> None:
        super().__init__(flag, transform)
        if imglist is None:
            raise ValueError("ImageListDataset: imglist is missing: a file (.lst), or a list of labels and names")
        folder = Path(root).expanduser()
        given = (
            _entries(folder, imglist) if isinstance(imglist, str | os.PathLike) else [list(each) for each in imglist]
        )
        self.items = [self._item(folder, number, each) for number, each in enumerate(given, 1)]

    @staticmethod
    def _item(folder: Path, number: int, entry: list[Any]) -> tuple[str, Any]:
        try:
            *labels, name = entry
            label = np.array(labels[0] if len(labels) == 1 else labels, np.float32).reshape(-1)
            if not label.size or not isinstance(name, str | os.PathLike):
                raise ValueError("no label, or no name")
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"ImageListDataset: entry {number} is {entry!r}, expected label(s) and the name of a file"
            ) from error
        return str(folder / name), label


def _entries(folder: Path, imglist: Folder) -> list[list[Any]]:
    """The labels and the name in each line of a list: a number, labels, and a name, with tabs between them."""
    path = Path(imglist)
    text = (path if path.exists() else folder / path).read_text(encoding="utf-8")
    return [line.strip().split("\t")[1:] for line in text.splitlines() if line.strip()]
