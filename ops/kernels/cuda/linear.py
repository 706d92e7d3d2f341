"""Fused FullyConnected: cuBLAS's product, and one kernel for bias, addend and activation."""

from __future__ import annotations

from collections.abc import Sequence

from flowmx.ops.compiled.fused_layers import FusedFullyConnected
from flowmx.ops.kernels.cuda.convolution import finish
from flowmx.ops.nn.linear import as_matrix, multiply
from flowmx.ops.registry.kernels import kernel
from flowmx.ops.registry.operators import Array, Run


@kernel("gpu", "_fused_FullyConnected")
def fully_connected(op: FusedFullyConnected, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Compute the forward of a fused FullyConnected."""
    parts, out = op.parts(inputs), outputs[0]
    # The addend may share the output's memory.
    result = run.xp.empty(out.shape, out.dtype) if parts.addend is not None else out
    multiply(run, as_matrix(parts.data, op.flatten), parts.weight.T, as_matrix(result, op.flatten))
    if not finish(op, run, parts, result, out):
        op.forward(run, inputs, outputs)
