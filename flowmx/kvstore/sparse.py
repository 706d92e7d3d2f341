"""Sparse values and gradients of a local store: only the rows that are there are summed and copied."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from flowmx import autograd
from flowmx.devices import Context
from flowmx.ndarray import NDArray
from flowmx.ndarray import functions as F
from flowmx.ops.sparse.shapes import SparseShape


def concerned(value: NDArray, *arrays: Sequence[NDArray]) -> bool:
    """Tell whether a value is sparse, or one of the arrays that are pushed to it or pulled from it."""
    return any(isinstance(each._shape, SparseShape) for group in ((value,), *arrays) for each in group)


def _calls() -> Any:
    return importlib.import_module("flowmx.ndarray.sparse.calls")


def copy(source: NDArray, target: NDArray) -> None:
    """Enqueue that an array takes the content of another one, in its own storage type."""
    with autograd.pause():
        _calls().copy(source, target, "kvstore pull")


def total(values: Sequence[NDArray], context: Context) -> NDArray:
    """The sum of values on a device, in their order; row_sparse, where all are."""
    with autograd.pause():
        here = [each.as_in_context(context) for each in values]
        if len(here) == 1:
            return here[0]
        if all(each.stype == "row_sparse" for each in here):
            return F.op("add_n", *here)  # type: ignore[no-any-return]
        summed = here[0]
        for each in here[1:]:
            summed = F.op("elemwise_add", summed, each)
        return summed


def add_up(values: Sequence[NDArray], targets: Sequence[NDArray]) -> None:
    """Enqueue that each target becomes the sum of values."""
    summed = total(values, targets[-1].context)
    for each in targets:
        if each is not summed:
            copy(summed, each)


def rows_into(key: Any, source: NDArray, ids: NDArray, target: NDArray, priority: int) -> None:
    """Enqueue that a target gets the rows of a source that are named, and zeros in the others."""
    device, count = target._storage.device, target.shape[0]

    def take(content: Any, row_ids: Any) -> Any:
        rows = importlib.import_module("flowmx.ops.sparse.content").distinct(row_ids)
        if rows.size and not 0 <= rows[0] <= rows[-1] < count:
            wrong = int(rows[0] if rows[0] < 0 else rows[-1])
            raise IndexError(f"row_sparse_pull: row id {wrong} for key {key!r}, which has {count} rows, from 0")
        return importlib.import_module("flowmx.ops.sparse.parts").rows_at(content, rows)

    with autograd.pause():
        brought = [source.as_in_context(target.context), ids.as_in_context(target.context)]
        _calls().compute(device, "kvstore row_sparse_pull", take, brought, target)
