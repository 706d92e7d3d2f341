"""Sums of values at positions that may repeat: the gradients of lookups.

Values of 16 bits are added in float32: in 16 bits, a sum stops growing once its spacing exceeds the values. On a GPU
atomic additions end in any order, so floating-point values are sorted by position first, and equal positions are added
pairwise. Results are the same in every run.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flowmx.ops.math.reduce import widen
from flowmx.ops.registry.dtypes import DType, is_floating
from flowmx.ops.registry.operators import Array
from flowmx.ops.registry.tensors import ArrayNamespace

__all__ = ["add_at", "add_rows"]

_EXACT = ("int32", "uint32", "uint64")
"""Dtypes that a GPU adds atomically and without rounding, so that the order does not matter."""


def add_rows(xp: ArrayNamespace, rows: Array, index: Array, values: Array) -> None:
    """Add ``values[i]`` to ``rows[index[i]]`` for all i; indices may repeat, and ``rows`` are zeros at first."""
    if not index.size:
        return
    if xp is not np:
        _add_rows_on_gpu(xp, rows, index, values)
        return
    order = index.argsort(kind="stable")
    sorted_index = index[order]
    starts = np.flatnonzero(np.concatenate(([True], sorted_index[1:] != sorted_index[:-1])))
    rows[sorted_index[starts]] = np.add.reduceat(widen(values)[order], starts, axis=0)


def add_at(xp: ArrayNamespace, out: Array, key: Any, values: Array) -> None:
    """Add values to ``out[key]``; positions may repeat, and ``out`` is zeros at first.

    Args:
        xp: NumPy or CuPy.
        out: the sums.
        key: an index of NumPy: integers, slices and index arrays.
        values: numbers that can be broadcast to the shape of ``out[key]``.
    """
    if xp is np:
        total = widen(out)
        np.add.at(total, key, values)
        if total is not out:
            out[...] = total
        return
    places = xp.arange(out.size).reshape(out.shape)[key]
    flat = xp.broadcast_to(values, places.shape).reshape(-1)
    total = xp.zeros((out.size,), out.dtype)
    add_rows(xp, total, places.reshape(-1), flat)
    out[...] = total.reshape(out.shape)


def _add_rows_on_gpu(xp: Any, rows: Array, index: Array, values: Array) -> None:
    if rows.dtype.name in _EXACT:
        xp.add.at(rows, index, values)
        return
    order = xp.argsort(index)
    keys = index[order]
    sums = values[order].astype(_summing_dtype(rows.dtype))
    sums = _segment_sums(xp, keys, sums)
    is_first = xp.concatenate([xp.ones((1,), bool), keys[1:] != keys[:-1]])
    total = xp.zeros((len(rows) + 1, *rows.shape[1:]), sums.dtype)
    total[xp.where(is_first, keys, len(rows))] = sums  # the last row takes the incomplete sums
    rows[...] = total[:-1]


def _summing_dtype(dtype: DType) -> Any:
    if not is_floating(dtype):
        return np.dtype(np.int64)
    return np.dtype(np.float64) if dtype == np.float64 else np.dtype(np.float32)


def _segment_sums(xp: Any, keys: Array, values: Array) -> Array:
    """Return values whose first one of each run of equal keys is the sum of the run."""
    shape = (-1,) + (1,) * (values.ndim - 1)
    for bit in range(math.ceil(math.log2(max(len(keys), 1)))):
        step = 1 << bit
        is_same = (keys[step:] == keys[:-step]).reshape(shape)
        sums = values.copy()
        sums[:-step] += xp.where(is_same, values[step:], xp.zeros((), values.dtype))
        values = sums
    return values
