"""Matrix products with a csr factor."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from flowmx.errors import DataError
from flowmx.ops.kernels.llvm import sparse as loops
from flowmx.ops.linalg.dot import product_gradient
from flowmx.ops.nn.common import needs_gradient
from flowmx.ops.registry.operators import Array, Run, lookup
from flowmx.ops.registry.tensors import Functions, GradientFunction, Gradients, Tensor, Tensors
from flowmx.ops.sparse.content import INDEX, Csr, Rows, as_dense, from_dense, row_numbers, to_dense
from flowmx.ops.sparse.dispatch import AnyContent, Call, SparseKernel, sparse_kernel
from flowmx.ops.sparse.slicing import gather_rows

_CHUNK = 1 << 20
"""Maximum number of elements of an intermediate product."""


def csr_times_dense(a: Csr, b: Array | Rows) -> Array:
    """Return the product of a csr matrix with a matrix, which may have stored rows only."""
    if isinstance(b, Rows):
        a, b = _restrict_to_stored(a, b)
    _check_indices(a, len(b))
    product: Array | None = loops.product(*a, np.ascontiguousarray(b))
    if product is None:
        product = np.zeros((len(a.indptr) - 1, b.shape[1]), a.data.dtype)
        _add_groups(product, a.data, a.indices, a.indptr, b)
    return product


def _restrict_to_stored(a: Csr, b: Rows) -> tuple[Csr, Array]:
    """Return a matrix with only the columns of stored rows, renumbered by position, and the stored rows."""
    count = len(b.indices)
    if not count or b.indices[-1] == count - 1:
        if not (a.indices >= count).any():
            return a, b.data
        index, is_stored = a.indices, a.indices < count
    else:
        index = np.searchsorted(b.indices, a.indices).clip(0, count - 1)
        is_stored = b.indices[index] == a.indices
    before = np.concatenate([np.zeros(1, INDEX), np.cumsum(is_stored)])
    return Csr(a.data[is_stored], index[is_stored], before[a.indptr]), b.data


def csr_transpose_times_dense(a: Csr, b: Array | Rows, count: int) -> Rows:
    """Return the product of a transposed csr matrix with a matrix: the rows of columns with stored elements."""
    if not isinstance(b, Rows) and len(b) == len(a.indptr) - 1:
        _check_indices(a, count)
        columns, places = _stored_columns(a.indices, count)
        product = loops.transposed_product(a.data, places, a.indptr, np.ascontiguousarray(b), len(columns))
        if product is not None:
            return Rows(product, columns)
    order = np.argsort(a.indices, kind="stable")
    columns = a.indices[order]
    first = np.flatnonzero(np.concatenate(([True], columns[1:] != columns[:-1]))) if len(columns) else columns
    out = np.zeros((len(first), b.data.shape[1] if isinstance(b, Rows) else b.shape[1]), a.data.dtype)
    _add_groups(out, a.data[order], row_numbers(a)[order], np.concatenate([first, [len(columns)]]), b)
    return Rows(out, columns[first])


def _reference(indices: Array, cache: dict[int, Any]) -> weakref.ref[Array]:
    """Return a weak reference to an index array, which removes its entry from a cache when the array is freed."""
    key = id(indices)
    return weakref.ref(indices, lambda _: cache.pop(key, None))


_column_cache: dict[int, tuple[weakref.ref[Array], Array, Array]] = {}
"""By the id of an index array (they never change): the array, and the result of :func:`_stored_columns`."""


def _stored_columns(indices: Array, count: int) -> tuple[Array, Array]:
    """Return the columns with stored elements, ascending, and the position of each element's column among them."""
    cached = _column_cache.get(id(indices))
    if cached is not None and cached[0]() is indices:
        return cached[1:]
    marks = np.zeros(count, bool)
    marks[indices] = True
    columns = np.flatnonzero(marks)
    places = (indices if len(columns) == count else (np.cumsum(marks) - 1)[indices]).astype(np.int32)
    _column_cache[id(indices)] = _reference(indices, _column_cache), columns, places
    return columns, places


_upper_bounds: dict[int, tuple[weakref.ref[Array], int]] = {}
"""By the id of an index array (they never change): the array, and its exclusive upper bound."""


def _check_indices(a: Csr, count: int) -> None:
    """Check that the indices of a matrix are in range, once for each matrix.

    Raises:
        DataError: an index is out of range.
    """
    for indices, limit in ((a.indices, count), (a.indptr, len(a.indices) + 1)):
        cached = _upper_bounds.get(id(indices))
        if cached is not None and cached[0]() is indices and cached[1] <= limit:
            continue
        largest = int(indices.view(np.uint64).max(initial=0))
        if (indices.size and largest >= limit) or (indices is a.indptr and (indices[1:] < indices[:-1]).any()):
            raise DataError(f"csr: an index of the matrix is not from 0 to {limit - 1}, or its rows are not in order")
        _upper_bounds[id(indices)] = _reference(indices, _upper_bounds), largest + 1


def _add_groups(out: Array, data: Array, rows: Array, starts: Array, b: Array | Rows) -> None:
    """Add to each row of ``out`` the products of a group of elements with rows of ``b``."""
    width = max(1, out.shape[1])
    groups = np.flatnonzero(np.diff(starts))
    begins = starts[groups]
    index = 0
    while index < len(groups):
        first = int(begins[index])
        end = int(np.searchsorted(begins, first + max(1, _CHUNK // width), "left"))
        end = max(end, index + 1)
        last = int(starts[groups[end - 1] + 1])
        factors = gather_rows(b, rows[first:last]) if isinstance(b, Rows) else b[rows[first:last]]
        products = data[first:last, None] * factors
        out[groups[index:end]] = np.add.reduceat(products, begins[index:end] - first, axis=0)
        index = end


def dense_times_csr(a: Array, b: Csr, transpose: bool, shape: tuple[int, ...]) -> Array:
    """Return the product of a dense matrix with a csr matrix, transposed if ``transpose``."""
    if transpose:
        return np.ascontiguousarray(csr_times_dense(b, np.ascontiguousarray(a.T)).T)
    transposed = csr_transpose_times_dense(b, np.ascontiguousarray(a.T), shape[1])
    product = np.zeros((len(a), shape[1]), a.dtype)
    product[:, transposed.indices] = transposed.data.T
    return product


def _dense_times_stored(a: Array, b: Csr, count: int) -> Csr:
    """Return the product of a dense matrix with a csr matrix as csr: all rows of the columns with stored elements."""
    transposed = csr_transpose_times_dense(b, np.ascontiguousarray(a.T), count)
    rows, columns = len(a), transposed.indices
    data = np.ascontiguousarray(transposed.data.T).ravel()
    return Csr(data, np.tile(columns, rows), np.arange(rows + 1, dtype=INDEX) * len(columns))


@sparse_kernel("dot")
def _dot(call: Call) -> SparseKernel | None:
    op = call.op
    transpose_a: bool = op.transpose_a
    transpose_b: bool = op.transpose_b
    stype: str | None = op.forward_stype
    left, right = call.stypes
    matrices = all(len(shape) == 2 for shape in call.shapes)
    gradient = _gradient(transpose_a, transpose_b)
    if matrices and left == "csr" and right in ("default", "row_sparse") and not transpose_b:
        if not transpose_a and stype in (None, "default"):
            return SparseKernel("default", lambda run, a, b: csr_times_dense(a, b), gradient)
        columns = call.shapes[0][1]
        if transpose_a and stype in (None, "row_sparse"):
            return SparseKernel("row_sparse", lambda run, a, b: csr_transpose_times_dense(a, b, columns), gradient)
        if transpose_a and stype == "default":
            shape = (call.shapes[0][1], call.shapes[1][1])
            return SparseKernel(
                "default", lambda run, a, b: to_dense(csr_transpose_times_dense(a, b, columns), shape), gradient
            )
    if matrices and left == "default" and right == "csr" and not transpose_a:
        columns = call.shapes[1][1]
        if stype in (None, "csr") and not transpose_b:
            return SparseKernel("csr", lambda run, a, b: _dense_times_stored(a, b, columns), gradient)
        if stype == "default":
            return SparseKernel(
                "default", lambda run, a, b: dense_times_csr(a, b, transpose_b, call.shapes[1]), gradient
            )
    if stype is None and (left, right, transpose_a) == ("default", "csr", False):
        stype = "csr"
    return None if stype in (None, "default") else _dense_product(call, stype)


def _dense_product(call: Call, stype: str) -> SparseKernel:
    """Return a kernel that multiplies dense matrices, and converts the product to a storage type."""
    shapes = call.shapes
    flags = {name: getattr(call.op, name) for name in ("transpose_a", "transpose_b")}
    dot = lookup("dot").create(**flags)

    def compute(run: Run, *contents: AnyContent) -> AnyContent:
        pairs = zip(contents, shapes, strict=True)
        dense = [as_dense(array, shape) for array, shape in pairs]
        spec = dot.spec(tuple(tuple(shape) for shape in shapes), tuple(array.dtype for array in dense))
        out = np.empty(spec.shapes[0], spec.dtypes[0])
        dot.forward(run, dense, [out])
        return from_dense(out, stype)

    return SparseKernel(stype, compute, makes_dense=True)


def _gradient(transpose_a: bool, transpose_b: bool) -> GradientFunction:
    def gradient(F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        a, b, head = inputs[0], inputs[1], heads[0]

        def product(x: Tensor, y: Tensor, **flags: bool) -> Tensor | None:
            is_needed = needs_gradient(inputs, 0 if x is not a and y is not a else 1)
            if not is_needed:
                return None
            return F.dot(x, y, forward_stype="default", **flags) if y.stype == "csr" else F.dot(x, y, **flags)

        return product_gradient(product, a, b, head, transpose_a, transpose_b)

    return gradient
