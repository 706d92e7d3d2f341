"""Data sets: objects with a length and numbered samples."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, TypeVarTuple, cast, overload

import numpy.typing as npt

from flowmx import recordio
from flowmx.data import rng, tables
from flowmx.data.sharding import share
from flowmx.errors import ArgumentError
from flowmx.gluon.data.sampler import FilterSampler, Sampler, SequentialSampler
from flowmx.keywords import ChecksKeywords
from flowmx.ndarray import NDArray

__all__ = ["ArrayDataset", "Dataset", "RecordFileDataset", "SimpleDataset", "random_split"]


if TYPE_CHECKING:
    from typing_extensions import TypeVar as _TypeVar

    Sample = _TypeVar("Sample", covariant=True, default=object)
    Record = _TypeVar("Record", covariant=True, default=bytes)
else:
    Sample = TypeVar("Sample", covariant=True)
    Record = TypeVar("Record", covariant=True)

Result = TypeVar("Result")
First = TypeVar("First")
Second = TypeVar("Second")
Third = TypeVar("Third")
Rest = TypeVarTuple("Rest")
Numbers = npt.NDArray[Any]
"""An array of NumPy, or a part of it, also a number."""


class _Column(Protocol[Sample]):
    """A list, an array, or another object with a length and numbered elements."""

    def __getitem__(self, idx: int, /) -> Sample: ...

    def __len__(self) -> int: ...


class Dataset(ChecksKeywords, Generic[Sample]):
    """Base class of data sets: a subclass implements ``__getitem__`` and ``__len__``.

    Lists and arrays, including NumPy's, can be used as data sets. A loader pickles its data set for worker processes.
    For type checkers, ``Dataset[tuple[NDArray, int]]`` is a data set with such samples.
    """

    def __getitem__(self, idx: Any) -> Sample:
        raise NotImplementedError(f"{type(self).__name__} must implement __getitem__(idx)")

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} must implement __len__()")

    def __iter__(self) -> Iterator[Sample]:
        return (self[i] for i in range(len(self)))

    def filter(self, fn: Callable[[Sample], bool]) -> Dataset[Sample]:
        """Return the samples for which a function returns True. It is called now, for all samples."""
        return _Subset(self, FilterSampler(fn, self))

    def shard(self, num_shards: int, index: int) -> Dataset[Sample]:
        """Return one of several disjoint parts, whose lengths differ by at most one sample.

        Shard before shuffling, so that no sample goes to two workers of a job.

        Raises:
            ValueError: the part does not exist.
        """
        if not 0 <= index < num_shards:
            raise ValueError(
                f"Dataset.shard: index is {index} and num_shards {num_shards}, expected 0 <= index < num_shards"
            )
        part = share(len(self), index, num_shards, "longer first")
        return _Subset(self, SequentialSampler(part.stop - part.start, part.start))

    def take(self, count: int | None) -> Dataset[Sample]:
        """Return the first ``count`` samples; all of them for None.

        Raises:
            ValueError: ``count`` is negative.
        """
        if count is not None and count < 0:
            raise ValueError(f"Dataset.take: count is {count}, expected at least 0, or None for all")
        return _Subset(self, SequentialSampler(len(self) if count is None else min(count, len(self))))

    def sample(self, sampler: Sampler) -> Dataset[Sample]:
        """Return the samples that a sampler selects now, in its order.

        Raises:
            TypeError: the argument is not a sampler.
        """
        if not isinstance(sampler, Sampler):
            raise TypeError(f"Dataset.sample: sampler is {type(sampler).__name__}, expected a gluon.data.Sampler")
        return _Subset(self, sampler)

    @overload
    def transform(
        self: Dataset[tuple[*Rest]], fn: Callable[[*Rest], Result], lazy: bool = True
    ) -> Dataset[Result]: ...  # fmt: skip

    @overload
    def transform(self, fn: Callable[[Sample], Result], lazy: bool = True) -> Dataset[Result]: ...

    @overload
    def transform(self, fn: Callable[..., Result], lazy: bool = True) -> Dataset[Result]: ...

    def transform(self, fn: Callable[..., Any], lazy: bool = True) -> Dataset[Any]:
        """Return a data set of ``fn(*sample)``; a sample that is not a tuple is the only argument.

        Args:
            fn: the function.
            lazy: call the function each time a sample is read. If False, call it now, once per sample, so that random
                transforms are drawn only once.
        """
        _check_transform(fn)
        dataset: Dataset[Any] = _TransformedDataset(self, fn)
        return dataset if lazy else SimpleDataset(list(dataset))

    @overload
    def transform_first(
        self: Dataset[tuple[First, *Rest]], fn: Callable[[First], Result], lazy: bool = True
    ) -> Dataset[tuple[Result, *Rest]]: ...

    @overload
    def transform_first(self, fn: Callable[[Sample], Result], lazy: bool = True) -> Dataset[Result]: ...

    @overload
    def transform_first(self, fn: Callable[[Any], Any], lazy: bool = True) -> Dataset[object]: ...

    def transform_first(self, fn: Callable[[Any], Any], lazy: bool = True) -> Dataset[Any]:
        """Transform only the first part of each sample (or a sample that is not a tuple); see :meth:`transform`."""
        _check_transform(fn)
        return self.transform(_FirstTransform(fn), lazy)


def _check_transform(fn: object) -> None:
    """Refuse a class of blocks instead of an object."""
    if isinstance(fn, type) and hasattr(fn, "hybridize"):
        raise TypeError(f"transform: fn is the class {fn.__name__}, expected an object of it: {fn.__name__}()")


class SimpleDataset(Dataset[Sample]):
    """A list, an array, or another object with a length and numbered elements.

    Args:
        data: the samples.
    """

    @overload
    def __init__(self: SimpleDataset[Numbers], data: Numbers) -> None: ...

    @overload
    def __init__(self, data: _Column[Sample]) -> None: ...

    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, idx: Any) -> Sample:
        return cast("Sample", self._data[idx])


class ArrayDataset(Dataset[Sample]):
    """Arrays or data sets of the same length; a sample is a tuple with one element from each.

    Args:
        *args: the arrays; with one array a sample is the element itself. The elements of a 1-D NDArray are NumPy
            numbers. The elements of a table of pandas, polars or Arrow are its rows, as arrays.

    Raises:
        ValueError: there are no arrays, their lengths differ, or a table has missing values.
        TypeError: a column of a table is not numeric.
    """

    if TYPE_CHECKING:  # NumPy types an element of an array as Any

        @overload
        def __init__(self: ArrayDataset[Numbers], first: Numbers, /) -> None: ...

        @overload
        def __init__(self: ArrayDataset[First], first: _Column[First], /) -> None: ...

        @overload
        def __init__(self: ArrayDataset[tuple[Numbers, Numbers]], first: Numbers, second: Numbers, /) -> None: ...

        @overload
        def __init__(
            self: ArrayDataset[tuple[Numbers, Second]], first: Numbers, second: _Column[Second], /
        ) -> None: ...

        @overload
        def __init__(self: ArrayDataset[tuple[First, Numbers]], first: _Column[First], second: Numbers, /) -> None: ...

        @overload
        def __init__(
            self: ArrayDataset[tuple[First, Second]], first: _Column[First], second: _Column[Second], /
        ) -> None: ...

        @overload
        def __init__(
            self: ArrayDataset[tuple[First, Second, Third]], first: _Column[First], second: _Column[Second],
            third: _Column[Third], /,
        ) -> None: ...  # fmt: skip

        @overload
        def __init__(self: ArrayDataset[tuple[object, ...]], *args: object) -> None: ...

    def __init__(self, *args: Any) -> None:
        if not args:
            raise ValueError("ArrayDataset: there are no arrays, expected at least one")
        args = tuple(
            tables.as_array(f"ArrayDataset: argument {index}", arg)
            if tables.is_table(arg) and not tables.is_dataset(arg)
            else arg
            for index, arg in enumerate(args)
        )
        lengths = [len(arg) for arg in args]
        if len(set(lengths)) > 1:
            raise ArgumentError(f"ArrayDataset: the arrays have lengths {lengths}, expected equal ones")
        self._length = lengths[0]
        self._data = [arg.asnumpy() if isinstance(arg, NDArray) and arg.ndim == 1 else arg for arg in args]

    def __getitem__(self, idx: Any) -> Sample:
        sample = self._data[0][idx] if len(self._data) == 1 else tuple([array[idx] for array in self._data])
        return cast("Sample", sample)

    def __len__(self) -> int:
        return self._length


class RecordFileDataset(Dataset[Record]):
    """The records of a RecordIO file as bytes; the index has the same name with the suffix ``.idx``.

    Args:
        filename: the file.

    Raises:
        OSError: a file cannot be read.
        ValueError: the index is damaged.
    """

    def __init__(self, filename: str | os.PathLike[str]) -> None:
        self.filename = os.fspath(filename)
        self.idx_file = str(Path(filename).with_suffix(".idx"))
        self._record = recordio.MXIndexedRecordIO(self.idx_file, self.filename, "r")

    def __getitem__(self, idx: Any) -> Record:
        return cast("Record", self._read(idx))

    def _read(self, idx: Any) -> bytes:
        return self._record.read_idx(self._record.keys[idx])

    def __len__(self) -> int:
        return len(self._record.keys)


class _TransformedDataset(Dataset[Any]):
    """A data set whose samples pass through a function."""

    def __init__(self, data: Any, fn: Callable[..., Any]) -> None:
        self._data = data
        self._fn = fn

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, idx: Any) -> Any:
        sample = self._data[idx]
        parts = sample if isinstance(sample, tuple) else (sample,)
        try:
            return self._fn(*parts)
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:  # the call itself failed
                error.add_note(f"transform() calls its function with the parts of a sample: this one has {len(parts)}")
            raise


class _FirstTransform:
    """A function applied to the first argument only; a class, so that it can be pickled."""

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self._fn = fn

    def __call__(self, x: Any, *args: Any) -> Any:
        return (self._fn(x), *args) if args else self._fn(x)


class _Subset(Dataset[Any]):
    """Samples of a data set, selected by number."""

    def __init__(self, data: Any, sampler: Sampler) -> None:
        self._data = data
        self._indices = list(sampler)

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, idx: Any) -> Any:
        return self._data[self._indices[idx]]


@overload
def random_split(dataset: Numbers, lengths: Sequence[float], seed: int | None = None) -> list[Dataset[Numbers]]: ...


@overload
def random_split(
    dataset: _Column[Sample], lengths: Sequence[float], seed: int | None = None
) -> list[Dataset[Sample]]: ...  # fmt: skip


def random_split(dataset: Any, lengths: Sequence[float], seed: int | None = None) -> list[Dataset[Any]]:
    """Split a data set into disjoint random parts, such as a training and a validation set.

    Args:
        dataset: the data set; a list or an array works, too.
        lengths: the length of each part; or fractions that sum to 1, whose remainder goes to the first parts.
        seed: determines the split; by default NumPy's generator does (``numpy.random.seed``).

    Raises:
        ValueError: the lengths do not sum to the number of samples, or to 1.

    Example:
        >>> train, validation = mx.gluon.data.random_split(dataset, [0.9, 0.1], seed=1)
    """
    counts = _counts(len(dataset), list(lengths))
    generator = rng.numpy() if seed is None else rng.make_generator(seed)
    order = generator.permutation(len(dataset)).tolist()
    ends = list(itertools.accumulate(counts))
    return [_Subset(dataset, _Order(order[end - count : end])) for count, end in zip(counts, ends, strict=True)]


def _counts(size: int, lengths: list[float]) -> list[int]:
    advice = f"expected lengths that sum to the {size} samples, or fractions that sum to 1, such as [0.9, 0.1]"
    if not lengths or any(isinstance(length, bool) or not length >= 0 for length in lengths):
        raise ArgumentError(f"random_split: lengths is {lengths}, {advice}")
    if all(float(length).is_integer() for length in lengths) and sum(lengths) == size:
        return [int(length) for length in lengths]
    if not math.isclose(sum(lengths), 1):
        raise ArgumentError(f"random_split: lengths is {lengths}, with the sum {sum(lengths):g}, {advice}")
    counts = [math.floor(size * length) for length in lengths]
    for number in range(size - sum(counts)):
        counts[number % len(counts)] += 1
    return counts


class _Order(Sampler):
    """A list of indices."""

    def __init__(self, indices: list[int]) -> None:
        self._indices = indices

    def __iter__(self) -> Iterator[int]:
        return iter(self._indices)

    def __len__(self) -> int:
        return len(self._indices)
