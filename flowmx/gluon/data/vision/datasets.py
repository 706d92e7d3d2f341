"""Image data sets, from files in MXNet's formats; missing files are downloaded."""

from __future__ import annotations

import os
import tarfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from flowmx import image, recordio
from flowmx import ndarray as nd
from flowmx.data import image_lists
from flowmx.data.idx import read_mnist
from flowmx.devices.arrays import Array
from flowmx.download import data_dir, fetch, repository
from flowmx.gluon.data.dataset import Dataset, Numbers, RecordFileDataset
from flowmx.ndarray import NDArray
from flowmx.semantics import semantics, with_semantics

__all__ = [
    "CIFAR10", "CIFAR100", "MNIST", "FashionMNIST", "ImageFolderDataset", "ImageListDataset", "ImageRecordDataset",
]  # fmt: skip

Folder = str | os.PathLike[str]
Root = Folder | None
Transform = Callable[[Any, Any], Any] | None

_SUFFIXES = (".jpg", ".jpeg", ".png")
Label = TypeVar("Label")


def _apply_transform(transform: Transform, *sample: object) -> Any:
    return sample if transform is None else transform(*sample)


class _FromFiles(Dataset[tuple[NDArray, Numbers]]):
    """Images and labels in memory, from files in a folder.

    Args:
        root: the folder (default: the data set's folder in the setting ``home``).
        train: whether to read the training set or the test set.
        transform: called with each image and its label; its result is the sample.

    Raises:
        DownloadError: a file is missing and cannot be downloaded (also a FileNotFoundError).
        ValueError: a file is damaged.
    """

    _namespace = ""
    """The name of the data set's folder in the repository and in the setting ``home``."""

    def __init__(self, root: Root = None, train: bool = True, transform: Transform = None) -> None:
        self._train = train
        self._root = data_dir() / "datasets" / self._namespace if root is None else Path(root).expanduser()
        self._transform = transform
        self._data: NDArray
        self._label: Any
        images, labels = self._read()
        self._data = with_semantics(nd.array(images, dtype=images.dtype))
        self._label = with_semantics(nd.array(labels, dtype=labels.dtype)) if semantics.get().array else labels

    def __getitem__(self, idx: Any) -> tuple[NDArray, Numbers]:
        sample: tuple[NDArray, Numbers] = _apply_transform(self._transform, self._data[idx], self._label[idx])
        return sample

    def __len__(self) -> int:
        return len(self._label)

    def _read(self) -> tuple[Array, Array]:
        """Return the images, (number, height, width, channels), and the labels."""
        raise NotImplementedError

    def _download(self, name: str, sha1: str) -> Path:
        """Download a file from MXNet's repository."""
        fetch(f"{repository()}gluon/dataset/{self._namespace}/{name}", self._root / name, sha1)
        return self._root / name


def _sha1_of_mnist(*sha1: str) -> dict[str, str]:
    """Return the SHA-1 of MNIST's four files, by name."""
    names = (f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
    return dict(zip(names, sha1, strict=True))


class MNIST(_FromFiles):
    """MNIST's handwritten digits: images of shape (28, 28, 1), uint8, and labels from 0 to 9.

    Args:
        root: the folder with ``train-images-idx3-ubyte.gz`` and ``train-labels-idx1-ubyte.gz``, or ``t10k-...`` for
            the test set; uncompressed files work too (default: ``datasets/mnist`` in the setting ``home``).
        train: whether to read the training set or the test set.
        transform: called with each image and its label.

    Raises:
        DownloadError: a file is missing and cannot be downloaded (also a FileNotFoundError).
        ValueError: a file is damaged.
    """

    _namespace = "mnist"
    _sha1: ClassVar[dict[str, str]] = _sha1_of_mnist(
        "6c95f4b05d2bf285e1bfb0e7960c31bd3b3f8a7d",
        "2a80914081dc54586dbdf242f9805a6b8d2a15fc",
        "c3a25af1f52dad7f726cce8cacb138654b760d48",
        "763e7fa3757d93b0cdec073cef058b2004252c17",
    )

    def _read(self) -> tuple[Array, Array]:
        part = "train" if self._train else "t10k"
        images, labels = (self._file(f"{part}-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1"))
        pixels, classes = read_mnist(images, labels)
        return pixels[..., None], classes.astype(np.int32)

    def _file(self, name: str) -> Path:
        paths = [path for path in (self._root / name, self._root / name.removesuffix(".gz")) if path.exists()]
        return paths[0] if paths else self._download(name, self._sha1[name])


class FashionMNIST(MNIST):
    """Zalando's images of clothes, in MNIST's format; the arguments are those of :class:`MNIST`."""

    _namespace = "fashion-mnist"
    _sha1 = _sha1_of_mnist(
        "0cf37b0d40ed5169c6b3aba31069a9770ac9043d",
        "236021d52f1e40852b06a4c3008d8de8aef1e40b",
        "626ed6a7c06dd17c0eec72fa3be1740f146a2863",
        "17f9ab60e7257a1620f4ad76bbbaf857c3920701",
    )


class CIFAR10(_FromFiles):
    """CIFAR-10: images of shape (32, 32, 3), uint8, and labels from 0 to 9.

    Args:
        root: the folder with ``data_batch_1.bin`` to ``data_batch_5.bin``, or ``test_batch.bin`` for the test set, or
            with the archive ``cifar-10-binary.tar.gz``.
        train: whether to read the training set or the test set.
        transform: called with each image and its label.

    Raises:
        DownloadError: a file is missing and cannot be downloaded (also a FileNotFoundError).
        ValueError: a file is damaged.
    """

    _namespace = "cifar10"
    _archive, _sha1 = "cifar-10-binary.tar.gz", "fab780a1e191a7eda0f345501ccd62d20f7ed891"
    _files: tuple[list[str], list[str]] = (["test_batch.bin"], [f"data_batch_{number}.bin" for number in range(1, 6)])
    _labels = 1

    def _label_column(self) -> int:
        return 0

    def _read(self) -> tuple[Array, Array]:
        rows = np.concatenate([self._rows(name, raw) for name, raw in self._contents()])
        images = rows[:, self._labels :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(images), rows[:, self._label_column()].astype(np.int32)

    def _rows(self, name: str, raw: bytes) -> Array:
        width = self._labels + 3072
        if not raw or len(raw) % width:
            raise ValueError(
                f"{type(self).__name__}: {name} in {str(self._root)!r} has {len(raw)} bytes, expected a multiple "
                f"of {width}: it is damaged, or in another format (expected the binary version, not the one for Python)"
            )
        return np.frombuffer(raw, np.uint8).reshape(-1, width)

    def _contents(self) -> list[tuple[str, bytes]]:
        names = self._files[self._train]
        if all((self._root / name).exists() for name in names):
            return [(name, (self._root / name).read_bytes()) for name in names]
        archive = self._root / self._archive
        if not archive.exists():
            self._download(self._archive, self._sha1)
        try:
            with tarfile.open(archive) as tar:
                members = {Path(member.name).name: member for member in tar.getmembers() if member.isfile()}
                files = [(name, tar.extractfile(members[name])) for name in names]
                return [(name, file.read()) for name, file in files if file is not None]
        except (tarfile.TarError, KeyError, EOFError) as error:
            raise ValueError(f"{str(archive)!r} is damaged, or lacks one of {', '.join(names)}: {error}") from error


class CIFAR100(CIFAR10):
    """CIFAR-100: images of shape (32, 32, 3), uint8, and labels of 20 or 100 classes.

    Args:
        root: the folder with ``train.bin``, or ``test.bin`` for the test set, or ``cifar-100-binary.tar.gz``.
        fine_label: whether to return the labels of the 100 classes.
        train: whether to read the training set or the test set.
        transform: called with each image and its label.

    Raises:
        DownloadError: a file is missing and cannot be downloaded (also a FileNotFoundError).
        ValueError: a file is damaged.
    """

    _namespace = "cifar100"
    _archive, _sha1 = "cifar-100-binary.tar.gz", "a0bb982c76b83111308126cc779a992fa506b90b"
    _files = (["test.bin"], ["train.bin"])
    _labels = 2

    def __init__(
        self, root: Root = None, fine_label: bool = False, train: bool = True, transform: Transform = None
    ) -> None:
        self._fine_label = fine_label
        super().__init__(root, train, transform)

    def _label_column(self) -> int:
        return int(self._fine_label)


class ImageRecordDataset(RecordFileDataset[tuple[NDArray, Numbers]]):
    """Images and labels from a RecordIO file.

    Args:
        filename: the file; its index has the suffix ``.idx``.
        flag: 1 for three channels, 0 for one.
        transform: called with each image and its label.

    Raises:
        OSError: the file or its index cannot be read.
    """

    def __init__(self, filename: Folder, flag: int = 1, transform: Transform = None) -> None:
        super().__init__(filename)
        self._flag = flag
        self._transform = transform

    def __getitem__(self, idx: Any) -> tuple[NDArray, Numbers]:
        header, raw = recordio.unpack(self._read(idx))
        sample: tuple[NDArray, Numbers] = _apply_transform(
            self._transform, image.imdecode(raw, self._flag), header.label
        )
        return sample


class _ImageFiles(Dataset[tuple[NDArray, Label]]):
    """Image files with labels.

    Attributes:
        items: the file and the label of each sample.
    """

    items: list[tuple[str, Label]]

    def __init__(self, flag: int, transform: Transform) -> None:
        self._flag = flag
        self._transform = transform

    def __getitem__(self, idx: Any) -> tuple[NDArray, Label]:
        name, label = self.items[idx]
        sample: tuple[NDArray, Label] = _apply_transform(self._transform, image.imread(name, self._flag), label)
        return sample

    def __len__(self) -> int:
        return len(self.items)


class ImageFolderDataset(_ImageFiles[int]):
    """Image files in one folder per class: ``root/car/1.jpg``, ``root/bus/2.png``.

    Args:
        root: the folder that contains the classes' folders.
        flag: 1 for three channels, 0 for one.
        transform: called with each image and its label.

    Attributes:
        synsets: the names of the classes, by label.
        items: the file and the label of each image.

    Raises:
        OSError: the folder cannot be read.
    """

    def __init__(self, root: Folder, flag: int = 1, transform: Transform = None) -> None:
        super().__init__(flag, transform)
        self.synsets: list[str] = []
        self.items = []
        if not Path(root).expanduser().is_dir():
            raise FileNotFoundError(
                f"{type(self).__name__}: root is {str(root)!r}, which is not a folder; expected one with a folder "
                "of images for each class"
            )
        for folder in sorted(Path(root).expanduser().iterdir()):
            if not folder.is_dir():
                warnings.warn(f"ImageFolderDataset: {str(folder)!r} is not a folder, and is skipped", stacklevel=2)
                continue
            self._add(folder)

    def _add(self, folder: Path) -> None:
        label = len(self.synsets)
        self.synsets.append(folder.name)
        for path in sorted(folder.iterdir()):
            if path.suffix.lower() in _SUFFIXES:
                self.items.append((str(path), label))
            else:
                warnings.warn(
                    f"ImageFolderDataset: {str(path)!r} is skipped: its suffix is not {', '.join(_SUFFIXES)}",
                    stacklevel=3,
                )


class ImageListDataset(_ImageFiles[Numbers]):
    """Image files from a list: a .lst file written by ``im2rec``, or a list of labels and names.

    Args:
        root: the folder that names are relative to.
        imglist: the file, or a list such as ``[[0, "a.jpg"], [[1, 2], "b.jpg"]]``.
        flag: 1 for three channels, 0 for one.
        transform: called with each image and its label, a float32 array.

    Raises:
        OSError: the file cannot be read.
        ValueError: an entry does not consist of labels and a name.
    """

    def __init__(self, root: Folder = ".", imglist: Any = None, flag: int = 1, transform: Transform = None) -> None:
        super().__init__(flag, transform)
        if imglist is None:
            raise ValueError("ImageListDataset: imglist is missing: pass a file (.lst), or a list of labels and names")
        folder = Path(root).expanduser()
        entries = (
            _entries(folder, imglist) if isinstance(imglist, str | os.PathLike) else [list(entry) for entry in imglist]
        )
        self.items = [self._item(folder, number, entry) for number, entry in enumerate(entries, 1)]

    @staticmethod
    def _item(folder: Path, number: int, entry: Sequence[object]) -> tuple[str, Any]:
        try:
            label, name = image_lists.labels_and_path(entry)
            if not label.size or not isinstance(name, str | os.PathLike):
                raise ValueError("no label, or no name")
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"ImageListDataset: entry {number} is {entry!r}, expected label(s) and the name of a file"
            ) from error
        return str(folder / name), label.astype(np.float32)


def _entries(folder: Path, imglist: Folder) -> list[list[Any]]:
    """Return the labels and the name in each line of a list."""
    path = Path(imglist)
    return [parts[1:] for _, _, parts in image_lists.lines(path if path.exists() else folder / path)]
