"""Attention by cuDNN: one kernel for the whole, in which the products of all pairs of positions stay on the chip.

Queries, keys, values and their gradients are read and written where they lie, in whatever order of axes. Only a size
whose elements are not contiguous, or an array off the grid of 16 bytes, is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowmx.ops.compiled.fused_attention import BackwardFusedAttention, FusedAttention
from flowmx.ops.kernels.cuda import dnn
from flowmx.ops.registry.dtypes import NAMES, DType
from flowmx.ops.registry.operators import Array, Run, kernel

_TYPES = ("float16", "bfloat16")
_MOST = 128
"""The longest vectors that all GPUs with these kernels take, forward and backward."""
_GRID = 16
"""Bytes at whose multiples rows begin."""
_BLOCKS = 1 << 16
"""More blocks than a GPU launches along the axes that are batch and heads."""


def takes(dtype: DType, size: int) -> bool:
    """Tell whether cuDNN is installed and computes attention on such vectors.

    Args:
        dtype: their element type.
        size: their length.
    """
    return NAMES.get(dtype) in _TYPES and 0 < size <= _MOST and size * dtype.itemsize % _GRID == 0 and dnn.is_there()


@kernel("gpu", "_fused_attention")
def attention(op: FusedAttention, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """The forward."""

    def build(graph: Any, given: list[Any]) -> Sequence[Any]:
        named = dict(zip(("q", "k", "v", "bias"), given, strict=False))
        made = graph.sdpa(**named, attn_scale=op.scale, is_inference=not op.differentiable)
        return list(made[: len(outputs)])

    given, made = _operands(op, inputs), [op.facing(outputs[0]), *outputs[1:]]
    if not _compute(run.xp, build, ("sdpa", op.scale, len(outputs)), given, made):
        op.forward(run, inputs, outputs)


@kernel("gpu", "_backward_fused_attention")
def backward(op: BackwardFusedAttention, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """The gradients."""

    def build(graph: Any, given: list[Any]) -> Sequence[Any]:
        named = dict(zip(("dO", "o", "stats", "q", "k", "v", "bias"), given, strict=False))
        return list(graph.sdpa_backward(**named, attn_scale=op.scale))

    head, out, stats, *rest = inputs
    given = [op.facing(head), op.facing(out), stats, *_operands(op, rest)]
    if not _compute(run.xp, build, ("sdpa_backward", op.scale), given, op.views(outputs)):
        op.forward(run, inputs, outputs)


def _operands(op: Any, inputs: Sequence[Array]) -> list[Array]:
    """Queries, keys, values and the bias, each with four axes."""
    return [*op.views(inputs), *inputs[len(op.parts) :]]


def _compute(
    xp: Any, build: Callable[..., Sequence[Any]], key: Any, inputs: Sequence[Array], outputs: Sequence[Array]
) -> bool:
    """Compute a graph; False, and nothing is done, where cuDNN cannot."""
    batch, heads, _, size = inputs[0].shape
    given = [each if _is_on_grid(each) else each.copy() for each in inputs]
    if not (takes(inputs[0].dtype, size) and max(batch, heads) < _BLOCKS and all(map(_is_on_grid, [*given, *outputs]))):
        return False
    seen, made = (tuple([_tensor(each) for each in arrays]) for arrays in (given, outputs))
    asked = dnn.Asked(build, key, seen, made, limit=dnn.NO_LIMIT, tune=False)
    return dnn.run(xp, asked, [*given, *outputs])


def _is_on_grid(array: Array) -> bool:
    """Tell whether the last axis is contiguous and every row starts at a multiple of 16 bytes."""
    *rows, last = array.strides
    if array.shape[-1] == 1:  # of statistics: one number a row
        return bool(array.flags.c_contiguous)
    return last == array.itemsize and not any(step % _GRID for step in rows) and not array.data.ptr % _GRID


def _tensor(array: Array) -> dnn.Tensor:
    return dnn.Tensor(array.shape, tuple([step // array.itemsize for step in array.strides]), array.dtype)
