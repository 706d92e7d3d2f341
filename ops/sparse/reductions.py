"""Sums, means and norms of sparse arrays."""

from __future__ import annotations

import numpy as np

from flowmx.errors import ParameterError
from flowmx.ops.registry.operators import Array, Run
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors
from flowmx.ops.sparse.content import Csr, Rows, row_numbers
from flowmx.ops.sparse.dispatch import AnyContent, Call, SparseKernel, sparse_kernel
from flowmx.ops.sparse.slicing import gather_rows


def _sums(x: Csr, data: Array, axis: int, shape: tuple[int, ...]) -> Array:
    """Return the sums of elements along an axis, in their dtype."""
    places = row_numbers(x) if axis else x.indices
    sums = np.bincount(places, data, minlength=shape[0] if axis else shape[1])
    return sums.astype(data.dtype)


def _one_axis(call: Call) -> int | None:
    """Return the axis of a reduction of a csr matrix along one axis without keepdims; None for other reductions."""
    op = call.op
    axis = op.axis
    axis = axis[0] if isinstance(axis, tuple) and len(axis) == 1 else axis
    is_plain = not getattr(op, "keepdims", False) and not getattr(op, "exclude", False)
    return axis if call.common_stype == "csr" and axis in (0, 1) and not isinstance(axis, tuple) and is_plain else None


@sparse_kernel("sum", "mean")
def _sum(call: Call) -> SparseKernel | None:
    axis, shape, is_mean = _one_axis(call), call.shapes[0], call.op.name == "mean"
    if axis is None:
        return None

    def compute(run: Run, x: Csr) -> AnyContent:
        result = _sums(x, x.data, axis, shape)
        return result / np.asarray(shape[axis], result.dtype) if is_mean else result

    return SparseKernel("default", compute)


@sparse_kernel("norm")
def _norm(call: Call) -> SparseKernel | None:
    op, shape = call.op, call.shapes[0]
    if op.ord != 2:
        return None
    if op.axis is None:
        ndim = len(shape) if op.keepdims else 1
        return SparseKernel(
            "default", lambda run, x: np.sqrt(np.square(x.data).sum(dtype=x.data.dtype)).reshape((1,) * ndim)
        )
    axis = _one_axis(call)
    return (
        None
        if axis is None
        else SparseKernel("default", lambda run, x: np.sqrt(_sums(x, np.square(x.data), axis, shape)))
    )


@sparse_kernel("_square_sum")
def _square_sum(call: Call) -> SparseKernel | None:
    op, shape = call.op, call.shapes[0]
    axis = op.axis
    axis = axis[0] if isinstance(axis, tuple) and len(axis) == 1 else axis
    keep: bool = op.keepdims
    if call.common_stype != "row_sparse" or axis not in (0, 1) or len(shape) != 2:
        if call.common_stype == "default":
            return None
        raise ParameterError(
            f"_square_sum: data is {call.stypes[0]} and axis {axis}, expected row_sparse and axis 0 or 1"
        )

    def compute(run: Run, x: Rows) -> AnyContent:
        sums: Array
        if x.data.dtype.itemsize > 2:  # avoid an array of all squares
            sums = np.einsum(f"ij,ij->{'ji'[axis]}", x.data, x.data)
        else:
            sums = np.square(x.data).sum(axis=axis, dtype=x.data.dtype)
        if axis == 1 and keep:
            return Rows(sums[:, None], x.indices)
        if axis == 0:
            return sums[None] if keep else sums
        result = np.zeros(shape[0], sums.dtype)
        result[x.indices] = sums
        return result

    def gradient(F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_backward_square_sum", heads[0], inputs[0], axis=axis, keepdims=keep)]

    return SparseKernel("row_sparse" if axis == 1 and keep else "default", compute, gradient)


@sparse_kernel("_backward_square_sum")
def _square_sum_gradient(call: Call) -> SparseKernel | None:
    axis: tuple[int, ...] = call.op.axis
    if call.stypes[1] != "row_sparse" or len(call.shapes[1]) != 2 or len(axis) != 1:
        return None

    def compute(run: Run, head: AnyContent, x: Rows) -> AnyContent:
        if isinstance(head, Rows):  # the gradients of other rows are zero
            rows, data, scale = head.indices, gather_rows(x, head.indices), head.data
        else:
            assert isinstance(head, np.ndarray)
            rows, data = x.indices, x.data * 1
            scale = head.reshape(1, -1) if axis[0] == 0 else head.reshape(-1, 1)[rows]
        data *= 2
        data *= scale
        return Rows(data, rows)

    return SparseKernel("row_sparse", compute)
