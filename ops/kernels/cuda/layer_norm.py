"""LayerNorm and its gradients along the last axis: row kernels, and sums over the rows for gamma and beta."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from flowmx.ops.formulas.expressions import placeholder
from flowmx.ops.kernels.cuda.channel_sums import ChannelView, Sums
from flowmx.ops.kernels.cuda.layouts import run_fallback
from flowmx.ops.kernels.cuda.row_kernels import Rows
from flowmx.ops.kernels.llvm.normalization import backward_layer_norm, layer_norm
from flowmx.ops.kernels.llvm.row_loops import Kind
from flowmx.ops.kernels.llvm.softmax import around
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.kernels import kernel
from flowmx.ops.registry.operators import Array, Run

if TYPE_CHECKING:
    from flowmx.ops.nn.normalization.layer_norm import LayerNorm


@cache
def _forward_rows(*dtypes: DType) -> Rows:
    """Return the kernel of output, mean and std; inputs: data, gamma and beta."""
    return Rows(Kind(full=1, columns=2, outputs=1, results=2), layer_norm, dtypes)


@cache
def _gradient(*dtypes: DType) -> Rows:
    """Return the kernel of the data's gradient; inputs: head, data, gamma, mean and std."""
    return Rows(Kind(full=2, columns=1, singles=2, outputs=1), backward_layer_norm, dtypes)


@cache
def _sums(head: DType, data: DType, mean: DType, std: DType, gamma_grad: DType, beta_grad: DType) -> Sums:
    """Return the kernel of the gradients of gamma and beta; inputs: head, data, mean and std."""
    terms = [placeholder("x0") * ((placeholder("x1") - placeholder("s0")) / placeholder("s1")), placeholder("x0")]
    totals = [placeholder("t0"), placeholder("t1")]
    return Sums(terms, totals, [head, data], [], [gamma_grad, beta_grad], [mean, std])


def forward(op: LayerNorm, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    """Compute LayerNorm; return False, without effect, if the kernel cannot."""
    _, length, inner = around(inputs[0].shape, op.axis)
    rows = _forward_rows(*[each.dtype for each in (*inputs, *outputs)])
    return inner == 1 and rows.run(run.xp, op, length, inputs, outputs)


def backward(op: LayerNorm, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    """Compute LayerNorm's gradients; return False if the kernels cannot, and the fallback must compute everything."""
    inputs, (out, *grads) = [*map(run.xp.ascontiguousarray, inputs)], outputs
    head, data, _, mean, std = inputs
    count, length, inner = around(data.shape, op.axis)
    rows = _gradient(*[each.dtype for each in (*inputs, out)])
    sums = _sums(*[each.dtype for each in (head, data, mean, std, *grads)])
    if inner != 1 or not data.size or not sums.is_exact or not all(each.flags.c_contiguous for each in grads):
        return False
    # The sums first: the gradient may overwrite their inputs.
    view = ChannelView(count, length, 1, last=True)
    has_sums = sums.run(run.xp, view, [], [head, data], [], grads, [mean, std])
    return has_sums and rows.run(run.xp, op, length, inputs, [out])


@kernel("gpu", "LayerNorm")
def _forward(op: LayerNorm, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    if not forward(op, run, inputs, outputs):
        run_fallback(op, run, inputs, outputs)


@kernel("gpu", "_backward_LayerNorm")
def _backward(op: LayerNorm, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    if not backward(op, run, inputs, outputs):
        run_fallback(op, run, inputs, outputs)
