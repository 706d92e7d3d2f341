"""BatchNorm with its gradient: in C order each channel is a row that continues in every sample.

Arrays with their channels last in memory are matrices (rows, channels), with separate loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowmx.ops.formulas.expressions import Expr, maximum, sqrt
from flowmx.ops.kernels.llvm import channels_last
from flowmx.ops.kernels.llvm.row_loops import Kind, Row, Rows
from flowmx.ops.kernels.llvm.softmax import MIN_SIZE, around, suits
from flowmx.ops.math.reduce import widen
from flowmx.ops.registry.operators import Array, Run, Shape

if TYPE_CHECKING:
    from flowmx.ops.nn.normalization.batch_norm import BackwardBatchNorm, BatchNorm


def _by_batch(p: Any, row: Row, x: Expr, gamma: Expr, beta: Expr) -> tuple[Expr, ...]:
    mean = row.sum(x) / row.length
    centred = x - mean
    var = row.sum(centred * centred) / row.length
    inverse = 1.0 / sqrt(var + p.eps)
    return centred * (inverse * gamma) + beta, mean, inverse, var


def _by_batch_relu(p: object, row: Row, x: Expr, gamma: Expr, beta: Expr) -> tuple[Expr, ...]:
    out, *statistics = _by_batch(p, row, x, gamma, beta)
    return maximum(out, 0.0), *statistics


def _global(p: object, row: Row, x: Expr, gamma: Expr, beta: Expr, mean: Expr, inverse: Expr) -> Expr:
    return (x - mean) * (inverse * gamma) + beta


def _global_relu(p: object, row: Row, *inputs: Expr) -> Expr:
    return maximum(_global(p, row, *inputs), 0.0)


def _backward(p: object, row: Row, head: Expr, x: Expr, gamma: Expr, mean: Expr, inverse: Expr) -> tuple[Expr, ...]:
    along, across = row.sums(head * (x - mean), head)
    slope = inverse * inverse * along / row.length
    return (head - across / row.length - (x - mean) * slope) * (inverse * gamma), along * inverse, across


def _backward_global(
    p: object, row: Row, head: Expr, x: Expr, gamma: Expr, mean: Expr, inverse: Expr
) -> tuple[Expr, ...]:
    along, across = row.sums(head * (x - mean), head)
    return head * (inverse * gamma), along * inverse, across


_FORWARD = {
    # (by the batch's statistics, with a ReLU)
    (True, False): Rows(Kind(singles=2, results=3), _by_batch),
    (True, True): Rows(Kind(singles=2, results=3), _by_batch_relu),
    (False, False): Rows(Kind(singles=4), _global),
    (False, True): Rows(Kind(singles=4), _global_relu),
}
_BACKWARD = {
    True: Rows(Kind(full=2, singles=3, results=2), _backward),
    False: Rows(Kind(full=2, singles=3, results=2), _backward_global),
}


def _fits(*arrays: Array) -> bool:
    return arrays[0].size >= MIN_SIZE and suits(*arrays)


def _row_shape(shape: Shape, axis: int) -> dict[str, Any]:
    """Return the arguments of a row kernel that treats each channel as a row of several parts."""
    before, channels, after = around(shape, axis)
    return {"shape": (channels, after, 1), "parts": before}


def _as_matrix(array: Array, axis: int) -> Array | None:
    """View an array as (rows, channels); return None if its channels are not last in memory."""
    moved = np.moveaxis(array, axis, -1)
    if (
        not moved.flags.c_contiguous
        or not array.size
        or (array.flags.c_contiguous and around(array.shape, axis)[2] > 1)
    ):
        return None
    return moved.reshape(-1, moved.shape[-1])


def _as_matrices(op: BatchNorm, *arrays: Array) -> list[Array] | None:
    matrices = [matrix for array in arrays if (matrix := _as_matrix(array, op.axis)) is not None]
    return matrices if len(matrices) == len(arrays) else None


def _wide(vector: Array) -> Array:
    return np.ascontiguousarray(vector, np.float32)


def _by_columns(
    op: BatchNorm, run: Run, inputs: Sequence[Array], outputs: Sequence[Array], relu: bool, matrices: Sequence[Array]
) -> bool:
    data, out = matrices
    _, gamma, beta, moving_mean, moving_var = inputs
    _, mean, inverse, from_batch = outputs
    if mean.dtype != np.float32 or inverse.dtype != np.float32:
        return False
    batch = run.train and not op.use_global_stats
    average, var = (np.empty(mean.shape, np.float32), np.empty(mean.shape, np.float32)) if batch else (
        _wide(moving_mean), _wide(moving_var)
    )  # fmt: skip
    if batch and not channels_last.moments(data, average, var):
        return False
    std = 1 / np.sqrt(var + np.float32(op.eps))
    scale = std if op.fix_gamma else std * _wide(gamma)
    if not channels_last.apply(data, out, average, scale, _wide(beta), relu):
        return False
    mean[...], inverse[...], from_batch[...] = average, std, batch
    if batch:
        op.update_moving(moving_mean, average)
        op.update_moving(moving_var, var)
    return True


def forward(op: BatchNorm, run: Run, inputs: Sequence[Array], outputs: Sequence[Array], relu: bool = False) -> bool:
    """Compute BatchNorm; return False if unsupported or not compiled yet."""
    data, gamma, beta, moving_mean, moving_var = inputs
    out, mean, inverse, from_batch = outputs
    matrices = _as_matrices(op, data, out)
    if matrices is not None:
        return _by_columns(op, run, inputs, outputs, relu, matrices)
    if not _fits(data, out, gamma, beta, moving_mean, moving_var):
        return False
    batch = run.train and not op.use_global_stats
    scale = np.ones_like(gamma) if op.fix_gamma else gamma
    rows, var = _FORWARD[batch, relu], np.empty_like(mean)
    if not batch:
        mean[...] = moving_mean
        np.divide(1, np.sqrt(widen(moving_var) + inverse.dtype.type(op.eps)), out=inverse)
    inputs_ = [data, scale, beta] if batch else [data, scale, beta, mean, inverse]
    results = [out, mean, inverse, var] if batch else [out]
    if not rows.run(op, inputs=inputs_, outputs=results, **_row_shape(data.shape, op.axis)):
        return False
    if batch:
        op.update_moving(moving_mean, mean)
        op.update_moving(moving_var, var)
    from_batch[...] = batch
    return True


def backward(op: BackwardBatchNorm, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    """Compute BatchNorm's gradients; return False if unsupported or not compiled yet."""
    head, data, gamma, mean, inverse = inputs[:5]
    out, gamma_grad, beta_grad = outputs
    scale = np.ones_like(gamma) if op.fix_gamma else gamma
    matrices = _as_matrices(op, head, data, out)
    if matrices is not None:
        if any(each.dtype != np.float32 for each in (mean, inverse, gamma_grad, beta_grad)):
            return False
        by_batch = op.over_batch(inputs)
        head, data, out = matrices
        return channels_last.backward(head, data, out, _wide(scale), mean, inverse, gamma_grad, beta_grad, by_batch)
    if not _fits(head, data, out, gamma, mean):
        return False
    rows = _BACKWARD[op.over_batch(inputs)]
    arrays = [head, data, scale, mean, inverse]
    return rows.run(op, inputs=arrays, outputs=[out, gamma_grad, beta_grad], **_row_shape(data.shape, op.axis))
