"""Attention on a CPU: in prediction by products over all heads of some samples, otherwise by blocks of queries.

The products read the heads of queries, keys and values, and write the heads of the output, without copies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowmx.ops.compiled.fused_attention import FusedAttention
from flowmx.ops.kernels.llvm import attention as blocks
from flowmx.ops.kernels.onednn.layouts import geometry, pointer, suits
from flowmx.ops.kernels.onednn.matmul import Product
from flowmx.ops.kernels.onednn.work import plan
from flowmx.ops.kernels.recording import mark_incomplete, use_memory
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.kernels import kernel
from flowmx.ops.registry.operators import Array, Run

_SCORES = 1 << 18
"""The scores of some samples, which stay in the second-level cache."""


def _takes(op: object, dtype: DType) -> bool:
    return blocks.computes(dtype)


@kernel("cpu", FusedAttention.name, takes=_takes, only_native=True)
def _attention(op: FusedAttention, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    if not _compute_by_products(op, inputs, outputs):
        mark_incomplete()
        blocks.attention(op, run, inputs, outputs)


def _compute_by_products(op: FusedAttention, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    """Compute attention in prediction; return False, without effect, if the products do not support it."""
    if op.differentiable or op.biased:
        return False
    queries, keys, values = op.views(inputs)
    out = op.heads_first(outputs[0])
    (batch, heads, length, _), count = queries.shape, keys.shape[2]
    is_float = all(each.dtype == FLOAT32 for each in (queries, keys, values, out))
    if not is_float or length * count >= blocks.MIN_PAIRS or not suits(queries, keys, values, out):
        return False
    samples = max(1, min(batch, _SCORES // (heads * length * count)))
    scores = use_memory(np.empty((samples, heads, length, count), np.float32))
    stats = use_memory(np.empty((samples * heads * length, 1), np.float32))
    for start in range(0, batch, samples):
        part = slice(start, min(start + samples, batch))
        part_scores, transposed_keys = scores[: part.stop - start], keys[part].swapaxes(2, 3)
        first = plan(Product, geometry(queries[part]), geometry(transposed_keys), geometry(part_scores))
        last = plan(Product, geometry(part_scores), geometry(values[part]), geometry(out[part]))
        rows = part_scores.reshape(-1, count)
        if first is None or last is None or not blocks.weigh_is_ready():
            return False
        first(pointer(queries[part]), pointer(transposed_keys), pointer(part_scores))
        if not blocks.weigh(op.scale, rows, stats[: len(rows)]):
            return False
        last(pointer(part_scores), pointer(values[part]), pointer(out[part]))
    return True
