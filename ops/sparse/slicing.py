"""Slices and rows of sparse arrays: slice, take, Concat, retain, where, getnnz."""

from __future__ import annotations

from typing import cast

import numpy as np

from flowmx.errors import IndexOutOfRange, ParameterError
from flowmx.ops.registry.operators import Array, Run
from flowmx.ops.sparse.content import INDEX, Csr, Rows, as_dense, distinct, to_dense
from flowmx.ops.sparse.dispatch import AnyContent, Call, SparseKernel, sparse_kernel


def row_range(x: Csr, begin: int, end: int) -> Csr:
    """Return consecutive rows of a matrix."""
    first, last = int(x.indptr[begin]), int(x.indptr[end])
    return Csr(x.data[first:last].copy(), x.indices[first:last], x.indptr[begin : end + 1] - first)


@sparse_kernel("slice")
def _slice(call: Call) -> SparseKernel | None:
    op, shape = call.op, call.shapes[0]
    steps = op.step or ()
    if call.common_stype != "csr" or any(step not in (None, 1) for step in steps):
        return None
    slices = zip(op.begin, op.end, shape, strict=False)
    bounds = [slice(begin, end).indices(length)[:2] for begin, end, length in slices]
    (top, bottom), (first, last) = [*bounds, (0, shape[1])][:2]

    def compute(run: Run, x: Csr) -> AnyContent:
        part = row_range(x, top, bottom)
        if (first, last) == (0, shape[1]):
            return part
        inside = (part.indices >= first) & (part.indices < last)
        return select_elements(part, inside, part.indices[inside] - first)

    return SparseKernel("csr", compute)


def select_elements(x: Csr, mask: Array, indices: Array) -> Csr:
    """Return the matrix with only the elements in ``mask``, at the columns ``indices``."""
    counts = np.concatenate(([0], np.cumsum(mask)))
    return Csr(x.data[mask], indices, counts[x.indptr].astype(INDEX))


def take_rows(x: Csr, rows: Array) -> Csr:
    """Return rows of a matrix by number, in that order."""
    begins, counts = x.indptr[rows], x.indptr[rows + 1] - x.indptr[rows]
    indptr = np.zeros(len(rows) + 1, INDEX)
    np.cumsum(counts, out=indptr[1:])
    places = np.arange(indptr[-1]) + np.repeat(begins - indptr[:-1], counts)
    return Csr(x.data[places], x.indices[places], indptr)


@sparse_kernel("take")
def _take(call: Call) -> SparseKernel | None:
    op, shape = call.op, call.shapes[0]
    mode: str = op.mode
    if call.stypes != ("csr", "default") or mode == "raise" or op.axis != 0 or len(call.shapes[1]) != 1:
        return None

    def compute(run: Run, x: Csr, index: Array) -> AnyContent:
        rows = index.astype(INDEX)
        rows = rows % shape[0] if mode == "wrap" else rows.clip(0, shape[0] - 1)
        return take_rows(x, rows)

    return SparseKernel("csr", compute)


@sparse_kernel("Concat")
def _concat(call: Call) -> SparseKernel | None:
    if call.common_stype != "csr" or call.op.dim != 0:
        return None

    def compute(run: Run, *matrices: Csr) -> AnyContent:
        ends = np.cumsum([0, *(len(matrix.data) for matrix in matrices)])
        starts = [matrix.indptr[1:] + end for matrix, end in zip(matrices, ends[:-1], strict=True)]
        parts = [np.concatenate([matrix[index] for matrix in matrices]) for index in (0, 1)]
        return Csr(parts[0], parts[1], np.concatenate([np.zeros(1, INDEX), *starts]))

    return SparseKernel("csr", compute)


@sparse_kernel("_sparse_retain")
def _retain(call: Call) -> SparseKernel | None:
    if call.stypes != ("row_sparse", "default"):
        raise ParameterError(
            f"retain: data is {call.stypes[0]} and indices {call.stypes[1]}, expected row_sparse and dense"
        )
    count = call.shapes[0][0]
    return SparseKernel("row_sparse", lambda run, x, index: retain_rows(run, x, _row_numbers(index, count)))


def _row_numbers(index: Array, count: int) -> Array:
    """Return the distinct row numbers in an index array, ascending.

    Raises:
        IndexOutOfRange: a number is out of range.
    """
    rows = distinct(index)
    if len(rows) and (rows[0] < 0 or rows[-1] >= count):
        wrong = rows[0] if rows[0] < 0 else rows[-1]
        raise IndexOutOfRange(f"retain: indices has the row {wrong}, expected 0 to {count - 1}")
    return rows


@sparse_kernel("_backward_retain")
def _retain_gradient(call: Call) -> SparseKernel:
    def compute(run: Run, head: AnyContent, index: Array) -> AnyContent:
        rows = distinct(index)
        return (
            retain_rows(run, head, rows) if isinstance(head, Rows) else Rows(as_dense(head, call.shapes[0])[rows], rows)
        )

    return SparseKernel("row_sparse", compute)


def retain_rows(run: Run | None, x: Rows, index: Array) -> Rows:
    """Return rows by number, in that order; zeros for rows that are not stored."""
    rows = index.astype(INDEX)
    return Rows(gather_rows(x, rows), rows)


def rows_at(content: AnyContent, rows: Array) -> Rows:
    """Return rows by number, of a dense or a row_sparse array."""
    return (
        Rows(content[rows], rows) if isinstance(content, np.ndarray) else retain_rows(None, cast("Rows", content), rows)
    )


def gather_rows(x: Rows, rows: Array) -> Array:
    """Return the values of rows by number; zeros for rows that are not stored."""
    if not len(x.indices):
        return np.zeros((len(rows), *x.data.shape[1:]), x.data.dtype)
    last = len(x.indices) - 1
    if x.indices[-1] == last:  # rows 0 to last are stored
        positions = rows if not len(rows) or (rows.min() >= 0 and rows.max() <= last) else rows.clip(0, last)
    else:
        positions = np.searchsorted(x.indices, rows).clip(0, last)
    values: Array = x.data[positions]
    values[x.indices[positions] != rows] = 0
    return values


@sparse_kernel("where")
def _where(call: Call) -> SparseKernel | None:
    shape = call.shapes[0]
    if call.stypes != ("csr", "default", "default") or tuple(shape) != call.shapes[1]:
        return None

    def compute(run: Run, x: Csr, a: Array, b: Array) -> AnyContent:
        return np.where(to_dense(x, shape) != 0, a, b)

    return SparseKernel("default", compute)


@sparse_kernel("_contrib_getnnz")
def _getnnz(call: Call) -> SparseKernel | None:
    axis: int | None = call.op.axis
    if call.common_stype != "csr" or axis == 0:
        raise ParameterError(f"getnnz: data is {call.stypes[0]} and axis {axis}, expected csr, and axis None or 1")

    def compute(run: Run, x: Csr) -> AnyContent:
        return np.array([x.indptr[-1]], INDEX) if axis is None else np.diff(x.indptr)

    return SparseKernel("default", compute)
