"""Attention by cuDNN: one kernel, in which the products of all pairs of positions stay on the chip.

Queries, keys, values and their gradients are read and written in place, with any order of axes. Only arrays whose last
axis is not contiguous, or that are not aligned to 16 bytes, are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowmx.devices.cuda.memory import address_of
from flowmx.ops.compiled.fused_attention import BackwardFusedAttention, FusedAttention
from flowmx.ops.kernels.cuda import dnn
from flowmx.ops.registry.dtypes import NAMES, DType
from flowmx.ops.registry.kernels import kernel
from flowmx.ops.registry.operators import Array, Run

_TYPES = ("float16", "bfloat16")
_LONGEST = 128
"""The longest vectors that all GPUs with these kernels support, forward and backward."""
_GRID = 16
"""The alignment of rows in bytes."""
_BLOCKS = 1 << 16
"""An exclusive limit for the blocks along the axes of batch and heads."""


def takes(dtype: DType, size: int) -> bool:
    """Return whether cuDNN is installed and computes attention on vectors of this kind.

    Args:
        dtype: the element type.
        size: the length of the vectors.
    """
    return (
        NAMES.get(dtype) in _TYPES
        and 0 < size <= _LONGEST
        and size * dtype.itemsize % _GRID == 0
        and dnn.is_installed()
    )


@kernel("gpu", "_fused_attention")
def attention(op: FusedAttention, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Compute the forward."""

    def build(graph: Any, inputs_: Sequence[object]) -> Sequence[Any]:
        tensors = dict(zip(("q", "k", "v", "bias"), inputs_, strict=False))
        results = graph.sdpa(**tensors, attn_scale=op.scale, is_inference=not op.differentiable)
        return list(results[: len(outputs)])

    inputs_, results = _operands(op, inputs), [op.heads_first(outputs[0]), *outputs[1:]]
    if not _compute(run.xp, build, ("sdpa", op.scale, len(outputs)), inputs_, results):
        op.forward(run, inputs, outputs)


@kernel("gpu", "_backward_fused_attention")
def backward(op: BackwardFusedAttention, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Compute the gradients."""

    def build(graph: Any, operands: Sequence[object]) -> Sequence[Any]:
        tensors = dict(zip(("dO", "o", "stats", "q", "k", "v", "bias"), operands, strict=False))
        return list(graph.sdpa_backward(**tensors, attn_scale=op.scale))

    head, out, stats, *rest = inputs
    operands = [op.heads_first(head), op.heads_first(out), stats, *_operands(op, rest)]
    if not _compute(run.xp, build, ("sdpa_backward", op.scale), operands, op.views(outputs)):
        op.forward(run, inputs, outputs)


def _operands(op: Any, inputs: Sequence[Array]) -> list[Array]:
    """Return queries, keys, values and the bias, each with four axes."""
    return [*op.views(inputs), *inputs[len(op.parts) :]]


def _compute(
    xp: object, build: Callable[..., Sequence[Any]], key: object, inputs: Sequence[Array], outputs: Sequence[Array]
) -> bool:
    """Compute a graph; return False, without effect, if cuDNN cannot."""
    batch, heads, _, size = inputs[0].shape
    arrays = [each if _is_aligned(each) else each.copy() for each in inputs]
    if not (
        takes(inputs[0].dtype, size) and max(batch, heads) < _BLOCKS and all(map(_is_aligned, [*arrays, *outputs]))
    ):
        return False
    in_tensors, out_tensors = (tuple([_tensor(each) for each in group]) for group in (arrays, outputs))
    request = dnn.GraphRequest(build, key, in_tensors, out_tensors, limit=dnn.NO_LIMIT, tune=False)
    return dnn.run(xp, request, [*arrays, *outputs])


def _is_aligned(array: Array) -> bool:
    """Return whether the last axis is contiguous and every row is aligned to 16 bytes."""
    *rows, last = array.strides
    if array.shape[-1] == 1:  # statistics: one number per row
        return bool(array.flags.c_contiguous)
    return last == array.itemsize and not any(step % _GRID for step in rows) and not address_of(array) % _GRID


def _tensor(array: Array) -> dnn.Tensor:
    return dnn.Tensor(array.shape, tuple([step // array.itemsize for step in array.strides]), array.dtype)
