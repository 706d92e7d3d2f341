"""The fused product of a matrix and a vector: one pass over the matrix, at the speed of memory.

BLAS is as fast, but its threads keep spinning for a while on the cores that the next kernel needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from flowmx.ops.formulas.expressions import Expr, Parameters
from flowmx.ops.kernels.llvm.math_functions import relu
from flowmx.ops.kernels.llvm.row_loops import Kind, Row, Rows
from flowmx.ops.registry.operators import Array

ACTIVATIONS = ("", "relu")
"""Activations that can be fused with the product; empty for none."""


@cache
def _rows(scaled: bool, shifts: int, activation: str) -> Rows:
    def formula(p: Parameters, row: Row, weight: Expr, data: Expr, *singles: Expr) -> Expr:
        result = row.sum(weight * data)
        if scaled:
            result = result * singles[0]
        for shift in singles[scaled:]:
            result = result + shift
        return relu(result) if activation else result

    return Rows(Kind(full=1, columns=1, singles=scaled + shifts, outputs=0, results=1), formula)


def multiply(
    weight: Array,
    data: Array,
    out: Array,
    scale: Array | None = None,
    shifts: Sequence[Array] = (),
    activation: str = "",
) -> bool:
    """Compute ``out = activation(scale · (weight @ data) + Σ shifts)``; return False if it is not compiled yet.

    Args:
        weight: float32 (n, k), in C order.
        data: (k,).
        out: (n,); it may be one of the shifts.
        scale: (n,).
        shifts: each (n,).
        activation: one of ``ACTIVATIONS``.
    """
    rows = _rows(scale is not None, len(shifts), activation)
    singles = [*([] if scale is None else [scale]), *shifts]
    return rows.run(None, (*weight.shape, 1), [weight, data, *singles], [out])
