"""Sums, means and norms of sparse arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowmx.errors import ParameterError
from flowmx.ops.registry.operators import Run
from flowmx.ops.sparse.content import Array, Csr, Rows, row_numbers
from flowmx.ops.sparse.parts import gathered
from flowmx.ops.sparse.ways import Call, Raw, Way, way


def _sums(x: Csr, data: Array, axis: int, shape: tuple[int, ...]) -> Array:
    """The sums of elements along an axis, in their own dtype."""
    places = row_numbers(x) if axis else x.indices
    made = np.bincount(places, data, minlength=shape[0] if axis else shape[1])
    return made.astype(data.dtype)


def _one_axis(call: Call) -> int | None:
    """The axis of a reduction that has a way: of a csr matrix along one axis, which goes."""
    op = call.op
    axis = op.axis  # type: ignore[attr-defined]
    axis = axis[0] if isinstance(axis, tuple) and len(axis) == 1 else axis
    plain = not getattr(op, "keepdims", False) and not getattr(op, "exclude", False)
    return axis if call.only == "csr" and axis in (0, 1) and not isinstance(axis, tuple) and plain else None


@way("sum", "mean")
def _sum(call: Call) -> Way | None:
    axis, shape, is_mean = _one_axis(call), call.shapes[0], call.op.name == "mean"
    if axis is None:
        return None

    def compute(run: Run, x: Csr) -> Raw:
        made = _sums(x, x.data, axis, shape)
        return made / np.asarray(shape[axis], made.dtype) if is_mean else made

    return Way("default", compute)


@way("norm")
def _norm(call: Call) -> Way | None:
    op, shape = call.op, call.shapes[0]
    if op.ord != 2:  # type: ignore[attr-defined]
        return None
    if op.axis is None:  # type: ignore[attr-defined]
        ndim = len(shape) if op.keepdims else 1  # type: ignore[attr-defined]
        return Way("default", lambda run, x: np.sqrt(np.square(x.data).sum(dtype=x.data.dtype)).reshape((1,) * ndim))
    axis = _one_axis(call)
    return None if axis is None else Way("default", lambda run, x: np.sqrt(_sums(x, np.square(x.data), axis, shape)))


@way("_square_sum")
def _square_sum(call: Call) -> Way | None:
    op, shape = call.op, call.shapes[0]
    axis = op.axis  # type: ignore[attr-defined]
    axis = axis[0] if isinstance(axis, tuple) and len(axis) == 1 else axis
    keep: bool = op.keepdims  # type: ignore[attr-defined]
    if call.only != "row_sparse" or axis not in (0, 1) or len(shape) != 2:
        if call.only == "default":
            return None
        raise ParameterError(
            f"_square_sum: data is {call.stypes[0]} and axis {axis}, expected row_sparse and axis 0 or 1"
        )

    def compute(run: Run, x: Rows) -> Raw:
        made: Array
        if x.data.dtype.itemsize > 2:  # without an array of all squares
            made = np.einsum(f"ij,ij->{'ji'[axis]}", x.data, x.data)
        else:
            made = np.square(x.data).sum(axis=axis, dtype=x.data.dtype)
        if axis == 1 and keep:
            return Rows(made[:, None], x.indices)
        if axis == 0:
            return made[None] if keep else made
        whole = np.zeros(shape[0], made.dtype)
        whole[x.indices] = made
        return whole

    def gradient(F: Any, inputs: Any, outputs: Any, heads: Sequence[Any]) -> list[Any]:
        return [F.op("_backward_square_sum", heads[0], inputs[0], axis=axis, keepdims=keep)]

    return Way("row_sparse" if axis == 1 and keep else "default", compute, gradient)


@way("_backward_square_sum")
def _square_sum_gradient(call: Call) -> Way | None:
    axis: tuple[int, ...] = call.op.axis  # type: ignore[attr-defined]
    if call.stypes[1] != "row_sparse" or len(call.shapes[1]) != 2 or len(axis) != 1:
        return None

    def compute(run: Run, head: Raw, x: Rows) -> Raw:
        if isinstance(head, Rows):  # the other rows' gradients are zeros
            rows, data, scale = head.indices, gathered(x, head.indices), head.data
        else:
            assert isinstance(head, np.ndarray)
            rows, data = x.indices, x.data * 1
            scale = head.reshape(1, -1) if axis[0] == 0 else head.reshape(-1, 1)[rows]
        data *= 2
        data *= scale
        return Rows(data, rows)

    return Way("row_sparse", compute)
