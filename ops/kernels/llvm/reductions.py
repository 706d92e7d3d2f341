"""Sums over all axes or the last axes: sum, mean and norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from flowmx.ops.formulas.expressions import Expr, Parameters, absolute
from flowmx.ops.kernels.llvm.row_loops import Kind, Row, Rows
from flowmx.ops.kernels.llvm.softmax import bound_rows, computed, suits
from flowmx.ops.registry.kernels import kernel
from flowmx.ops.registry.operators import Array, Bound, Form, Run, Shape

if TYPE_CHECKING:
    from flowmx.ops.math.reduce import Norm, Reduction
    from flowmx.ops.nn.linear import BackwardBias

_MIN_SIZE = 1 << 15
"""The operator's forward is as fast below this number of elements."""
_MIN_ROWS, _SHORT = 1 << 11, 256
"""Rows are short below this number of elements; NumPy is slow per row."""
_PIECE = 1 << 12
"""Elements summed sequentially; the sums of such pieces are added pairwise."""
_LONGEST = 1 << 16


def _rows(term: Callable[[Expr], Expr]) -> Rows:
    def formula(p: Parameters, row: Row, x: Expr) -> Expr:
        return row.sum(term(x))

    return Rows(Kind(outputs=0, results=1), formula)


_PLAIN, _SQUARES, _SIZES = _rows(lambda x: x), _rows(lambda x: x * x), _rows(absolute)


def _is_worth(shape: Shape, axes: Sequence[int]) -> bool:
    """Return whether the axes are the last ones and have enough elements for a compiled loop."""
    ndim, size = len(shape), math.prod(shape)
    if size < _MIN_ROWS or not axes or tuple(axes) != tuple(range(ndim - len(axes), ndim)):
        return False
    rows = math.prod(shape[: ndim - len(axes)])
    return size >= _MIN_SIZE or (rows > 1 and size < rows * _SHORT)


def _sums(rows: Rows, x: Array, axes: Sequence[int]) -> Array | None:
    """Return the sums over the last axes as a flat array; None if the axes or the array are unsupported."""
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
        total: Array = sums.sum(keepdims=True)
        return total
    sums = np.empty(outer, np.float32)
    return sums if length <= _LONGEST and rows.run(None, (outer, length, 1), [x], [sums]) else None


def _bound(is_mean: bool, op: Reduction, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> Bound | None:
    """Return a sum or mean of few elements by NumPy."""
    shape, dtype = in_forms[0]
    count = math.prod(shape)
    if dtype not in (np.float32, np.float64) or not 0 < count < _MIN_SIZE or dtype != out_forms[0][1]:
        return None
    axes = op.axes(len(shape))
    if dtype == np.float32 and _is_worth(shape, axes):
        return _bound_rows(is_mean, op, shape, axes)
    kept_shape = tuple([1 if axis in axes else length for axis, length in enumerate(shape)])
    add: Any = np.add.reduce  # its stubs do not allow a tuple of axes
    divide, number = np.divide, count // math.prod(kept_shape)

    def bound(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        out = outputs[0]
        if not out.flags.c_contiguous:
            op.forward(run, inputs, outputs)
            return
        add(inputs[0], axes, None, out.reshape(kept_shape), True)
        if is_mean:
            divide(out, number, out=out)

    return bound


def _bound_rows(is_mean: bool, op: Reduction, shape: Shape, axes: Sequence[int]) -> Bound | None:
    """Return a sum or mean of many short rows."""
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


@kernel("cpu", "sum", bind=partial(_bound, False))
def _sum(op: Reduction, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    x, out = inputs[0], outputs[0]
    sums = _sums(_PLAIN, x, op.axes(x.ndim))
    if sums is None:
        op.forward(run, inputs, outputs)
    else:
        out[...] = sums.reshape(out.shape)


@kernel("cpu", "mean", bind=partial(_bound, True))
def _mean(op: Reduction, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    x, out = inputs[0], outputs[0]
    sums = _sums(_PLAIN, x, op.axes(x.ndim))
    if sums is None:
        op.forward(run, inputs, outputs)
    else:
        np.divide(sums.reshape(out.shape), x.size // max(1, out.size), out=out, casting="unsafe")


def _bind_norm(op: Norm, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> Bound | None:
    """Return the Euclidean norm of few elements by NumPy."""
    shape, dtype = in_forms[0]
    axes = op.axes(len(shape))
    is_few = 0 < math.prod(shape) < _MIN_SIZE and not (dtype == np.float32 and _is_worth(shape, axes))
    if op.ord != 2 or dtype not in (np.float32, np.float64) or dtype != out_forms[0][1] or not is_few:
        return None
    kept_shape = tuple([1 if axis in axes else length for axis, length in enumerate(shape)])
    add: Any = np.add.reduce
    square, root = np.square, np.sqrt

    def bound(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        out = outputs[0]
        if not out.flags.c_contiguous:
            op.forward(run, inputs, outputs)
            return
        add(square(inputs[0]), axes, None, out.reshape(kept_shape), True)
        root(out, out=out)

    return bound


@kernel("cpu", "norm", bind=_bind_norm)
def _norm(op: Norm, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    x, out = inputs[0], outputs[0]
    sums = _sums(_SIZES if op.ord == 1 else _SQUARES, x, op.axes(x.ndim))
    if sums is None:
        op.forward(run, inputs, outputs)
    else:
        out[...] = (sums if op.ord == 1 else np.sqrt(sums)).reshape(out.shape)


def _channels(op: BackwardBias, shape: Shape) -> tuple[int, int, int] | None:
    """Return images, channels and elements of a channel for the gradient of a bias; None for other layouts."""
    if op.axis != 1 or len(shape) < 3 or 0 in shape:
        return None
    images, channels, length = shape[0], shape[1], math.prod(shape[2:])
    return (images, channels, length) if images * length <= _LONGEST else None


def _bind_backward_bias(op: BackwardBias, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> Bound | None:
    """Return the sums over the elements of each channel of one image."""
    (shape, dtype), place = in_forms[0], _channels(op, in_forms[0][0])
    plain: Bound = op.forward
    if place is None:
        return op.bound(np, in_forms, out_forms) or plain
    if place[0] != 1 or not computed(dtype):
        return None
    return bound_rows(_PLAIN, None, (shape[1], place[2], 1), [dtype, dtype], plain)


@kernel("cpu", "_backward_bias", bind=_bind_backward_bias, only_native=True)
def _backward_bias(op: BackwardBias, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    head, out = inputs[0], outputs[0]
    place = _channels(op, head.shape)
    if place is not None and suits(head, out):
        images, channels, length = place
        if _PLAIN.run(None, (channels, length, 1), [head], [out], images):
            return
    op.forward(run, inputs, outputs)
