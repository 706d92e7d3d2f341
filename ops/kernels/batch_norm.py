"""BatchNorm by compiled loops, otherwise by oneDNN, otherwise by the operator's forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowmx.ops.kernels.llvm import batch_norm as loops
from flowmx.ops.kernels.onednn import normalization as onednn
from flowmx.ops.kernels.onednn.kernel import run_fallback
from flowmx.ops.kernels.onednn.layouts import FLOATS
from flowmx.ops.nn.normalization.batch_norm import BatchNorm
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.kernels import kernel
from flowmx.ops.registry.operators import Array, Run

if TYPE_CHECKING:
    from flowmx.ops.nn.normalization.batch_norm import BackwardBatchNorm


def _takes(op: object, dtype: DType) -> bool:
    return dtype in FLOATS


def _forward(op: BatchNorm, run: Run, inputs: Sequence[Array], outputs: Sequence[Array], relu: bool) -> None:
    if not (loops.forward(op, run, inputs, outputs, relu) or onednn.batch_norm(op, run, inputs, outputs, relu)):
        run_fallback(op, run, inputs, outputs)


@kernel("cpu", "BatchNorm", takes=_takes)
def _batch_norm(op: BatchNorm, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    _forward(op, run, inputs, outputs, relu=False)


@kernel("cpu", "_relu_BatchNorm", takes=_takes)
def _batch_norm_relu(op: BatchNorm, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    _forward(op, run, inputs, outputs, relu=True)


@kernel("cpu", "_backward_BatchNorm", takes=_takes)
def _backward_batch_norm(op: BackwardBatchNorm, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    if not (loops.backward(op, inputs, outputs) or onednn.backward_batch_norm(op, inputs, outputs)):
        run_fallback(op, run, inputs, outputs)
    elif op.fix_gamma:
        outputs[1].fill(0)
