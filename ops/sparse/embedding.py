"""Embedding lookups, with gradients as stored rows."""

from __future__ import annotations

import numpy as np

from flowmx.ops.arrays.linear import shape_of
from flowmx.ops.registry.operators import Array, Run, lookup
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors
from flowmx.ops.sparse.content import INDEX, Rows
from flowmx.ops.sparse.dispatch import AnyContent, Call, SparseKernel, run_kernel, sparse_kernel
from flowmx.ops.sparse.slicing import gather_rows


@sparse_kernel("Embedding", "_contrib_SparseEmbedding")
def _embedding(call: Call) -> SparseKernel | None:
    op, shape = call.op, call.shapes[1]
    if call.common_stype == "default":
        gradient = _rows_of_gradient if op.traits.sparse else None
        return SparseKernel("default", lambda run, index, weight: _dense_lookup(run, index, weight), gradient)
    if call.stypes != ("default", "row_sparse"):
        return None

    def compute(run: Run, index: Array, weight: Rows) -> AnyContent:
        rows = clip_rows(index, shape[0])
        return gather_rows(weight, rows.ravel()).reshape(*rows.shape, shape[1])

    return SparseKernel("default", compute, _rows_of_gradient)


_PLAIN = lookup("take").create()


def _dense_lookup(run: Run, index: Array, weight: Array) -> Array:
    out = np.empty((*index.shape, *weight.shape[1:]), weight.dtype)
    if out.size:
        run_kernel(_PLAIN, run, [weight, index], out)
    return out


def _rows_of_gradient(F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
    weight = shape_of(inputs, 1)
    return [None, F.op("_backward_embedding", heads[0], inputs[0], input_dim=weight.shape[0])]


@sparse_kernel("_backward_embedding")
def _embedding_gradient(call: Call) -> SparseKernel | None:
    count: int = call.op.input_dim
    width = call.shapes[0][-1]
    if set(call.stypes) != {"default"}:
        return None
    return SparseKernel(
        "row_sparse", lambda run, head, index: sum_rows(head.reshape(-1, width), clip_rows(index, count).ravel())
    )


def clip_rows(index: Array, count: int) -> Array:
    """Return row numbers clipped to the range of rows."""
    return index.astype(INDEX).clip(0, count - 1)


def sum_rows(values: Array, rows: Array) -> Rows:
    """Return stored rows: for each distinct row, the sum of its values in order."""
    order = np.argsort(rows, kind="stable")
    sorted_rows = rows[order]
    if not len(sorted_rows):
        return Rows(values, sorted_rows)
    first = np.flatnonzero(np.concatenate(([True], sorted_rows[1:] != sorted_rows[:-1])))
    return Rows(np.add.reduceat(values[order], first, axis=0).astype(values.dtype, copy=False), sorted_rows[first])
