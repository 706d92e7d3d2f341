"""RMSNorm with its gradients: each row is divided by the root of the mean of its squares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowmx.ops.formulas.expressions import Expr, Parameters, sqrt
from flowmx.ops.kernels.llvm.row_loops import Kind, Row, Rows
from flowmx.ops.kernels.llvm.softmax import MIN_SIZE, OfRows, around, bound_rows, computed, suits
from flowmx.ops.registry.kernels import kernel, register_kernel
from flowmx.ops.registry.operators import Array, Bound, Form, Run

if TYPE_CHECKING:
    from flowmx.ops.nn.normalization.rms_norm import RMSNorm


def rms_norm(p: Parameters, row: Row, x: Expr, gamma: Expr) -> tuple[Expr, ...]:
    """Return the formulas of the output and of √(mean(x²) + eps)."""
    root = sqrt(row.sum(x * x) / row.length + p.eps)
    return x * (1.0 / root) * gamma, root


def backward_rms_norm(p: Parameters, row: Row, head: Expr, x: Expr, gamma: Expr, root: Expr) -> tuple[Expr, ...]:
    """Return the formulas of the data's gradient, and of the terms of gamma's gradient."""
    inverse = 1.0 / root
    hat = x * inverse
    scaled = head * gamma
    return (scaled - hat * (row.sum(scaled * hat) / row.length)) * inverse, head * hat


_backward = Rows(Kind(full=2, columns=1, singles=1, outputs=1, totals=1), backward_rms_norm)

register_kernel(
    "cpu",
    "RMSNorm",
    OfRows(
        Rows(Kind(full=1, columns=1, outputs=1, results=1), rms_norm), 2, lambda op, shape: (op, around(shape, op.axis))
    ),
)


def _bind_backward(op: RMSNorm, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> Bound | None:
    shape, dtypes = around(out_forms[0][0], op.axis), [dtype for _, dtype in (*in_forms, *out_forms)]
    if shape[2] != 1 or math.prod(shape) < MIN_SIZE or not all(map(computed, dtypes)):
        return None
    return bound_rows(_backward, op, shape, dtypes, op.forward)


@kernel("cpu", "_backward_RMSNorm", bind=_bind_backward, only_native=True)
def _backward_kernel(op: RMSNorm, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    out = outputs[0]
    shape = around(out.shape, op.axis)
    # Totals over rows are supported only for rows along the last axis.
    fast = shape[2] == 1 and out.size >= MIN_SIZE and suits(*inputs, *outputs)
    if not (fast and _backward.run(op, shape, inputs, outputs)):
        op.forward(run, inputs, outputs)
