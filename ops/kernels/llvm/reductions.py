"""Sums over everything, or over the last axes: sum, mean and norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from flowmx.ops.formulas.expressions import Expr, Parameters, absolute
from flowmx.ops.kernels.llvm.rows import Kind, Row, Rows
from flowmx.ops.kernels.llvm.softmax import suits
from flowmx.ops.registry.operators import Array, Bound, Form, Run, Shape, kernel

_LEAST = 1 << 15
"""Elements below which the plain forward is as fast."""
_LEAST_ROWS, _SHORT = 1 << 11, 256
"""The same where rows are shorter than so many elements: NumPy takes long for each."""
_PIECE = 1 << 12
"""Elements that are added up one by one; the sums of such pieces are added pairwise."""
_LONGEST = 1 << 16


def _rows(term: Callable[[Expr], Expr]) -> Rows:
    def formula(p: Parameters, row: Row, x: Expr) -> Expr:
        return row.sum(term(x))

    return Rows(Kind(outputs=0, results=1), formula)


_PLAIN, _SQUARES, _SIZES = _rows(lambda x: x), _rows(lambda x: x * x), _rows(absolute)


def _is_worth(shape: Shape, axes: Sequence[int]) -> bool:
    """Tell whether axes are the last ones, and there is enough to add up for a loop of our own."""
    ndim, size = len(shape), math.prod(shape)
    if size < _LEAST_ROWS or not axes or tuple(axes) != tuple(range(ndim - len(axes), ndim)):
        return False
    rows = math.prod(shape[: ndim - len(axes)])
    return size >= _LEAST or (rows > 1 and size < rows * _SHORT)


def _sums(rows: Rows, x: Array, axes: Sequence[int]) -> Array | None:
    """The sums over the last axes, as a flat array, or None where they are not the last or the array does not suit."""
    if not _is_worth(x.shape, axes) or not suits(x):
        return None
    outer = math.prod(x.shape[: x.ndim - len(axes)])
    length = x.size // outer
    if outer == 1:
        pieces = length // _PIECE
        sums = np.empty(pieces, np.float32)
        if not rows.run(None, (pieces, _PIECE, 1), [x], [sums]):
            return None
        rest = x.reshape(-1)[pieces * _PIECE :]
        if rest.size:
            last = np.empty(1, np.float32)
            rows.run(None, (1, rest.size, 1), [rest], [last])
            sums = np.append(sums, last)
        return sums.sum(keepdims=True)
    sums = np.empty(outer, np.float32)
    return sums if length <= _LONGEST and rows.run(None, (outer, length, 1), [x], [sums]) else None


@kernel("cpu", "sum")
def _sum(op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    x, out = inputs[0], outputs[0]
    sums = _sums(_PLAIN, x, op.axes(x.ndim))
    if sums is None:
        op.forward(run, inputs, outputs)
    else:
        out[...] = sums.reshape(out.shape)


@kernel("cpu", "mean")
def _mean(op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    x, out = inputs[0], outputs[0]
    sums = _sums(_PLAIN, x, op.axes(x.ndim))
    if sums is None:
        op.forward(run, inputs, outputs)
    else:
        np.divide(sums.reshape(out.shape), x.size // max(1, out.size), out=out, casting="unsafe")


def _bound(is_mean: bool, op: Any, given: Sequence[Form], made: Sequence[Form]) -> Bound | None:
    """A sum of few elements, or their mean, by NumPy."""
    shape, dtype = given[0]
    count = math.prod(shape)
    if dtype not in (np.float32, np.float64) or not 0 < count < _LEAST or dtype != made[0][1]:
        return None
    axes = op.axes(len(shape))
    if dtype == np.float32 and _is_worth(shape, axes):
        return _bound_rows(is_mean, op, shape, axes)
    kept = tuple([1 if axis in axes else length for axis, length in enumerate(shape)])
    add: Any = np.add.reduce  # whose stubs know no tuple of axes
    divide, number = np.divide, count // math.prod(kept)

    def bound(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        out = outputs[0]
        if not out.flags.c_contiguous:
            op.forward(run, inputs, outputs)
            return
        add(inputs[0], axes, None, out.reshape(kept), True)
        if is_mean:
            divide(out, number, out=out)

    return bound


def _bound_rows(is_mean: bool, op: Any, shape: Shape, axes: Sequence[int]) -> Bound | None:
    """A sum, or mean, of many short rows."""
    rows = math.prod(shape[: len(shape) - len(axes)])
    length = math.prod(shape) // rows
    call = _PLAIN.bind(None, (rows, length, 1), (np.dtype(np.float32),) * 2)
    if call is None:
        return None
    add, divide, plain = call, np.divide, _mean if is_mean else _sum

    def bound(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, out = inputs[0], outputs[0]
        if not (x.flags.c_contiguous and out.flags.c_contiguous):
            plain(op, run, inputs, outputs)
            return
        add(x, out)
        if is_mean:
            divide(out, length, out=out)

    return bound


_sum.bind = partial(_bound, False)  # type: ignore[attr-defined]
_mean.bind = partial(_bound, True)  # type: ignore[attr-defined]


@kernel("cpu", "norm")
def _norm(op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    x, out = inputs[0], outputs[0]
    sums = _sums(_SIZES if op.ord == 1 else _SQUARES, x, op.axes(x.ndim))
    if sums is None:
        op.forward(run, inputs, outputs)
    else:
        out[...] = (sums if op.ord == 1 else np.sqrt(sums)).reshape(out.shape)


def _bind_norm(op: Any, given: Sequence[Form], made: Sequence[Form]) -> Bound | None:
    """The Euclidean norm of few elements, by NumPy."""
    shape, dtype = given[0]
    axes = op.axes(len(shape))
    is_few = 0 < math.prod(shape) < _LEAST and not (dtype == np.float32 and _is_worth(shape, axes))
    if op.ord != 2 or dtype not in (np.float32, np.float64) or dtype != made[0][1] or not is_few:
        return None
    kept = tuple([1 if axis in axes else length for axis, length in enumerate(shape)])
    add: Any = np.add.reduce
    square, root = np.square, np.sqrt

    def bound(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        out = outputs[0]
        if not out.flags.c_contiguous:
            op.forward(run, inputs, outputs)
            return
        add(square(inputs[0]), axes, None, out.reshape(kept), True)
        root(out, out=out)

    return bound


_norm.bind = _bind_norm  # type: ignore[attr-defined]
