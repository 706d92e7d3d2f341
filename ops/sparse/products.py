"""Products of which a factor is a csr matrix."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowmx.errors import DataError
from flowmx.ops.kernels.llvm import sparse as loops
from flowmx.ops.linalg.matrix import product_gradient
from flowmx.ops.registry.operators import Run, lookup
from flowmx.ops.sparse.content import INDEX, Array, Csr, Rows, from_dense, row_numbers, to_dense
from flowmx.ops.sparse.parts import gathered
from flowmx.ops.sparse.ways import Call, Raw, Way, way

_CHUNK = 1 << 20
"""Elements of intermediate products that are held at a time."""


def by_dense(a: Csr, b: Array | Rows) -> Array:
    """The product of a csr matrix with a matrix of which rows may be missing."""
    if isinstance(b, Rows):
        a, b = _among_stored(a, b)
    _check(a, len(b))
    made: Array | None = loops.product(*a, np.ascontiguousarray(b))
    if made is None:
        made = np.zeros((len(a.indptr) - 1, b.shape[1]), a.data.dtype)
        _add_grouped(made, a.data, a.indices, a.indptr, b)
    return made


def _among_stored(a: Csr, b: Rows) -> tuple[Csr, Array]:
    """A matrix and stored rows, with the columns numbered by the rows that are stored, and none for the others."""
    count = len(b.indices)
    if not count or b.indices[-1] == count - 1:
        if not (a.indices >= count).any():
            return a, b.data
        at, is_stored = a.indices, a.indices < count
    else:
        at = np.searchsorted(b.indices, a.indices).clip(0, count - 1)
        is_stored = b.indices[at] == a.indices
    before = np.concatenate([np.zeros(1, INDEX), np.cumsum(is_stored)])
    return Csr(a.data[is_stored], at[is_stored], before[a.indptr]), b.data


def transposed_by_dense(a: Csr, b: Array | Rows, count: int) -> Rows:
    """The product of a csr matrix, transposed, with a matrix: the rows for which something is stored."""
    if not isinstance(b, Rows) and len(b) == len(a.indptr) - 1:
        _check(a, count)
        columns, places = _stored(a.indices, count)
        made = loops.transposed_product(a.data, places, a.indptr, np.ascontiguousarray(b), len(columns))
        if made is not None:
            return Rows(made, columns)
    order = np.argsort(a.indices, kind="stable")
    columns = a.indices[order]
    first = np.flatnonzero(np.concatenate(([True], columns[1:] != columns[:-1]))) if len(columns) else columns
    out = np.zeros((len(first), b.data.shape[1] if isinstance(b, Rows) else b.shape[1]), a.data.dtype)
    _add_grouped(out, a.data[order], row_numbers(a)[order], np.concatenate([first, [len(columns)]]), b)
    return Rows(out, columns[first])


_columns: dict[int, tuple[weakref.ref[Array], Array, Array]] = {}
"""By the identity of arrays of indices, which never change: the array, and what :func:`_stored` found."""


def _stored(indices: Array, count: int) -> tuple[Array, Array]:
    """The columns for which something is stored, in order, and the place of each element's column among these."""
    known = _columns.get(id(indices))
    if known is not None and known[0]() is indices:
        return known[1:]
    marks = np.zeros(count, bool)
    marks[indices] = True
    columns = np.flatnonzero(marks)
    places = (indices if len(columns) == count else (np.cumsum(marks) - 1)[indices]).astype(np.int32)
    key = id(indices)
    _columns[key] = weakref.ref(indices, lambda _, key=key, forget=_columns.pop: forget(key, None)), columns, places  # type: ignore[misc]
    return columns, places


_checked: dict[int, tuple[weakref.ref[Array], int]] = {}
"""By the identity of arrays of indices, which never change: themselves, and the number that they are below."""


def _check(a: Csr, count: int) -> None:
    """Check that a matrix's indices are inside of what they are indices of, once for each matrix.

    Raises:
        DataError: they are not.
    """
    for indices, bound in ((a.indices, count), (a.indptr, len(a.indices) + 1)):
        known = _checked.get(id(indices))
        if known is not None and known[0]() is indices and known[1] <= bound:
            continue
        most = int(indices.view(np.uint64).max(initial=0))
        if (indices.size and most >= bound) or (indices is a.indptr and (indices[1:] < indices[:-1]).any()):
            raise DataError(f"csr: an index of the matrix is not from 0 to {bound - 1}, or its rows are not in order")
        key = id(indices)
        _checked[key] = weakref.ref(indices, lambda _, key=key, forget=_checked.pop: forget(key, None)), most + 1  # type: ignore[misc]


def _add_grouped(out: Array, data: Array, rows: Array, starts: Array, b: Array | Rows) -> None:
    """Add to each row of the result the products of one group of elements with the rows of a matrix."""
    width = max(1, out.shape[1])
    filled = np.flatnonzero(np.diff(starts))
    begins = starts[filled]
    at = 0
    while at < len(filled):
        first = int(begins[at])
        end = int(np.searchsorted(begins, first + max(1, _CHUNK // width), "left"))
        end = max(end, at + 1)
        last = int(starts[filled[end - 1] + 1])
        found = gathered(b, rows[first:last]) if isinstance(b, Rows) else b[rows[first:last]]
        products = data[first:last, None] * found
        out[filled[at:end]] = np.add.reduceat(products, begins[at:end] - first, axis=0)
        at = end


def dense_by(a: Array, b: Csr, transpose: bool, shape: tuple[int, ...]) -> Array:
    """The product of a dense matrix with a csr matrix, transposed or not."""
    if transpose:
        return np.ascontiguousarray(by_dense(b, np.ascontiguousarray(a.T)).T)
    found = transposed_by_dense(b, np.ascontiguousarray(a.T), shape[1])
    made = np.zeros((len(a), shape[1]), a.dtype)
    made[:, found.indices] = found.data.T
    return made


def _stored_columns(a: Array, b: Csr, count: int) -> Csr:
    """The product of a dense matrix with a csr matrix, with the columns of which that has some element stored."""
    found = transposed_by_dense(b, np.ascontiguousarray(a.T), count)
    rows, columns = len(a), found.indices
    data = np.ascontiguousarray(found.data.T).ravel()
    return Csr(data, np.tile(columns, rows), np.arange(rows + 1, dtype=INDEX) * len(columns))


@way("dot")
def _dot(call: Call) -> Way | None:
    op = call.op
    ta: bool = op.transpose_a  # type: ignore[attr-defined]
    tb: bool = op.transpose_b  # type: ignore[attr-defined]
    asked: str | None = op.forward_stype  # type: ignore[attr-defined]
    one, other = call.stypes
    matrices = all(len(shape) == 2 for shape in call.shapes)
    gradient = _gradient(ta, tb)
    if matrices and one == "csr" and other in ("default", "row_sparse") and not tb:
        if not ta and asked in (None, "default"):
            return Way("default", lambda run, a, b: by_dense(a, b), gradient)
        columns = call.shapes[0][1]
        if ta and asked in (None, "row_sparse"):
            return Way("row_sparse", lambda run, a, b: transposed_by_dense(a, b, columns), gradient)
        if ta and asked == "default":
            shape = (call.shapes[0][1], call.shapes[1][1])
            return Way("default", lambda run, a, b: to_dense(transposed_by_dense(a, b, columns), shape), gradient)
    if matrices and one == "default" and other == "csr" and not ta:
        columns = call.shapes[1][1]
        if asked in (None, "csr") and not tb:
            return Way("csr", lambda run, a, b: _stored_columns(a, b, columns), gradient)
        if asked == "default":
            return Way("default", lambda run, a, b: dense_by(a, b, tb, call.shapes[1]), gradient)
    if asked is None and (one, other, ta) == ("default", "csr", False):
        asked = "csr"
    return None if asked in (None, "default") else _by_dense_product(call, asked)


def _by_dense_product(call: Call, stype: str) -> Way:
    """The product of dense matrices, in the storage type that is asked for."""
    shapes = call.shapes
    ways = {name: getattr(call.op, name) for name in ("transpose_a", "transpose_b")}
    plain = lookup("dot").create(**ways)

    def compute(run: Run, *given: Raw) -> Raw:
        pair = zip(given, shapes, strict=True)
        dense = [each if isinstance(each, np.ndarray) else to_dense(each, shape) for each, shape in pair]
        spec = plain.spec(tuple(tuple(each) for each in shapes), tuple(each.dtype for each in dense))
        out = np.empty(spec.shapes[0], spec.dtypes[0])
        plain.forward(run, dense, [out])
        return from_dense(out, stype)

    return Way(stype, compute, makes_dense=True)


def _gradient(ta: bool, tb: bool) -> Any:
    def gradient(F: Any, inputs: Any, outputs: Any, heads: Sequence[Any]) -> list[Any]:
        a, b, head = inputs[0], inputs[1], heads[0]

        def product(x: Any, y: Any, **ways: bool) -> Any:
            wanted = inputs.wanted(0 if x is not a and y is not a else 1)
            if not wanted:
                return None
            return F.dot(x, y, forward_stype="default", **ways) if y.stype == "csr" else F.dot(x, y, **ways)

        return product_gradient(product, a, b, head, ta, tb)

    return gradient
