"""Sums and copies of sparse values and gradients: only stored rows are summed and copied."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from flowmx import autograd
from flowmx.devices import Context
from flowmx.ndarray import NDArray
from flowmx.ndarray import functions as F
from flowmx.ops.sparse.shapes import SparseShape


def involves_sparse(value: NDArray, *arrays: Sequence[NDArray]) -> bool:
    """Return whether a value, or one of the arrays that are pushed to it or pulled from it, is sparse."""
    return any(isinstance(array.dims, SparseShape) for group in ((value,), *arrays) for array in group)


def _calls() -> Any:
    return importlib.import_module("flowmx.ndarray.sparse.calls")


def copy(source: NDArray, target: NDArray) -> None:
    """Enqueue a copy of an array into another one, converted to the target's storage type."""
    with autograd.pause():
        _calls().copy(source, target, "kvstore pull")


def total(values: Sequence[NDArray], context: Context) -> NDArray:
    """Return the sum of values on a device, in their order; row_sparse if all values are."""
    with autograd.pause():
        local = [value.as_in_context(context) for value in values]
        if len(local) == 1:
            return local[0]
        result: NDArray = local[0]
        if all(value.stype == "row_sparse" for value in local):
            result = F.op("add_n", *local)
        else:
            for value in local[1:]:
                result = F.op("elemwise_add", result, value)
        return result


def add_up(values: Sequence[NDArray], targets: Sequence[NDArray]) -> None:
    """Enqueue a sum of values into each target."""
    result = total(values, targets[-1].context)
    for target in targets:
        if target is not result:
            copy(result, target)


def pull_rows(key: object, source: NDArray, ids: NDArray, target: NDArray, priority: int) -> None:
    """Enqueue a copy of the selected rows of a source into a target, with zeros in its other rows."""
    device, count = target.storage.device, target.shape[0]

    def take(content: object, row_ids: object) -> Any:
        rows = importlib.import_module("flowmx.ops.sparse.content").distinct(row_ids)
        if rows.size and not 0 <= rows[0] <= rows[-1] < count:
            row = int(rows[0] if rows[0] < 0 else rows[-1])
            raise IndexError(
                f"row_sparse_pull: row id {row} for key {key!r} is out of range: it has {count} rows, from 0"
            )
        return importlib.import_module("flowmx.ops.sparse.slicing").rows_at(content, rows)

    with autograd.pause():
        inputs = [source.as_in_context(target.context), ids.as_in_context(target.context)]
        _calls().compute(device, "kvstore row_sparse_pull", take, inputs, target)
