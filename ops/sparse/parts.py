"""Parts of sparse arrays, and sparse arrays joined."""

from __future__ import annotations

from typing import cast

import numpy as np

from flowmx.errors import IndexOutOfRange, ParameterError
from flowmx.ops.registry.operators import Run
from flowmx.ops.sparse.content import INDEX, Array, Csr, Rows, distinct, to_dense
from flowmx.ops.sparse.ways import Call, Raw, Way, way


def rows_of(x: Csr, begin: int, end: int) -> Csr:
    """Consecutive rows of a matrix."""
    first, last = int(x.indptr[begin]), int(x.indptr[end])
    return Csr(x.data[first:last].copy(), x.indices[first:last], x.indptr[begin : end + 1] - first)


@way("slice")
def _slice(call: Call) -> Way | None:
    op, shape = call.op, call.shapes[0]
    steps = op.step or ()  # type: ignore[attr-defined]
    if call.only != "csr" or any(each not in (None, 1) for each in steps):
        return None
    given = zip(op.begin, op.end, shape, strict=False)  # type: ignore[attr-defined]
    bounds = [slice(begin, end).indices(length)[:2] for begin, end, length in given]
    (top, bottom), (left, right) = [*bounds, (0, shape[1])][:2]

    def compute(run: Run, x: Csr) -> Raw:
        part = rows_of(x, top, bottom)
        if (left, right) == (0, shape[1]):
            return part
        inside = (part.indices >= left) & (part.indices < right)
        return kept(part, inside, part.indices[inside] - left)

    return Way("csr", compute)


def kept(x: Csr, stays: Array, indices: Array) -> Csr:
    """The matrix with some of its elements, whose columns are given."""
    counted = np.concatenate(([0], np.cumsum(stays)))
    return Csr(x.data[stays], indices, counted[x.indptr].astype(INDEX))


def chosen(x: Csr, rows: Array) -> Csr:
    """The rows of a matrix with these numbers, in that order."""
    begins, counts = x.indptr[rows], x.indptr[rows + 1] - x.indptr[rows]
    indptr = np.zeros(len(rows) + 1, INDEX)
    np.cumsum(counts, out=indptr[1:])
    places = np.arange(indptr[-1]) + np.repeat(begins - indptr[:-1], counts)
    return Csr(x.data[places], x.indices[places], indptr)


@way("take")
def _take(call: Call) -> Way | None:
    op, shape = call.op, call.shapes[0]
    mode: str = op.mode  # type: ignore[attr-defined]
    if call.stypes != ("csr", "default") or mode == "raise" or op.axis != 0 or len(call.shapes[1]) != 1:  # type: ignore[attr-defined]
        return None

    def compute(run: Run, x: Csr, index: Array) -> Raw:
        rows = index.astype(INDEX)
        rows = rows % shape[0] if mode == "wrap" else rows.clip(0, shape[0] - 1)
        return chosen(x, rows)

    return Way("csr", compute)


@way("Concat")
def _concat(call: Call) -> Way | None:
    if call.only != "csr" or call.op.dim != 0:  # type: ignore[attr-defined]
        return None

    def compute(run: Run, *given: Csr) -> Raw:
        ends = np.cumsum([0, *(len(each.data) for each in given)])
        starts = [each.indptr[1:] + end for each, end in zip(given, ends[:-1], strict=True)]
        joined = [np.concatenate([each[at] for each in given]) for at in (0, 1)]
        return Csr(joined[0], joined[1], np.concatenate([np.zeros(1, INDEX), *starts]))

    return Way("csr", compute)


@way("_sparse_retain")
def _retain(call: Call) -> Way | None:
    if call.stypes != ("row_sparse", "default"):
        raise ParameterError(
            f"retain: data is {call.stypes[0]} and indices {call.stypes[1]}, expected row_sparse and dense"
        )
    count = call.shapes[0][0]
    return Way("row_sparse", lambda run, x, index: retained(run, x, _rows_of(index, count)))


def _rows_of(index: Array, count: int) -> Array:
    """The rows that are named, each once, in order.

    Raises:
        IndexOutOfRange: one is not there.
    """
    rows = distinct(index)
    if len(rows) and (rows[0] < 0 or rows[-1] >= count):
        wrong = rows[0] if rows[0] < 0 else rows[-1]
        raise IndexOutOfRange(f"retain: indices has the row {wrong}, expected 0 to {count - 1}")
    return rows


@way("_backward_retain")
def _retain_gradient(call: Call) -> Way:
    def compute(run: Run, head: Raw, index: Array) -> Raw:
        rows = distinct(index)
        return retained(run, head, rows) if isinstance(head, Rows) else Rows(_dense(head, call.shapes[0])[rows], rows)

    return Way("row_sparse", compute)


def _dense(x: Raw, shape: tuple[int, ...]) -> Array:
    return x if isinstance(x, np.ndarray) else to_dense(x, shape)


def retained(run: Run | None, x: Rows, index: Array) -> Rows:
    """The rows with these numbers, in that order; zeros where one is not stored."""
    wanted = index.astype(INDEX)
    return Rows(gathered(x, wanted), wanted)


def rows_at(content: Raw, rows: Array) -> Rows:
    """The rows with these numbers, of a dense array or of one with stored rows."""
    return Rows(content[rows], rows) if isinstance(content, np.ndarray) else retained(None, cast("Rows", content), rows)


def gathered(x: Rows, wanted: Array) -> Array:
    """The content of rows by their numbers."""
    if not len(x.indices):
        return np.zeros((len(wanted), *x.data.shape[1:]), x.data.dtype)
    last = len(x.indices) - 1
    if x.indices[-1] == last:  # the first rows, all of them
        at = wanted if not len(wanted) or (wanted.min() >= 0 and wanted.max() <= last) else wanted.clip(0, last)
    else:
        at = np.searchsorted(x.indices, wanted).clip(0, last)
    made: Array = x.data[at]
    made[x.indices[at] != wanted] = 0
    return made


@way("where")
def _where(call: Call) -> Way | None:
    shape = call.shapes[0]
    if call.stypes != ("csr", "default", "default") or tuple(shape) != call.shapes[1]:
        return None

    def compute(run: Run, x: Csr, a: Array, b: Array) -> Raw:
        return np.where(to_dense(x, shape) != 0, a, b)

    return Way("default", compute)


@way("_contrib_getnnz")
def _getnnz(call: Call) -> Way | None:
    axis: int | None = call.op.axis  # type: ignore[attr-defined]
    if call.only != "csr" or axis == 0:
        raise ParameterError(f"getnnz: data is {call.stypes[0]} and axis {axis}, expected csr, and axis None or 1")

    def compute(run: Run, x: Csr) -> Raw:
        return np.array([x.indptr[-1]], INDEX) if axis is None else np.diff(x.indptr)

    return Way("default", compute)
