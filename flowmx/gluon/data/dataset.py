"""Data sets: whatever has a length and gives a sample for each number."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flowmx import recordio
from flowmx.data import tables
from flowmx.data.sharding import share
from flowmx.errors import ArgumentError
from flowmx.gluon.data.sampler import FilterSampler, Sampler, SequentialSampler
from flowmx.ndarray import NDArray

__all__ = ["ArrayDataset", "Dataset", "RecordFileDataset", "SimpleDataset"]


class Dataset:
    """Base of the data sets: a subclass implements ``__getitem__`` and ``__len__``.

    Arrays, NumPy's too, and lists may be used in place of a data set. A loader's worker processes get it pickled.
    """

    def __getitem__(self, idx: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must implement __getitem__(idx)")

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} must implement __len__()")

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def filter(self, fn: Callable[[Any], bool]) -> Dataset:
        """The samples that a function returns True for; it is called with all of them now."""
        return _Sampled(self, FilterSampler(fn, self))

    def shard(self, num_shards: int, index: int) -> Dataset:
        """One of several parts, which differ in length by at most one and hold each sample once.

        Shard before shuffling, so that the workers of a job never have a sample twice.

        Raises:
            ValueError: there is no such part.
        """
        if not 0 <= index < num_shards:
            raise ValueError(
                f"Dataset.shard: index is {index} and num_shards {num_shards}, expected 0 <= index < num_shards"
            )
        own = share(len(self), index, num_shards, "longer first")
        return _Sampled(self, SequentialSampler(own.stop - own.start, own.start))

    def take(self, count: int | None) -> Dataset:
        """The first samples, at most so many; all of them for None.

        Raises:
            ValueError: ``count`` is negative.
        """
        if count is not None and count < 0:
            raise ValueError(f"Dataset.take: count is {count}, expected at least 0, or None for all")
        return _Sampled(self, SequentialSampler(len(self) if count is None else min(count, len(self))))

    def sample(self, sampler: Sampler) -> Dataset:
        """The samples that a sampler names now, in its order.

        Raises:
            TypeError: it is no sampler.
        """
        if not isinstance(sampler, Sampler):
            raise TypeError(f"Dataset.sample: sampler is {type(sampler).__name__}, expected a gluon.data.Sampler")
        return _Sampled(self, sampler)

    def transform(self, fn: Callable[..., Any], lazy: bool = True) -> Dataset:
        """A data set of ``fn(*sample)``; a sample that is no tuple is the only argument.

        Args:
            fn: the function.
            lazy: call it whenever a sample is asked for; otherwise now, once for each, so that what is random about it
                stays as it is.
        """
        made = _Transformed(self, fn)
        return made if lazy else SimpleDataset(list(made))

    def transform_first(self, fn: Callable[[Any], Any], lazy: bool = True) -> Dataset:
        """Transform only the first part of each sample (or a sample that is no tuple); see :meth:`transform`."""
        return self.transform(_First(fn), lazy)


class SimpleDataset(Dataset):
    """A list, an array, or anything with a length and numbered elements.

    Args:
        data: the samples.
    """

    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, idx: Any) -> Any:
        return self._data[idx]


class ArrayDataset(Dataset):
    """Several arrays or data sets of one length, side by side: a sample is a tuple with an element of each.

    Args:
        *args: the arrays; of one alone a sample is the element itself. The elements of a 1-D NDArray are NumPy's
            numbers. The elements of a table of pandas, polars or Arrow are its rows, as arrays.

    Raises:
        ValueError: there are none, their lengths differ, or a table has missing values.
        TypeError: a column of a table holds no numbers.
    """

    def __init__(self, *args: Any) -> None:
        if not args:
            raise ValueError("ArrayDataset: no arrays were given, expected at least one")
        args = tuple(
            tables.as_array(f"ArrayDataset: argument {at}", each)
            if tables.is_table(each) and not tables.is_dataset(each)
            else each
            for at, each in enumerate(args)
        )
        lengths = [len(each) for each in args]
        if len(set(lengths)) > 1:
            raise ArgumentError(f"ArrayDataset: the arrays have lengths {lengths}, expected equal ones")
        self._length = lengths[0]
        self._data = [each.asnumpy() if isinstance(each, NDArray) and each.ndim == 1 else each for each in args]

    def __getitem__(self, idx: Any) -> Any:
        return self._data[0][idx] if len(self._data) == 1 else tuple([each[idx] for each in self._data])

    def __len__(self) -> int:
        return self._length


class RecordFileDataset(Dataset):
    """The records of a RecordIO file as bytes; its index lies beside it, with the ending ``.idx``.

    Args:
        filename: the file.

    Raises:
        OSError: one of the two can not be read.
        ValueError: the index is damaged.
    """

    def __init__(self, filename: str | os.PathLike[str]) -> None:
        self.filename = os.fspath(filename)
        self.idx_file = str(Path(filename).with_suffix(".idx"))
        self._record = recordio.MXIndexedRecordIO(self.idx_file, self.filename, "r")

    def __getitem__(self, idx: Any) -> Any:
        return self._record.read_idx(self._record.keys[idx])

    def __len__(self) -> int:
        return len(self._record.keys)


class _Transformed(Dataset):
    """A data set through a function."""

    def __init__(self, data: Any, fn: Callable[..., Any]) -> None:
        self._data = data
        self._fn = fn

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, idx: Any) -> Any:
        sample = self._data[idx]
        return self._fn(*sample) if isinstance(sample, tuple) else self._fn(sample)


class _First:
    """A function for the first argument alone; an object, so that it can be pickled."""

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self._fn = fn

    def __call__(self, x: Any, *args: Any) -> Any:
        return (self._fn(x), *args) if args else self._fn(x)


class _Sampled(Dataset):
    """Samples of a data set by number."""

    def __init__(self, data: Any, sampler: Sampler) -> None:
        self._data = data
        self._indices = list(sampler)

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, idx: Any) -> Any:
        return self._data[self._indices[idx]]
