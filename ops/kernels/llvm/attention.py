"""Attention on a CPU, some queries at a time: their products with all keys stay in the cache, and none is kept.

Memory follows the length, not its square. The gradient computes the products again, and weights from the logarithm of
each row's sum (Dao, "FlashAttention-2", 2023). Factors may be of 16 bits, where the processor multiplies them; what is
summed is float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from flowmx.ops.compiled.fused_attention import BackwardFusedAttention, FusedAttention
from flowmx.ops.formulas.expressions import Expr, Parameters
from flowmx.ops.kernels.llvm.rows import Kind, Row, Rows
from flowmx.ops.kernels.llvm.softmax import computed
from flowmx.ops.math.products import has_product, summed
from flowmx.ops.math.reduce import wide
from flowmx.ops.nn.common import scratch
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.operators import Array, Run, kernel

LEAST = 1 << 18
"""Pairs of a query and a key of one head from which the products are not kept: fewer take little memory."""
_BLOCK = 1 << 19
"""Products to have at a time, about."""
_QUERIES = 256
"""Queries to look at at a time, at least: matrix products of fewer are slower."""


def takes(dtype: DType, pairs: int) -> bool:
    """Tell whether attention on so many pairs of vectors of a dtype is better computed so."""
    return _computes(dtype) and pairs >= LEAST


def _computes(dtype: DType) -> bool:
    return dtype == FLOAT32 or (has_product("cpu", dtype) and computed(dtype))


class _Scaled(NamedTuple):
    scaling: float


@cache
def _forward_rows(biased: bool) -> Rows:
    def formula(p: Parameters, row: Row, x: Expr, *bias: Expr) -> list[Expr]:
        scores = x * p.scaling
        for each in bias:
            scores = scores + each
        top = row.max(scores)
        e = row.keep(0, row.exp(scores - top))
        total = row.sum(e)
        return [e * (1.0 / total), top + row.log(total)]

    return Rows(Kind(full=1 + biased, results=1), formula)


@cache
def _backward_rows(biased: bool) -> Rows:
    def formula(p: Parameters, row: Row, x: Expr, of_weights: Expr, *rest: Expr) -> list[Expr]:
        *bias, stats, along = rest
        scores = x * p.scaling
        for each in bias:
            scores = scores + each
        weights = row.exp(scores - stats)
        return [weights, weights * (of_weights - along) * p.scaling]

    # A row is a key's: two of the three products with these then take them as they lie.
    return Rows(Kind(full=2 + biased, columns=2, outputs=2), formula)


class _Head(NamedTuple):
    """One head of one example: its arrays, and its place among all."""

    queries: Array
    keys: Array
    values: Array
    place: tuple[int, int]


def _heads(op: Any, inputs: Sequence[Array]) -> Iterator[_Head]:
    views = op.views(inputs)
    for place in np.ndindex(views[0].shape[:2]):
        queries, keys, values = (np.ascontiguousarray(view[place]) for view in views)
        yield _Head(queries, keys, values, (place[0], place[1]))


def _bias(op: Any, inputs: Sequence[Array], head: _Head, part: slice) -> list[Array]:
    """Numbers to add to some rows of a head's products, if any."""
    if not op.biased:
        return []
    bias = inputs[-1]
    example, number = (at if count > 1 else 0 for at, count in zip(head.place, bias.shape[:2], strict=True))
    return [bias[example, number, part]]


def _parts(queries: int, keys: int) -> Iterator[slice]:
    step = max(_QUERIES, _BLOCK // max(1, keys))
    for start in range(0, queries, step):
        yield slice(start, min(start + step, queries))


def _memory(run: Run, slot: str, *shape: int, dtype: DType = FLOAT32) -> Array:
    """Memory for the products of some queries."""
    return scratch(run, f"attention's {slot}", shape, dtype)


def _factor(run: Run, slot: str, summed: Array, dtype: DType) -> Array:
    """Memory for what follows from sums, to be multiplied again: their own in float32."""
    return summed if dtype == FLOAT32 else _memory(run, slot, *summed.shape, dtype=dtype)


def _suits(inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    dtype = inputs[0].dtype
    return _computes(dtype) and all(array.dtype in (dtype, FLOAT32) for array in (*inputs, *outputs))


@kernel("cpu", "_fused_attention")
def attention(op: FusedAttention, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """The forward."""
    rows, out, dtype = _forward_rows(op.biased), op.facing(outputs[0]), inputs[0].dtype
    if not _suits(inputs, outputs) or not rows.is_ready():
        op.forward(run, inputs, outputs)
        return
    for head in _heads(op, inputs):
        made = np.empty((len(head.queries), head.values.shape[1]), np.float32)
        stats = np.empty((len(head.queries), 1), np.float32)
        for part in _parts(len(head.queries), len(head.keys)):
            scores = _memory(run, "scores", part.stop - part.start, len(head.keys))
            summed(run, head.queries[part], head.keys.T, scores)
            given = [scores, *map(np.ascontiguousarray, _bias(op, inputs, head, part))]
            weights = _factor(run, "weights", scores, dtype)
            if not rows.run(_Scaled(op.scale), (*scores.shape, 1), given, [weights, stats[part]]):
                op.forward(run, inputs, outputs)
                return
            summed(run, weights, head.values, made[part])
        out[head.place] = made
        if op.differentiable:
            outputs[1][head.place] = stats


@kernel("cpu", "_backward_fused_attention")
def backward(op: BackwardFusedAttention, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """The gradients."""
    rows, dtype = _backward_rows(op.biased), inputs[3].dtype
    if not _suits(inputs, outputs) or not rows.is_ready():
        op.forward(run, inputs, outputs)
        return
    heads, outs, stats, made = op.facing(inputs[0]), op.facing(inputs[1]), inputs[2], op.views(outputs)
    for head in _heads(op, inputs[3:]):
        of_out, out = (np.ascontiguousarray(each[head.place]) for each in (heads, outs))
        along = np.einsum("ij,ij->i", wide(of_out), wide(out))
        of_row = np.ascontiguousarray(stats[head.place][:, 0])
        of_queries, keys = np.empty(head.queries.shape, FLOAT32), np.ascontiguousarray(head.keys.T)
        of_keys, of_values, more_keys, more_values = (
            np.zeros(each.shape, FLOAT32) for each in (head.keys, head.values) * 2
        )
        for part in _parts(len(head.queries), len(head.keys)):
            shape = (len(head.keys), part.stop - part.start)
            scores, gradient = (_memory(run, slot, *shape) for slot in ("scores", "gradient"))
            summed(run, head.keys, head.queries[part].T, scores)
            summed(run, head.values, of_out[part].T, gradient)
            bias = [np.ascontiguousarray(each.T) for each in _bias(op, inputs, head, part)]
            given = [scores, gradient, *bias, of_row[part], along[part]]
            weights, of_scores = _factor(run, "weights", scores, dtype), _factor(run, "of scores", gradient, dtype)
            if not rows.run(_Scaled(op.scale), (*shape, 1), given, [weights, of_scores]):
                op.forward(run, inputs, outputs)
                return
            turned = _memory(run, "queries", len(keys), shape[1])
            summed(run, keys, of_scores, turned)
            of_queries[part] = turned.T
            summed(run, of_scores, head.queries[part], more_keys)
            summed(run, weights, of_out[part], more_values)
            of_keys += more_keys
            of_values += more_values
        for view, each in zip(made, (of_queries, of_keys, of_values), strict=True):
            view[head.place] = each


def _takes(op: Any, dtype: DType) -> bool:
    return _computes(dtype)


attention.takes = backward.takes = _takes  # type: ignore[attr-defined]
