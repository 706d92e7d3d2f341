"""Attention on a CPU, a block of queries at a time: their products with all keys stay in the cache and are not stored.

Memory grows with the length, not its square. The gradient recomputes the products, and the weights from the logarithm
of each row's sum (Dao, "FlashAttention-2", 2023). Factors may have 16 bits if the processor supports such
products; sums are float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from flowmx.ops.compiled.fused_attention import BackwardFusedAttention, FusedAttention
from flowmx.ops.formulas.expressions import Expr, Parameters
from flowmx.ops.kernels.llvm.row_loops import Kind, Row, Rows
from flowmx.ops.kernels.llvm.softmax import computed
from flowmx.ops.math.matmul import has_mixed_product, matmul_mixed
from flowmx.ops.math.reduce import widen
from flowmx.ops.nn.common import scratch
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.kernels import kernel
from flowmx.ops.registry.operators import Array, Run

MIN_PAIRS = 1 << 18
"""The minimum number of query-key pairs of a head for these kernels; the products of fewer need little memory."""
FEW_PAIRS = 1 << 10
"""The minimum number in float32 prediction without a bias, where products of all heads need no copies."""
_BLOCK = 1 << 19
"""The approximate number of products in a block."""
_QUERIES = 256
"""The minimum number of queries in a block; smaller matrix products are slower."""


def takes(dtype: DType, pairs: int, is_plain_prediction: bool) -> bool:
    """Return whether one operator is faster for this number of query-key pairs of a dtype.

    Args:
        dtype: the element type.
        pairs: the number of query-key pairs of a head.
        is_plain_prediction: whether it only predicts, and has no bias.
    """
    return computes(dtype) and (pairs >= MIN_PAIRS or (is_plain_prediction and dtype == FLOAT32 and pairs >= FEW_PAIRS))


def computes(dtype: DType) -> bool:
    """Return whether there are kernels for a dtype."""
    return dtype == FLOAT32 or (has_mixed_product("cpu", dtype) and computed(dtype))


class _Scaling(NamedTuple):
    scaling: float


@cache
def _forward_rows(biased: bool) -> Rows:
    def formula(p: Parameters, row: Row, x: Expr, *bias: Expr) -> list[Expr]:
        scores = x * p.scaling
        for term in bias:
            scores = scores + term
        top = row.max(scores)
        e = row.keep(0, row.exp(scores - top))
        total = row.sum(e)
        return [e * (1.0 / total), top + row.log(total)]

    return Rows(Kind(full=1 + biased, results=1), formula)


@cache
def _backward_rows(biased: bool) -> Rows:
    def formula(p: Parameters, row: Row, x: Expr, grad_weights: Expr, *rest: Expr) -> list[Expr]:
        *bias, stats, grad_dot_out = rest
        scores = x * p.scaling
        for term in bias:
            scores = scores + term
        weights = row.exp(scores - stats)
        return [weights, weights * (grad_weights - grad_dot_out) * p.scaling]

    # One row per key: two of the three products then need no transposition.
    return Rows(Kind(full=2 + biased, columns=2, outputs=2), formula)


class _Head(NamedTuple):
    """One head of one sample: its arrays and its position."""

    queries: Array
    keys: Array
    values: Array
    position: tuple[int, int]


def _heads(op: Any, inputs: Sequence[Array]) -> Iterator[_Head]:
    views = op.views(inputs)
    for index in np.ndindex(views[0].shape[:2]):
        queries, keys, values = (np.ascontiguousarray(view[index]) for view in views)
        yield _Head(queries, keys, values, (index[0], index[1]))


def _bias(op: Any, inputs: Sequence[Array], head: _Head, part: slice) -> list[Array]:
    """Return the bias of some rows of a head's products, if any."""
    if not op.biased:
        return []
    bias = inputs[-1]
    sample, number = (index if count > 1 else 0 for index, count in zip(head.position, bias.shape[:2], strict=True))
    return [bias[sample, number, part]]


def _parts(queries: int, keys: int) -> Iterator[slice]:
    step = max(_QUERIES, _BLOCK // max(1, keys))
    for start in range(0, queries, step):
        yield slice(start, min(start + step, queries))


def _memory(run: Run, slot: str, *shape: int, dtype: DType = FLOAT32) -> Array:
    """Return memory for the products of a block of queries."""
    return scratch(run, f"attention's {slot}", shape, dtype)


def _factor(run: Run, slot: str, sums: Array, dtype: DType) -> Array:
    """Return memory for a factor computed from sums; in float32 it is the memory of the sums."""
    return sums if dtype == FLOAT32 else _memory(run, slot, *sums.shape, dtype=dtype)


def _suits(inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    dtype = inputs[0].dtype
    return computes(dtype) and all(array.dtype in (dtype, FLOAT32) for array in (*inputs, *outputs))


def weigh_is_ready() -> bool:
    """Return whether :func:`weigh` is compiled; compile it if possible."""
    return _forward_rows(False).is_ready()


def weigh(scale: float, scores: Array, stats: Array) -> bool:
    """Replace each row of scores (rows, keys) by the softmax of the scaled row; return False if it is not compiled.

    Args:
        scale: the factor.
        scores: the scores, float32 in C order.
        stats: the logarithms of the sums (rows, 1), written.
    """
    return _forward_rows(False).run(_Scaling(scale), (*scores.shape, 1), [scores], [scores, stats])


def _takes(op: object, dtype: DType) -> bool:
    return computes(dtype)


def attention(op: FusedAttention, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Compute the output, and the statistics of the rows for the gradient."""
    rows, out, dtype = _forward_rows(op.biased), op.heads_first(outputs[0]), inputs[0].dtype
    if not _suits(inputs, outputs) or not rows.is_ready():
        op.forward(run, inputs, outputs)
        return
    for head in _heads(op, inputs):
        sums = np.empty((len(head.queries), head.values.shape[1]), np.float32)
        stats = np.empty((len(head.queries), 1), np.float32)
        for part in _parts(len(head.queries), len(head.keys)):
            scores = _memory(run, "scores", part.stop - part.start, len(head.keys))
            matmul_mixed(run, head.queries[part], head.keys.T, scores)
            arrays = [scores, *map(np.ascontiguousarray, _bias(op, inputs, head, part))]
            weights = _factor(run, "weights", scores, dtype)
            if not rows.run(_Scaling(op.scale), (*scores.shape, 1), arrays, [weights, stats[part]]):
                op.forward(run, inputs, outputs)
                return
            matmul_mixed(run, weights, head.values, sums[part])
        out[head.position] = sums
        if op.differentiable:
            outputs[1][head.position] = stats


@kernel("cpu", "_backward_fused_attention", takes=_takes)
def backward(op: BackwardFusedAttention, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Compute the gradients."""
    rows, dtype = _backward_rows(op.biased), inputs[3].dtype
    if not _suits(inputs, outputs) or not rows.is_ready():
        op.forward(run, inputs, outputs)
        return
    heads, outs, stats, grads = op.heads_first(inputs[0]), op.heads_first(inputs[1]), inputs[2], op.views(outputs)
    for head in _heads(op, inputs[3:]):
        grad_out, out = (np.ascontiguousarray(array[head.position]) for array in (heads, outs))
        grad_dot_out = np.einsum("ij,ij->i", widen(grad_out), widen(out))
        row_stats = np.ascontiguousarray(stats[head.position][:, 0])
        grad_queries, keys = np.empty(head.queries.shape, FLOAT32), np.ascontiguousarray(head.keys.T)
        grad_keys, grad_values, part_keys, part_values = (
            np.zeros(array.shape, FLOAT32) for array in (head.keys, head.values) * 2
        )
        for part in _parts(len(head.queries), len(head.keys)):
            shape = (len(head.keys), part.stop - part.start)
            scores, gradient = (_memory(run, slot, *shape) for slot in ("scores", "gradient"))
            matmul_mixed(run, head.keys, head.queries[part].T, scores)
            matmul_mixed(run, head.values, grad_out[part].T, gradient)
            bias = [np.ascontiguousarray(rows_bias.T) for rows_bias in _bias(op, inputs, head, part)]
            arrays = [scores, gradient, *bias, row_stats[part], grad_dot_out[part]]
            weights, grad_scores = _factor(run, "weights", scores, dtype), _factor(run, "grad scores", gradient, dtype)
            if not rows.run(_Scaling(op.scale), (*shape, 1), arrays, [weights, grad_scores]):
                op.forward(run, inputs, outputs)
                return
            transposed = _memory(run, "queries", len(keys), shape[1])
            matmul_mixed(run, keys, grad_scores, transposed)
            grad_queries[part] = transposed.T
            matmul_mixed(run, grad_scores, head.queries[part], part_keys)
            matmul_mixed(run, weights, grad_out[part], part_values)
            grad_keys += part_keys
            grad_values += part_values
        for view, grad in zip(grads, (grad_queries, grad_keys, grad_values), strict=True):
            view[head.position] = grad
