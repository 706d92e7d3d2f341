"""LayerNorm with its gradients, and L2Normalization: each row is normalized by its statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowmx.ops.formulas.expressions import Expr, Parameters, sqrt
from flowmx.ops.kernels.llvm.row_loops import Kind, Row, Rows
from flowmx.ops.kernels.llvm.softmax import MIN_SIZE, OfRows, around, bound_rows, computed, suits, takes
from flowmx.ops.registry.kernels import kernel, register_kernel
from flowmx.ops.registry.operators import Array, Bound, Form, Run

if TYPE_CHECKING:
    from flowmx.ops.nn.normalization.l2 import L2Normalization
    from flowmx.ops.nn.normalization.layer_norm import LayerNorm


def layer_norm(p: Parameters, row: Row, x: Expr, gamma: Expr, beta: Expr) -> tuple[Expr, ...]:
    """Return the formulas of the output, the mean and √(var + eps)."""
    mean = row.sum(x) / row.length
    centred = x - mean
    deviation = sqrt(row.sum(centred * centred) / row.length + p.eps)
    return centred * (1.0 / deviation) * gamma + beta, mean, deviation


def backward_layer_norm(
    p: Parameters, row: Row, head: Expr, x: Expr, gamma: Expr, mean: Expr, deviation: Expr
) -> tuple[Expr, ...]:
    """Return the formulas of the data's gradient, and of the terms of the gradients of gamma and beta."""
    inverse = 1.0 / deviation
    hat = (x - mean) * inverse
    scaled = head * gamma
    along, across = row.sums(scaled * hat, scaled)
    step = (scaled - across / row.length - hat * (along / row.length)) * inverse
    return step, head * hat, head


_forward = Rows(Kind(full=1, columns=2, outputs=1, results=2), layer_norm)
_backward = Rows(Kind(full=2, columns=1, singles=2, outputs=1, totals=2), backward_layer_norm)


register_kernel("cpu", "LayerNorm", OfRows(_forward, 3, lambda op, shape: (op, around(shape, op.axis))))


def _bind_backward(op: LayerNorm, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> Bound | None:
    shape, dtypes = around(out_forms[0][0], op.axis), [dtype for _, dtype in (*in_forms, *out_forms)]
    if shape[2] != 1 or math.prod(shape) < MIN_SIZE or not all(map(computed, dtypes)):
        return None
    return bound_rows(_backward, op, shape, dtypes, op.forward)


@kernel("cpu", "_backward_LayerNorm", bind=_bind_backward, only_native=True)
def _backward_layer_norm_kernel(op: LayerNorm, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    out = outputs[0]
    shape = around(out.shape, op.axis)
    # Totals over rows are supported only for rows along the last axis.
    fast = shape[2] == 1 and out.size >= MIN_SIZE and suits(*inputs, *outputs)
    if not (fast and _backward.run(op, shape, inputs, outputs)):
        op.forward(run, inputs, outputs)


def l2(p: Parameters, row: Row, x: Expr) -> Expr:
    """Divide each element by the row's Euclidean norm."""
    return x * (1.0 / sqrt(row.sum(x * x) + p.eps))


_l2_rows = Rows(Kind(), l2)


@kernel("cpu", "L2Normalization", takes=takes, only_native=True)
def _l2_normalization(op: L2Normalization, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    x, out = inputs[0], outputs[0]
    if op.mode == "channel":
        shape = around(x.shape, 1)
    else:
        axes = 1 if op.mode == "instance" else 2
        shape = (math.prod(x.shape[:axes]), math.prod(x.shape[axes:]), 1)
    fast = x.size >= MIN_SIZE and suits(x, out)
    if not (fast and _l2_rows.run(op, shape, [x], [out])):
        op.forward(run, inputs, outputs)
