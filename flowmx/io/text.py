"""Instances in text files: CSV, and LibSVM's format. A file is read whole."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from flowmx import ndarray as nd
from flowmx.data.batch_order import End
from flowmx.data.sharding import share
from flowmx.errors import DataError, raised_as_mxnet
from flowmx.io.rows import RowsIter, dtype_of, ignore_rest
from flowmx.ndarray import NDArray

_NO_FILE = (None, "", "NULL")


@raised_as_mxnet(OSError)
def _files(name: str, path: str | os.PathLike[str]) -> list[Path]:
    """A file, or all the files of a folder in the order of their names.

    Raises:
        FileNotFoundError: there is none.
    """
    found = Path(path)
    files = sorted(each for each in found.iterdir() if each.is_file()) if found.is_dir() else [found]
    if not files or not all(each.is_file() for each in files):
        raise FileNotFoundError(f"{name}: {os.fspath(path)!r} is no file, nor a folder with files in it")
    return files


def _size(shape: Sequence[int]) -> int:
    return int(np.prod(tuple(shape), dtype=np.int64))


class CSVIter(RowsIter):
    """Batches of the lines of CSV files.

    Args:
        data_csv: the file, or a folder whose files are all read.
        data_shape: the shape of an instance; a line has as many numbers.
        label_csv: the labels' file; without one, all labels are 0.
        label_shape: the shape of a label.
        batch_size: instances in a batch.
        round_batch: fill the last batch with the first instances of the next epoch, which then begins after them; else
            with some of the batch before it.
        prefetch_buffer: kept for MXNet's scripts: all is in memory.
        ctx: kept for MXNet's scripts.
        dtype: the element type, float32 by default.
        num_parts: the number of workers that share the instances.
        part_index: the index of this worker's share, from 0.
        data_name: the name of the input.
        label_name: the name of the label.
        **kwargs: ignored with a warning.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line that is not made of so many numbers (the message names file and line), or files of different
            lengths.

    Example:
        >>> batches = mx.io.CSVIter(data_csv="data.csv", data_shape=(3,), batch_size=2)
    """

    def __init__(
        self,
        data_csv: str | os.PathLike[str],
        data_shape: Sequence[int],
        label_csv: str | os.PathLike[str] | None = None,
        label_shape: Sequence[int] = (1,),
        batch_size: int = 1,
        round_batch: bool = True,
        prefetch_buffer: int = 4,
        ctx: str = "cpu",
        dtype: Any = None,
        num_parts: int = 1,
        part_index: int = 0,
        data_name: str = "data",
        label_name: str = "softmax_label",
        **kwargs: Any,
    ) -> None:
        ignore_rest("CSVIter", kwargs)
        kind = dtype_of("CSVIter", dtype)
        data = _csv(data_csv, data_shape, kind)
        if label_csv in _NO_FILE:
            label = np.zeros((len(data), *label_shape), kind)
        else:
            label = _csv(label_csv, label_shape, kind)
        _check_lengths("CSVIter", data, label, data_csv, label_csv)
        if tuple(label_shape) == (1,):
            label = label.reshape(-1)
        part = share(len(data), part_index, num_parts)
        end: End = "wrap" if round_batch else "repeat"
        super().__init__(data[part], label[part], batch_size, end, data_name=data_name, label_name=label_name)


def _csv(path: str | os.PathLike[str], shape: Sequence[int], kind: np.dtype[Any]) -> np.ndarray[Any, Any]:
    parts = [_csv_file(each, _size(shape), kind) for each in _files("CSVIter", path)]
    return np.concatenate(parts).reshape(-1, *shape)


def _csv_file(path: Path, width: int, kind: np.dtype[Any]) -> np.ndarray[Any, Any]:
    if not path.stat().st_size:
        return np.empty((0, width), kind)
    try:
        found = np.loadtxt(path, kind, delimiter=",", ndmin=2, encoding="utf-8")
    except ValueError as error:
        why = str(error).partition("; use `usecols`")[0]  # NumPy's advice, which is of no use here
        raise DataError(f"CSVIter: {str(path)!r}: {why}") from error
    if found.shape[1] != width and found.size:
        raise DataError(
            f"CSVIter: {str(path)!r} has {found.shape[1]} numbers a line, expected {width}, as the given shape has"
        )
    return found


def _check_lengths(name: str, data: Any, label: Any, data_path: Any, label_path: Any) -> None:
    if len(data) != len(label):
        raise DataError(
            f"{name}: {os.fspath(data_path)!r} has {len(data)} instances and {os.fspath(label_path)!r} {len(label)}, "
            "expected as many labels as inputs"
        )


class LibSVMIter(RowsIter):
    """Batches of the lines of files in LibSVM's format: a label, then ``index:value`` pairs, the first index 0.

    The inputs are csr arrays, and so are labels of more than one element.

    Args:
        data_libsvm: the file, or a folder whose files are all read.
        data_shape: the shape of an instance, a tuple.
        label_libsvm: labels in a file of their own, in the same format; the first number of its lines is left out, and
            so are the labels in ``data_libsvm``.
        label_shape: the number of elements of a label.
        batch_size: instances in a batch.
        num_parts: the number of workers that share the instances.
        part_index: the index of this worker's share, from 0.
        round_batch: as in :class:`CSVIter`; MXNet has True only.
        prefetch_buffer: kept for MXNet's scripts: all is in memory.
        ctx: kept for MXNet's scripts.
        dtype: the element type, float32 by default.
        data_name: the name of the input.
        label_name: the name of the label.
        **kwargs: ignored with a warning.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line in another format, or an index outside the shape (the message names file and line).
    """

    def __init__(
        self,
        data_libsvm: str | os.PathLike[str],
        data_shape: Sequence[int],
        label_libsvm: str | os.PathLike[str] | None = None,
        label_shape: Sequence[int] = (1,),
        batch_size: int = 1,
        num_parts: int = 1,
        part_index: int = 0,
        round_batch: bool = True,
        prefetch_buffer: int = 4,
        ctx: str = "cpu",
        dtype: Any = None,
        data_name: str = "data",
        label_name: str = "softmax_label",
        **kwargs: Any,
    ) -> None:
        ignore_rest("LibSVMIter", kwargs)
        kind = dtype_of("LibSVMIter", dtype)
        for name, shape in (("data_shape", data_shape), ("label_shape", label_shape)):
            if len(tuple(shape)) != 1:
                raise DataError(f"LibSVMIter: {name} is {tuple(shape)}, expected one number: lines have one axis")
        data, first = _libsvm(data_libsvm, data_shape[0], kind)
        label: Any = first.astype(kind, copy=False)
        if label_libsvm not in _NO_FILE:
            label, _ = _libsvm(label_libsvm, label_shape[0], kind)
            _check_lengths("LibSVMIter", data, label, data_libsvm, label_libsvm)
            label = label if label_shape[0] > 1 else label.dense()
        part = share(len(data), part_index, num_parts)
        super().__init__(
            cast("Any", data[part]), label[part], batch_size, "wrap" if round_batch else "repeat", data_name=data_name,
            label_name=label_name,
        )  # fmt: skip

    def _taken(self, source: Any, rows: Any) -> NDArray:
        return source[rows].array() if isinstance(source, _Matrix) else super()._taken(source, rows)


class _Matrix:
    """A csr matrix in memory, of which rows are taken as those of a NumPy array are."""

    def __init__(self, content: Any, width: int) -> None:
        self._content = content
        self.shape = (len(content.indptr) - 1, width)
        self.dtype = content.data.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> _Matrix:
        numbers = np.arange(len(self))[rows]
        chosen = importlib.import_module("flowmx.ops.sparse.parts").chosen
        return _Matrix(chosen(self._content, numbers), self.shape[1])

    def dense(self) -> np.ndarray[Any, Any]:
        """The dense matrix."""
        made: np.ndarray[Any, Any] = importlib.import_module("flowmx.ops.sparse.content").to_dense(
            self._content, self.shape
        )
        return made

    def array(self) -> NDArray:
        """The matrix as an array of ours."""
        data, indices, indptr = self._content
        return nd.sparse.csr_matrix((data, indices, indptr), shape=self.shape, dtype=self.dtype)


def _libsvm(path: str | os.PathLike[str], width: int, kind: np.dtype[Any]) -> tuple[_Matrix, np.ndarray[Any, Any]]:
    """The rows of files, and the numbers in front of them."""
    first: list[float] = []
    row: list[int] = []
    column: list[int] = []
    value: list[float] = []
    for place, head, pairs in _lines(path):
        for index, number in pairs:
            if not 0 <= index < width:
                raise DataError(
                    f"LibSVMIter: {place} has the index {index}, expected 0 to {width - 1} (counted from 0)"
                )
            row.append(len(first))
            column.append(index)
            value.append(number)
        first.append(head)
    indptr = np.zeros(len(first) + 1, np.int64)
    np.cumsum(np.bincount(np.array(row, np.int64), minlength=len(first)), out=indptr[1:])
    csr = importlib.import_module("flowmx.ops.sparse.content").Csr
    content = csr(np.array(value, kind), np.array(column, np.int64), indptr)
    return _Matrix(content, width), np.array(first, np.float64)


def _lines(path: str | os.PathLike[str]) -> Iterator[tuple[str, float, list[tuple[int, float]]]]:
    """Parse files: iterate over (location for messages, first number, (index, value) pairs) of each line."""
    for file in _files("LibSVMIter", path):
        with file.open(encoding="utf-8") as opened:
            for number, line in enumerate(opened, 1):
                words = line.partition("#")[0].split()
                if not words:
                    continue
                place = f"line {number} of {str(file)!r}"
                try:
                    pairs = [(int(key), float(value)) for key, _, value in (word.partition(":") for word in words[1:])]
                    yield place, float(words[0]), pairs
                except ValueError as error:
                    raise DataError(
                        f"LibSVMIter: {place} is {line.strip()[:80]!r}, expected a number and pairs such as 3:0.5"
                    ) from error
