"""RMSNorm and its gradients along the last axis: row kernels, and sums over the rows for gamma."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from flowmx.ops.formulas.expressions import placeholder
from flowmx.ops.kernels.cuda.channel_sums import ChannelView, Sums
from flowmx.ops.kernels.cuda.layouts import run_fallback
from flowmx.ops.kernels.cuda.row_kernels import Rows
from flowmx.ops.kernels.llvm.rms_norm import backward_rms_norm, rms_norm
from flowmx.ops.kernels.llvm.row_loops import Kind
from flowmx.ops.kernels.llvm.softmax import around
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.kernels import kernel
from flowmx.ops.registry.operators import Array, Run

if TYPE_CHECKING:
    from flowmx.ops.nn.normalization.rms_norm import RMSNorm


@cache
def _forward_rows(*dtypes: DType) -> Rows:
    """Return the kernel of output and root; inputs: data and gamma."""
    return Rows(Kind(full=1, columns=1, outputs=1, results=1), rms_norm, dtypes)


@cache
def _gradient(*dtypes: DType) -> Rows:
    """Return the kernel of the data's gradient; inputs: head, data, gamma and root."""
    return Rows(Kind(full=2, columns=1, singles=1, outputs=1), backward_rms_norm, dtypes)


@cache
def _sums(head: DType, data: DType, root: DType, gamma_grad: DType) -> Sums:
    """Return the kernel of gamma's gradient; inputs: head, data and root."""
    terms = [placeholder("x0") * (placeholder("x1") / placeholder("s0"))]
    return Sums(terms, [placeholder("t0")], [head, data], [], [gamma_grad], [root])


@kernel("gpu", "RMSNorm")
def _forward(op: RMSNorm, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    _, length, inner = around(inputs[0].shape, op.axis)
    rows = _forward_rows(*[each.dtype for each in (*inputs, *outputs)])
    if not (inner == 1 and rows.run(run.xp, op, length, inputs, outputs)):
        run_fallback(op, run, inputs, outputs)


@kernel("gpu", "_backward_RMSNorm")
def _backward(op: RMSNorm, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    inputs, (out, gamma_grad) = [*map(run.xp.ascontiguousarray, inputs)], outputs
    head, data, _, root = inputs
    count, length, inner = around(data.shape, op.axis)
    rows = _gradient(*[each.dtype for each in (*inputs, out)])
    sums = _sums(*[each.dtype for each in (head, data, root, gamma_grad)])
    # The sum first: the gradient may overwrite its inputs.
    is_done = (
        inner == 1 and bool(data.size) and sums.is_exact and gamma_grad.flags.c_contiguous
        and sums.run(run.xp, ChannelView(count, length, 1, last=True), [], [head, data], [], [gamma_grad], [root])
        and rows.run(run.xp, op, length, inputs, [out])
    )  # fmt: skip
    if not is_done:
        run_fallback(op, run, inputs, outputs)
