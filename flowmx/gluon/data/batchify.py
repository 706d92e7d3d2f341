"""Functions that put samples together into a batch: ``mx.gluon.data.batchify``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowmx import ndarray as nd
from flowmx.ndarray import NDArray

__all__ = ["Append", "AsList", "Group", "Pad", "Stack", "default_batchify_fn", "default_mp_batchify_fn"]


def default_batchify_fn(data: Sequence[Any]) -> Any:
    """Arrays stacked; of tuples, a list with such an array for each of their parts; of numbers, an array.

    Dicts become a dict of such arrays.

    Raises:
        ValueError: the samples differ in shape or length.
    """
    first = data[0]
    if isinstance(first, NDArray):
        _expect_equal([each.shape for each in data], "shapes")
        return nd.stack(*data)
    if isinstance(first, tuple):
        _expect_equal([len(each) for each in data], "numbers of parts")
        return [default_batchify_fn(part) for part in zip(*data, strict=True)]
    if isinstance(first, dict):
        return {key: default_batchify_fn([each[key] for each in data]) for key in first}
    _expect_equal([np.shape(each) for each in data] if isinstance(first, np.ndarray) else [], "shapes")
    return _as_array(np.asarray(data))


default_mp_batchify_fn = default_batchify_fn
"""MXNet's name for batches from worker processes: here all of them come home in shared memory."""


def _expect_equal(found: Sequence[Any], what: str) -> None:
    if any(each != found[0] for each in found):
        different = list(dict.fromkeys(found))
        raise ValueError(
            f"the samples of a batch have different {what}, {different[:4]}: bring them to one, or give the DataLoader "
            "another batchify_fn, such as batchify.Pad() or batchify.AsList()"
        )


def _as_array(values: np.ndarray[Any, Any]) -> NDArray:
    """An array of new memory, without another copy."""
    if values.dtype == object or values.dtype.kind in "US":
        raise ValueError(
            f"the samples are no numbers, nor arrays of one shape (they make an array of {values.dtype}): give the "
            "DataLoader another batchify_fn, such as batchify.AsList()"
        )
    return nd.from_numpy(values) if values.ndim and values.flags.c_contiguous else nd.array(values, dtype=values.dtype)


def _host(value: Any) -> Any:
    return value.asnumpy() if isinstance(value, NDArray) else np.asarray(value)


class Stack:
    """Arrays, or numbers, stacked along a new first axis.

    Args:
        use_shared_mem: kept for MXNet's scripts.

    Example:
        >>> Stack()([[1, 2, 3], [4, 5, 6]]).shape
        (2, 3)
    """

    def __init__(self, use_shared_mem: bool = False) -> None:
        del use_shared_mem

    def __call__(self, data: Sequence[Any]) -> NDArray:
        if isinstance(data[0], NDArray):
            _expect_equal([each.shape for each in data], "shapes")
            return nd.stack(*data)
        arrays = [np.asarray(each) for each in data]
        _expect_equal([each.shape for each in arrays], "shapes")
        return _as_array(np.stack(arrays))


class Pad:
    """Arrays made as long as the longest on every axis, and stacked.

    Args:
        val: the padding value.
        dtype: the element type (default: that of the first).
        round_to: lengths become a multiple of this.
        use_shared_mem: kept for MXNet's scripts.

    Raises:
        ValueError: (called) the arrays differ in their number of axes.

    Example:
        >>> Pad(val=-1)([[1, 2, 3], [4]]).asnumpy()
        array([[ 1,  2,  3],
               [ 4, -1, -1]])
    """

    def __init__(
        self, val: float = 0, dtype: Any = None, round_to: int | None = None, use_shared_mem: bool = False
    ) -> None:
        self._val = val
        self._dtype = dtype
        self._round_to = round_to

    def __call__(self, data: Sequence[Any]) -> NDArray:
        arrays = [_host(each) for each in data]
        _expect_equal([each.ndim for each in arrays], "numbers of axes")
        lengths = [max(axis) for axis in zip(*(each.shape for each in arrays), strict=True)]
        if self._round_to is not None:
            lengths = [math.ceil(length / self._round_to) * self._round_to for length in lengths]
        made = np.full((len(arrays), *lengths), self._val, self._dtype or arrays[0].dtype)
        for row, each in zip(made, arrays, strict=True):
            row[tuple(slice(0, length) for length in each.shape)] = each
        return _as_array(made)


class Append:
    """Arrays side by side in a list, each a batch of one.

    Args:
        expand: give each a new axis for its batch.
        batch_axis: where that is.
        use_shared_mem: kept for MXNet's scripts.
    """

    def __init__(self, expand: bool = True, batch_axis: int = 0, use_shared_mem: bool = False) -> None:
        self._expand = expand
        self._axis = batch_axis

    def __call__(self, data: Sequence[Any]) -> list[NDArray]:
        arrays = [each if isinstance(each, NDArray) else nd.array(each, dtype=np.asarray(each).dtype) for each in data]
        return [each.expand_dims(self._axis) for each in arrays] if self._expand else arrays


class Group:
    """A function of its own for each part of the samples.

    Args:
        fn: the function for the first part, or a list of all of them.
        *args: those for the other parts.

    Raises:
        TypeError: one of them can not be called.
        ValueError: (called) samples have another number of parts.

    Example:
        >>> Group(Stack(), Pad())([([1, 2], [1, 2, 3]), ([3, 4], [4])])
    """

    def __init__(self, fn: Any, *args: Any) -> None:
        given = list(fn) if isinstance(fn, (list, tuple)) else [fn]
        if args and isinstance(fn, (list, tuple)):
            raise TypeError("Group: fn is a list of functions, and others were given as well")
        self._fn: list[Callable[[Any], Any]] = [*given, *args]
        for index, each in enumerate(self._fn):
            if not callable(each):
                raise TypeError(f"Group: function {index} is {type(each).__name__}, which can not be called")

    def __call__(self, data: Sequence[Any]) -> tuple[Any, ...]:
        if any(len(each) != len(self._fn) for each in data):
            raise ValueError(
                f"Group: the samples have {sorted({len(each) for each in data})} parts, expected {len(self._fn)}, one "
                "for each function"
            )
        return tuple(fn(list(part)) for fn, part in zip(self._fn, zip(*data, strict=True), strict=True))


class AsList:
    """The samples as they are, in a list."""

    def __call__(self, data: Sequence[Any]) -> list[Any]:
        return list(data)
