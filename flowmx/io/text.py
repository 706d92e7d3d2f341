"""Iterators over text files in CSV and LibSVM format, which are read into memory."""

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
from flowmx.io.memory_iter import MemoryIter, element_type, ignore_rest
from flowmx.ndarray import NDArray
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array

_NO_FILE = (None, "", "NULL")


@raised_as_mxnet(OSError)
def _files(name: str, path: str | os.PathLike[str]) -> list[Path]:
    """Return a file, or all files of a folder, ordered by name.

    Raises:
        FileNotFoundError: there are no files.
    """
    source = Path(path)
    files = sorted(file for file in source.iterdir() if file.is_file()) if source.is_dir() else [source]
    if not files or not all(file.is_file() for file in files):
        raise FileNotFoundError(f"{name}: {os.fspath(path)!r} is neither a file nor a folder with files")
    return files


def _product(shape: Sequence[int]) -> int:
    return int(np.prod(tuple(shape), dtype=np.int64))


class CSVIter(MemoryIter):
    """Batches of the lines of CSV files.

    Args:
        data_csv: the file, or a folder of files.
        data_shape: the shape of a sample, which is the numbers in one line.
        label_csv: the file of labels; without it, all labels are 0.
        label_shape: the shape of a label.
        batch_size: the number of samples in a batch.
        round_batch: fill the last batch with the first samples of the next epoch, which then begins after them. If
            False, fill it with samples of the previous batch.
        prefetch_buffer: ignored; accepted for MXNet's scripts: all data is in memory.
        ctx: ignored; accepted for MXNet's scripts.
        dtype: the element type, float32 by default.
        num_parts: the number of workers that share the samples.
        part_index: the index of this worker's share, from 0.
        data_name: the name of the input.
        label_name: the name of the label.
        **kwargs: ignored with a warning.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: a line does not have the right number of numbers (the message has file and line), or the files
            differ in length.

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
        dtype: object = None,
        num_parts: int = 1,
        part_index: int = 0,
        data_name: str = "data",
        label_name: str = "softmax_label",
        **kwargs: object,
    ) -> None:
        ignore_rest("CSVIter", kwargs)
        kind = element_type("CSVIter", dtype)
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


def _csv(path: str | os.PathLike[str], shape: Sequence[int], kind: DType) -> Array:
    parts = [_csv_file(file, _product(shape), kind) for file in _files("CSVIter", path)]
    return np.concatenate(parts).reshape(-1, *shape)


def _csv_file(path: Path, width: int, kind: DType) -> Array:
    if not path.stat().st_size:
        return np.empty((0, width), kind)
    try:
        rows = np.loadtxt(path, kind, delimiter=",", ndmin=2, encoding="utf-8")
    except ValueError as error:
        reason = str(error).partition("; use `usecols`")[0]  # NumPy's advice does not apply here
        raise DataError(f"CSVIter: {str(path)!r}: {reason}") from error
    if rows.shape[1] != width and rows.size:
        raise DataError(f"CSVIter: {str(path)!r} has {rows.shape[1]} numbers per line, expected {width}, by its shape")
    return rows


def _check_lengths(name: str, data: Any, label: Any, data_path: Any, label_path: Any) -> None:
    if len(data) != len(label):
        raise DataError(
            f"{name}: {os.fspath(data_path)!r} has {len(data)} samples and {os.fspath(label_path)!r} {len(label)}, "
            "expected as many labels as inputs"
        )


class LibSVMIter(MemoryIter):
    """Batches of the lines of files in LibSVM's format: a label, then ``index:value`` pairs, the first index 0.

    The inputs are csr arrays, and so are labels of more than one element.

    Args:
        data_libsvm: the file, or a folder of files.
        data_shape: the shape of a sample, a tuple.
        label_libsvm: a separate file of labels, in the same format; the first number of each of its lines
            is ignored, and the labels in ``data_libsvm`` too.
        label_shape: the number of elements of a label.
        batch_size: the number of samples in a batch.
        num_parts: the number of workers that share the samples.
        part_index: the index of this worker's share, from 0.
        round_batch: as in :class:`CSVIter`; MXNet only supports True.
        prefetch_buffer: ignored; accepted for MXNet's scripts: all data is in memory.
        ctx: ignored; accepted for MXNet's scripts.
        dtype: the element type, float32 by default.
        data_name: the name of the input.
        label_name: the name of the label.
        **kwargs: ignored with a warning.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: a line has a different format, or an index is outside the shape (the message has file and line).
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
        dtype: object = None,
        data_name: str = "data",
        label_name: str = "softmax_label",
        **kwargs: object,
    ) -> None:
        ignore_rest("LibSVMIter", kwargs)
        kind = element_type("LibSVMIter", dtype)
        for name, shape in (("data_shape", data_shape), ("label_shape", label_shape)):
            if len(tuple(shape)) != 1:
                raise DataError(f"LibSVMIter: {name} is {tuple(shape)}, expected one number: lines have one axis")
        data, heads = _libsvm(data_libsvm, data_shape[0], kind)
        label: Any = heads.astype(kind, copy=False)
        if label_libsvm not in _NO_FILE:
            label, _ = _libsvm(label_libsvm, label_shape[0], kind)
            _check_lengths("LibSVMIter", data, label, data_libsvm, label_libsvm)
            label = label if label_shape[0] > 1 else label.dense()
        part = share(len(data), part_index, num_parts)
        super().__init__(
            cast("Any", data[part]), label[part], batch_size, "wrap" if round_batch else "repeat", data_name=data_name,
            label_name=label_name,
        )  # fmt: skip

    def _select(self, source: Any, rows: Any) -> NDArray:
        return source[rows].array() if isinstance(source, _Matrix) else super()._select(source, rows)


class _Matrix:
    """A csr matrix in memory, with rows that are indexed like those of a NumPy array."""

    def __init__(self, content: Any, width: int) -> None:
        self._content = content
        self.shape = (len(content.indptr) - 1, width)
        self.dtype = content.data.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> _Matrix:
        numbers = np.arange(len(self))[rows]
        take_rows = importlib.import_module("flowmx.ops.sparse.slicing").take_rows
        return _Matrix(take_rows(self._content, numbers), self.shape[1])

    def dense(self) -> Array:
        """Return the dense matrix."""
        to_dense = importlib.import_module("flowmx.ops.sparse.content").to_dense
        dense: Array = to_dense(self._content, self.shape)
        return dense

    def array(self) -> NDArray:
        """Return the matrix as an NDArray."""
        data, indices, indptr = self._content
        return nd.sparse.csr_matrix((data, indices, indptr), shape=self.shape, dtype=self.dtype)


def _libsvm(path: str | os.PathLike[str], width: int, kind: DType) -> tuple[_Matrix, Array]:
    """Return the rows of files, and the first numbers of their lines."""
    heads: list[float] = []
    row: list[int] = []
    column: list[int] = []
    value: list[float] = []
    for location, head, pairs in _lines(path):
        for index, number in pairs:
            if not 0 <= index < width:
                raise DataError(
                    f"LibSVMIter: {location} has the index {index}, expected 0 to {width - 1} (counted from 0)"
                )
            row.append(len(heads))
            column.append(index)
            value.append(number)
        heads.append(head)
    indptr = np.zeros(len(heads) + 1, np.int64)
    np.cumsum(np.bincount(np.array(row, np.int64), minlength=len(heads)), out=indptr[1:])
    csr = importlib.import_module("flowmx.ops.sparse.content").Csr
    content = csr(np.array(value, kind), np.array(column, np.int64), indptr)
    return _Matrix(content, width), np.array(heads, np.float64)


def _lines(path: str | os.PathLike[str]) -> Iterator[tuple[str, float, list[tuple[int, float]]]]:
    """Parse files; iterate over (location for messages, first number, (index, value) pairs) of each line."""
    for file in _files("LibSVMIter", path):
        with file.open(encoding="utf-8") as text:
            for number, line in enumerate(text, 1):
                words = line.partition("#")[0].split()
                if not words:
                    continue
                location = f"line {number} of {str(file)!r}"
                try:
                    pairs = [(int(key), float(value)) for key, _, value in (word.partition(":") for word in words[1:])]
                    yield location, float(words[0]), pairs
                except ValueError as error:
                    raise DataError(
                        f"LibSVMIter: {location} is {line.strip()[:80]!r}, expected a number and pairs such as 3:0.5"
                    ) from error
