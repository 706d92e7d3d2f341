"""Attention on a CPU, some queries at a time: their products with all keys stay in the cache, and none is kept.

Memory follows the length, not its square. The gradient computes the products again, and weights from the logarithm of
each row's sum (Dao, "FlashAttention-2", 2023).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from flowmx.ops.compiled.fused_attention import BackwardFusedAttention, FusedAttention
from flowmx.ops.formulas.expressions import Expr, Parameters
from flowmx.ops.kernels.llvm.rows import Kind, Row, Rows
from flowmx.ops.math.products import matmul
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
    return dtype == FLOAT32 and pairs >= LEAST


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


def _memory(run: Run, slot: str, *shape: int) -> Array:
    """Memory for the products of some queries."""
    return scratch(run, f"attention's {slot}", shape, FLOAT32)


def _suits(*arrays: Array) -> bool:
    return all(array.dtype == FLOAT32 for array in arrays)


@kernel("cpu", "_fused_attention")
def attention(op: FusedAttention, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """The forward."""
    rows, out = _forward_rows(op.biased), op.facing(outputs[0])
    if not _suits(*inputs, *outputs) or not rows.is_ready():
        op.forward(run, inputs, outputs)
        return
    for head in _heads(op, inputs):
        made = np.empty((len(head.queries), head.values.shape[1]), np.float32)
        stats = np.empty((len(head.queries), 1), np.float32)
        for part in _parts(len(head.queries), len(head.keys)):
            scores = _memory(run, "scores", part.stop - part.start, len(head.keys))
            matmul(run, head.queries[part], head.keys.T, scores)
            given = [scores, *map(np.ascontiguousarray, _bias(op, inputs, head, part))]
            rows.run(_Scaled(op.scale), (*scores.shape, 1), given, [scores, stats[part]])
            matmul(run, scores, head.values, made[part])
        out[head.place] = made
        if op.differentiable:
            outputs[1][head.place] = stats


@kernel("cpu", "_backward_fused_attention")
def backward(op: BackwardFusedAttention, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """The gradients."""
    rows = _backward_rows(op.biased)
    if not _suits(*inputs, *outputs) or not rows.is_ready():
        op.forward(run, inputs, outputs)
        return
    heads, outs, stats, made = op.facing(inputs[0]), op.facing(inputs[1]), inputs[2], op.views(outputs)
    for head in _heads(op, inputs[3:]):
        of_out, out = (np.ascontiguousarray(each[head.place]) for each in (heads, outs))
        along = np.einsum("ij,ij->i", of_out, out)
        of_row = np.ascontiguousarray(stats[head.place][:, 0])
        of_queries, keys = np.empty_like(head.queries), np.ascontiguousarray(head.keys.T)
        of_keys, of_values = np.zeros_like(head.keys), np.zeros_like(head.values)
        more_keys, more_values = np.empty_like(head.keys), np.empty_like(head.values)
        for part in _parts(len(head.queries), len(head.keys)):
            shape = (len(head.keys), part.stop - part.start)
            weights, of_scores = (_memory(run, slot, *shape) for slot in ("scores", "gradient"))
            matmul(run, head.keys, head.queries[part].T, weights)
            matmul(run, head.values, of_out[part].T, of_scores)
            bias = [np.ascontiguousarray(each.T) for each in _bias(op, inputs, head, part)]
            given = [weights, of_scores, *bias, of_row[part], along[part]]
            rows.run(_Scaled(op.scale), (*shape, 1), given, [weights, of_scores])
            turned = _memory(run, "queries", len(keys), shape[1])
            matmul(run, keys, of_scores, turned)
            of_queries[part] = turned.T
            matmul(run, of_scores, head.queries[part], more_keys)
            matmul(run, weights, of_out[part], more_values)
            of_keys += more_keys
            of_values += more_values
        for view, each in zip(made, (of_queries, of_keys, of_values), strict=True):
            view[head.place] = each
