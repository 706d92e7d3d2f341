"""Lookups of rows, whose gradients are stored rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowmx.ops.registry.operators import Run, lookup
from flowmx.ops.sparse.content import INDEX, Array, Rows
from flowmx.ops.sparse.parts import gathered
from flowmx.ops.sparse.ways import Call, Raw, Way, run_kernel, way


@way("Embedding", "_contrib_SparseEmbedding")
def _embedding(call: Call) -> Way | None:
    op, shape = call.op, call.shapes[1]
    if call.only == "default":
        gradient = _rows_of_gradient if op.traits.sparse else None
        return Way("default", lambda run, index, weight: _looked_up(run, index, weight), gradient)
    if call.stypes != ("default", "row_sparse"):
        return None

    def compute(run: Run, index: Array, weight: Rows) -> Raw:
        rows = clipped(index, shape[0])
        return gathered(weight, rows.ravel()).reshape(*rows.shape, shape[1])

    return Way("default", compute, _rows_of_gradient)


_PLAIN = lookup("take").create()


def _looked_up(run: Run, index: Array, weight: Array) -> Array:
    out = np.empty((*index.shape, *weight.shape[1:]), weight.dtype)
    if out.size:
        run_kernel(_PLAIN, run, [weight, index], out)
    return out


def _rows_of_gradient(F: Any, inputs: Any, outputs: Any, heads: Sequence[Any]) -> list[Any]:
    weight = inputs.unchecked(1)
    return [None, F.op("_backward_embedding", heads[0], inputs[0], input_dim=weight.shape[0])]


@way("_backward_embedding")
def _embedding_gradient(call: Call) -> Way | None:
    count: int = call.op.input_dim  # type: ignore[attr-defined]
    width = call.shapes[0][-1]
    if set(call.stypes) != {"default"}:
        return None
    return Way("row_sparse", lambda run, head, index: summed(head.reshape(-1, width), clipped(index, count).ravel()))


def clipped(index: Array, count: int) -> Array:
    """Row numbers, those outside taken to the nearest row."""
    return index.astype(INDEX).clip(0, count - 1)


def summed(values: Array, rows: Array) -> Rows:
    """The rows that values belong to, each the sum of its values in their order."""
    order = np.argsort(rows, kind="stable")
    placed = rows[order]
    if not len(placed):
        return Rows(values, placed)
    first = np.flatnonzero(np.concatenate(([True], placed[1:] != placed[:-1])))
    return Rows(np.add.reduceat(values[order], first, axis=0).astype(values.dtype, copy=False), placed[first])
