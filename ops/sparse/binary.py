"""Elementwise arithmetic with sparse operands."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from flowmx.errors import ShapeError
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, lookup
from flowmx.ops.sparse.content import INDEX, Content, Csr, Rows, as_dense, row_numbers, sorted_rows, to_dense, union
from flowmx.ops.sparse.dispatch import AnyContent, Call, SparseKernel, apply_elementwise, sparse_kernel
from flowmx.ops.sparse.unary import stored_elements_kernel

_MAX_INDEX = np.iinfo(INDEX).max


def merge(op: Operator, run: Run, a: Content, b: Content, shape: Shape) -> Content:
    """Apply an operator that maps zeros to 0 where at least one of two contents stores an element."""
    if isinstance(a, Csr) and isinstance(b, Csr):
        return _merge_csr(op, run, sorted_rows(a), sorted_rows(b), shape)
    if _same_rows(a.indices, b.indices):
        return Rows(apply_elementwise(op, run, a.data, b.data), a.indices)
    rows = union(a.indices, b.indices)
    return Rows(apply_elementwise(op, run, _expand(a.data, a.indices, rows), _expand(b.data, b.indices, rows)), rows)


def _same_rows(rows: Array, other_rows: Array) -> bool:
    """Return whether two contents store the same rows, as gradients of one batch do."""
    return rows is other_rows or np.array_equal(rows, other_rows)


def _merge_csr(op: Operator, run: Run, a: Csr, b: Csr, shape: Shape) -> Csr:
    if shape[0] * shape[1] > _MAX_INDEX:
        raise ShapeError(
            f"{op.name}: a csr matrix of shape {tuple(shape)} has more than 2**63 elements, expected fewer"
        )
    positions_a, positions_b = (row_numbers(x) * shape[1] + x.indices for x in (a, b))
    positions = union(positions_a, positions_b)
    data = apply_elementwise(op, run, _expand(a.data, positions_a, positions), _expand(b.data, positions_b, positions))
    is_nonzero = data != 0  # MXNet does not store zeros here
    return from_positions(data[is_nonzero], positions[is_nonzero], shape)


def from_positions(data: Array, positions: Array, shape: Shape) -> Csr:
    """Return the matrix with these elements at ascending positions of the flattened matrix."""
    rows, columns = np.divmod(positions, shape[1])
    indptr = np.zeros(shape[0] + 1, INDEX)
    np.cumsum(np.bincount(rows, minlength=shape[0]), out=indptr[1:])
    return Csr(data, columns, indptr)


def _expand(data: Array, positions: Array, all_positions: Array) -> Array:
    """Return an array with an element for each of the ascending positions: that of ``data``, or 0."""
    values = np.zeros((len(all_positions), *data.shape[1:]), data.dtype)
    values[np.searchsorted(all_positions, positions)] = data
    return values


def _elements_at(dense: Array, like: Content) -> Array:
    """Return the elements of a dense array at the positions of a sparse array's stored elements."""
    return dense[row_numbers(like), like.indices] if isinstance(like, Csr) else dense[like.indices]


def _stored_elements_kernel(call: Call) -> SparseKernel:
    """Return a kernel for a product with a dense array, computed only at the stored elements of the sparse array."""
    op = call.op

    def compute(run: Run, a: AnyContent, b: AnyContent) -> AnyContent:
        if isinstance(a, np.ndarray):
            assert not isinstance(b, np.ndarray)
            return b._replace(data=apply_elementwise(op, run, _elements_at(a, b), b.data))
        assert isinstance(b, np.ndarray)
        return a._replace(data=apply_elementwise(op, run, a.data, _elements_at(b, a)))

    return SparseKernel(next(stype for stype in call.stypes if stype != "default"), compute)


def _dense_result(call: Call) -> SparseKernel:
    """Return a kernel that makes all operands dense."""
    op, shape = call.op, call.shapes[0]

    def compute(run: Run, *contents: AnyContent) -> AnyContent:
        return apply_elementwise(op, run, *[as_dense(array, shape) for array in contents])

    return SparseKernel("default", compute)


def _merge_kernel(call: Call) -> SparseKernel:
    op, shape = call.op, call.shapes[0]
    return SparseKernel(call.common_stype, lambda run, a, b: merge(op, run, a, b, shape))


@sparse_kernel("elemwise_add", "elemwise_sub")
def _add_or_subtract(call: Call) -> SparseKernel | None:
    if call.common_stype:
        return _merge_kernel(call)
    return _dense_result(call) if "default" in call.stypes else None


@sparse_kernel("elemwise_mul")
def _multiply(call: Call) -> SparseKernel | None:
    if call.common_stype:
        return _merge_kernel(call)
    return _stored_elements_kernel(call) if "default" in call.stypes else None


@sparse_kernel("_backward_Activation")
def _activation_gradient(call: Call) -> SparseKernel | None:
    """Return the kernel of head · slope; zeros of the head, and for relu of the output, give zeros."""
    if call.common_stype:
        return _merge_kernel(call)
    is_zero = call.stypes[0] != "default" or call.op.act_type == "relu"
    return (_stored_elements_kernel(call) if is_zero else _dense_result(call)) if "default" in call.stypes else None


@sparse_kernel("elemwise_div", "_power")
def _divide_or_power(call: Call) -> SparseKernel | None:
    return _dense_result(call) if "default" in call.stypes or call.common_stype == "row_sparse" else None


@sparse_kernel("_grad_add", "_maximum", "_minimum", "_hypot")
def _merge_same_stype(call: Call) -> SparseKernel | None:
    return _merge_kernel(call) if call.common_stype else None


@sparse_kernel("add_n", "ElementWiseSum")
def _sum_of_many(call: Call) -> SparseKernel | None:
    shape, add = call.shapes[0], lookup("elemwise_add").create()
    if call.common_stype == "row_sparse":
        return SparseKernel("row_sparse", lambda run, *contents: sum_of_rows(run, contents, shape))
    if (len(call.stypes) > 4 and "default" in call.stypes) or call.stypes == ("default", "csr", "default"):

        def compute(run: Run, *contents: AnyContent) -> AnyContent:
            dense = [as_dense(array, shape) for array in contents]
            return reduce(lambda a, b: apply_elementwise(add, run, a, b), dense)

        return SparseKernel("default", compute)
    return None


def sum_of_rows(run: Run, contents: Sequence[Any], shape: Shape) -> Rows:
    """Return the sum of several row_sparse contents, added in order."""
    rows = contents[0].indices
    if all(_same_rows(rows, content.indices) for content in contents[1:]):
        add = lookup("elemwise_add").create()
        return Rows(
            reduce(lambda a, b: apply_elementwise(add, run, a, b), [content.data for content in contents]), rows
        )
    rows = union(*[content.indices for content in contents])
    total = _expand(contents[0].data, contents[0].indices, rows)
    for content in contents[1:]:
        total[np.searchsorted(rows, content.indices)] += content.data
    return Rows(total, rows)


@sparse_kernel("_plus_scalar", "_minus_scalar")
def _add_number(call: Call) -> SparseKernel:
    if call.op.scalar == 0:
        return stored_elements_kernel(call)
    op, shape = call.op, call.shapes[0]
    return SparseKernel("default", lambda run, x: apply_elementwise(op, run, to_dense(x, shape)))


sparse_kernel("_scatter_plus_scalar", "_scatter_minus_scalar")(stored_elements_kernel)


@sparse_kernel("_scatter_elemwise_div")
def _divide_stored(call: Call) -> SparseKernel | None:
    if call.stypes[0] != "row_sparse":
        return None
    op, shape = call.op, call.shapes[0]

    def compute(run: Run, a: Rows, b: AnyContent) -> AnyContent:
        dense = as_dense(b, shape)
        return Rows(apply_elementwise(op, run, a.data, dense[a.indices]), a.indices)

    return SparseKernel("row_sparse", compute)


@sparse_kernel("broadcast_add", "broadcast_sub", "broadcast_mul", "broadcast_div")
def _broadcast(call: Call) -> SparseKernel | None:
    op, (left, right) = call.op, call.stypes
    if op.name in ("broadcast_mul", "broadcast_div"):
        if (left, right) != ("csr", "default") or _broadcast_shape(*call.shapes) != tuple(call.shapes[0]):
            return None
        return SparseKernel("csr", lambda run, a, b: a._replace(data=_apply_at_elements(op, run, a, b, call.shapes[0])))
    if sorted(call.stypes) != ["csr", "default"]:
        return None

    def compute(run: Run, *contents: AnyContent) -> AnyContent:
        pairs = zip(contents, call.shapes, strict=True)
        dense = [as_dense(array, shape) for array, shape in pairs]
        arrays = np.broadcast_arrays(*dense)
        return apply_elementwise(lookup(f"elemwise_{op.name[-3:]}").create(), run, *map(np.ascontiguousarray, arrays))

    return SparseKernel("default", compute)


def _broadcast_shape(*shapes: Shape) -> Shape | None:
    try:
        return np.broadcast_shapes(*[tuple(shape) for shape in shapes])
    except ValueError:
        return None


def _apply_at_elements(op: Operator, run: Run, a: Csr, b: Array, shape: Shape) -> Array:
    spread = np.broadcast_to(b, shape)
    return apply_elementwise(
        lookup(f"elemwise_{op.name[-3:]}").create(), run, a.data, np.ascontiguousarray(_elements_at(spread, a))
    )
