"""FullyConnected with what is fused into it: cuBLAS's product, and one kernel for all that follows."""

from __future__ import annotations

from collections.abc import Sequence

from flowmx.ops.compiled.fused import FusedFullyConnected
from flowmx.ops.kernels.cuda.convolution import finish
from flowmx.ops.nn.linear import as_matrix, multiply
from flowmx.ops.registry.operators import Array, Run, kernel


@kernel("gpu", "_fused_FullyConnected")
def fully_connected(op: FusedFullyConnected, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """The forward, with what is fused into it."""
    parts, out = op.parts(inputs), outputs[0]
    # The addend may be where the output is.
    made = run.xp.empty(out.shape, out.dtype) if parts.addend is not None else out
    multiply(run, as_matrix(parts.data, op.flatten), parts.weight.T, as_matrix(made, op.flatten))
    if not finish(op, run, parts, made, out):
        op.forward(run, inputs, outputs)
