"""Functions that make a batch from a list of samples: ``mx.gluon.data.batchify``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowmx import ndarray as nd
from flowmx.ndarray import NDArray
from flowmx.ops.registry.dtypes import DTypeLike
from flowmx.ops.registry.operators import Array

__all__ = ["Append", "AsList", "Group", "Pad", "Stack", "default_batchify_fn", "default_mp_batchify_fn"]


def default_batchify_fn(data: Sequence[Any]) -> Any:
    """Stack arrays or numbers. Tuples make a list with one array per part; dicts make a dict of arrays.

    Raises:
        ValueError: the samples differ in shape or length.
    """
    first = data[0]
    if isinstance(first, NDArray):
        _expect_equal([array.shape for array in data], "shapes")
        return nd.stack(*data)
    if isinstance(first, tuple):
        _expect_equal([len(sample) for sample in data], "numbers of parts")
        return [default_batchify_fn(part) for part in zip(*data, strict=True)]
    if isinstance(first, dict):
        return {key: default_batchify_fn([sample[key] for sample in data]) for key in first}
    _expect_equal([_shape(sample) for sample in data], "shapes")
    return _as_array(np.asarray(data))


default_mp_batchify_fn = default_batchify_fn
"""MXNet's name for batches from worker processes: here they always use shared memory."""


def _shape(sample: Any) -> tuple[int, ...]:
    """Return the shape of a sample; the lengths of the rows of a ragged list."""
    try:
        shape: tuple[int, ...] = np.shape(sample)
        return shape
    except ValueError:
        return tuple(int(np.size(row)) for row in sample)


def _expect_equal(values: Sequence[object], noun: str) -> None:
    if any(value != values[0] for value in values):
        different = list(dict.fromkeys(values))
        raise ValueError(
            f"the samples of a batch have different {noun}, {different[:4]}: make them equal, or pass to the "
            "DataLoader a different batchify_fn, such as batchify.Pad() or batchify.AsList()"
        )


def _as_array(values: Array) -> NDArray:
    """Make an NDArray from newly allocated memory, without a copy."""
    if values.dtype == object and any(value is None for value in values.flat):
        raise ValueError("a sample is None, expected an array or a number: does __getitem__ of the dataset return it?")
    if values.dtype == object or values.dtype.kind in "US":
        raise ValueError(
            f"the samples are neither numbers nor arrays of the same shape (they make an array of {values.dtype}): "
            "pass a different batchify_fn to the DataLoader, such as batchify.AsList()"
        )
    return nd.from_numpy(values) if values.ndim and values.flags.c_contiguous else nd.array(values, dtype=values.dtype)


def _to_host(value: object) -> Any:
    return value.asnumpy() if isinstance(value, NDArray) else np.asarray(value)


class Stack:
    """Stack arrays or numbers along a new first axis.

    Args:
        use_shared_mem: ignored; accepted for MXNet's scripts.

    Example:
        >>> Stack()([[1, 2, 3], [4, 5, 6]]).shape
        (2, 3)
    """

    def __init__(self, use_shared_mem: bool = False) -> None:
        del use_shared_mem

    def __call__(self, data: Sequence[Any]) -> NDArray:
        if isinstance(data[0], NDArray):
            _expect_equal([array.shape for array in data], "shapes")
            return nd.stack(*data)
        arrays = [np.asarray(sample) for sample in data]
        _expect_equal([array.shape for array in arrays], "shapes")
        return _as_array(np.stack(arrays))


class Pad:
    """Pad arrays to the longest on every axis, and stack them.

    Args:
        val: the padding value.
        dtype: the element type (default: the dtype of the first array).
        round_to: round lengths up to a multiple of this; or a list of lengths, such as the ``bounds`` of a
            :class:`BucketSampler`: the first axis gets the smallest that suffices.
        use_shared_mem: ignored; accepted for MXNet's scripts.

    Raises:
        ValueError: in a call, the arrays differ in their number of axes, or are longer than the list of lengths.

    Example:
        >>> Pad(val=-1)([[1, 2, 3], [4]]).asnumpy()
        array([[ 1,  2,  3],
               [ 4, -1, -1]])
    """

    def __init__(
        self, val: float = 0, dtype: DTypeLike = None, round_to: int | Sequence[int] | None = None,
        use_shared_mem: bool = False,
    ) -> None:  # fmt: skip
        self._val = val
        self._dtype = dtype
        self._round_to = round_to

    def __call__(self, data: Sequence[object]) -> NDArray:
        arrays = [_to_host(sample) for sample in data]
        _expect_equal([array.ndim for array in arrays], "numbers of axes")
        lengths = [max(axis) for axis in zip(*(array.shape for array in arrays), strict=True)]
        if isinstance(self._round_to, Sequence):
            lengths[0] = self._next_length(lengths[0], self._round_to)
        elif self._round_to is not None:
            lengths = [math.ceil(length / self._round_to) * self._round_to for length in lengths]
        result = np.full((len(arrays), *lengths), self._val, self._dtype or arrays[0].dtype)
        for row, array in zip(result, arrays, strict=True):
            row[tuple(slice(0, length) for length in array.shape)] = array
        return _as_array(result)

    @staticmethod
    def _next_length(longest: int, lengths: Sequence[int]) -> int:
        possible = [length for length in lengths if length >= longest]
        if not possible:
            raise ValueError(
                f"Pad: a sample has length {longest}, but round_to ends at {max(lengths, default=None)}: add a longer "
                "length"
            )
        return min(possible)


class Append:
    """Return the arrays in a list, each as a batch of one.

    Args:
        expand: add a batch axis to each array.
        batch_axis: the position of the batch axis.
        use_shared_mem: ignored; accepted for MXNet's scripts.
    """

    def __init__(self, expand: bool = True, batch_axis: int = 0, use_shared_mem: bool = False) -> None:
        self._expand = expand
        self._axis = batch_axis

    def __call__(self, data: Sequence[object]) -> list[NDArray]:
        arrays = [
            sample if isinstance(sample, NDArray) else nd.array(sample, dtype=np.asarray(sample).dtype)
            for sample in data
        ]
        return [array.expand_dims(self._axis) for array in arrays] if self._expand else arrays


class Group:
    """Apply a separate function to each part of the samples.

    Args:
        fn: the function for the first part, or a list of all functions.
        *args: the functions for the other parts.

    Raises:
        TypeError: a function is not callable.
        ValueError: in a call, samples have the wrong number of parts.

    Example:
        >>> Group(Stack(), Pad())([([1, 2], [1, 2, 3]), ([3, 4], [4])])
    """

    def __init__(self, fn: Any, *args: Any) -> None:
        functions = list(fn) if isinstance(fn, (list, tuple)) else [fn]
        if args and isinstance(fn, (list, tuple)):
            raise TypeError("Group: fn is a list of functions, and there are further functions")
        self._fn: list[Callable[[Any], Any]] = [*functions, *args]
        for index, function in enumerate(self._fn):
            if not callable(function):
                raise TypeError(f"Group: function {index} is {type(function).__name__}, which is not callable")

    def __call__(self, data: Sequence[Any]) -> tuple[Any, ...]:
        if any(len(sample) != len(self._fn) for sample in data):
            raise ValueError(
                f"Group: the samples have {sorted({len(sample) for sample in data})} parts, expected {len(self._fn)}, "
                "one for each function"
            )
        return tuple(fn(list(part)) for fn, part in zip(self._fn, zip(*data, strict=True), strict=True))


class AsList:
    """Return the samples in a list."""

    def __call__(self, data: Sequence[object]) -> list[Any]:
        return list(data)
