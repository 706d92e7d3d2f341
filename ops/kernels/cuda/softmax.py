"""Softmax and its kin with their gradients, along the last axis; SoftmaxOutput; L2Normalization."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from flowmx.ops.formulas.expressions import (
    Expr,
    Parameters,
    equal,
    not_equal,
    one_if,
    parameter,
    placeholder,
    trunc,
    where,
)
from flowmx.ops.kernels.cuda.elementwise import Loop
from flowmx.ops.kernels.cuda.layouts import plainly
from flowmx.ops.kernels.cuda.rows import Row, Rows
from flowmx.ops.kernels.llvm.normalization import l2
from flowmx.ops.kernels.llvm.rows import Formula, Kind
from flowmx.ops.kernels.llvm.softmax import FORMULAS, PLAIN, Of, Scaled, around, merged, softmax
from flowmx.ops.nn.common import computing_dtype
from flowmx.ops.nn.output import BackwardSoftmaxOutput
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Operator, Run, kernel

Shape = tuple[int, int, int]
"""(outer, length, inner), with the axis that is reduced in the middle."""

_MOST_CLASSES = 1 << 24
"""Class numbers below this are float32's too."""


@cache
def _rows(formula: Formula, full: int, singles: int, *dtypes: DType) -> Rows:
    return Rows(Kind(full=full, singles=singles), formula, dtypes)


def _run(
    run: Run, formula: Formula, p: Any, shape: Shape, full: Sequence[Array], out: Array,
    singles: Sequence[Array] = (),
) -> bool:  # fmt: skip
    """Launch a formula on arrays of this shape; False, and nothing is done, where a plain forward must do it."""
    inputs = [*full, *singles]
    rows = _rows(formula, len(full), len(singles), *[each.dtype for each in (*inputs, out)])
    return shape[2] == 1 and rows.run(run.xp, p, shape[1], inputs, [out])


def _register(
    name: str, formula: Formula, full: int, p_of: Callable[[Any], Any], shape_of: Callable[..., Shape]
) -> None:
    """The kernel of an operator.

    Args:
        name: the operator's.
        formula: what it computes.
        full: how many of its inputs the formula takes.
        p_of: what has the formula's parameters, of the operator.
        shape_of: how to see the arrays, of the operator and its first input.
    """

    @kernel("gpu", name)
    def compute(op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        whole = not getattr(op, "use_length", False)
        if not (whole and _run(run, formula, p_of(op), shape_of(op, inputs[0]), inputs[:full], outputs[0])):
            plainly(op, run, inputs, outputs)


def _scaled(of: Of) -> Callable[[Any], Scaled]:
    return lambda op: Scaled(of.scaling(op))


def _norm_shape(op: Any, x: Array) -> Shape:
    if op.mode == "channel":
        return around(x.shape, 1)
    axes = 1 if op.mode == "instance" else 2
    return math.prod(x.shape[:axes]), math.prod(x.shape[axes:]), 1


for _name, _of in FORMULAS.items():
    _register(_name, _of.formula, _of.full, _scaled(_of), lambda op, x: around(x.shape, op.axis))
_register("SoftmaxActivation", softmax, 1, lambda op: PLAIN, lambda op, x: around(x.shape, op.axis()))
_register("SoftmaxOutput", softmax, 1, lambda op: PLAIN, lambda op, x: merged(op.axes(x), x.shape))
_register("L2Normalization", l2, 1, lambda op: op, _norm_shape)


# -- SoftmaxOutput's gradient ------------------------------------------------------------------------------


class _Numbers(NamedTuple):
    """The parameters of the formulas below.

    Attributes:
        here, elsewhere: what the output is compared with, at the label and at other classes.
        ignored: the label that gives no gradient.
        factor: of the gradient.
    """

    here: float
    elsewhere: float
    ignored: float
    factor: float


@cache
def _from_classes(ignores: bool, counts: bool, headed: bool) -> Formula:
    """The gradient by class numbers.

    Args:
        ignores: whether a label may be ignored.
        counts: whether it is divided by the valid labels, a further input.
        headed: whether it is multiplied by the head, a further input.
    """

    def formula(p: Parameters, row: Row, y: Expr, *given: Expr) -> Expr:
        head, (label, *counted) = given[:headed], given[headed:]
        step = y - where(equal(row.column, trunc(label)), p.here, p.elsewhere)
        if ignores:
            step = step * one_if(not_equal(label, p.ignored))
        step = step / counted[0] * p.factor if counts else step * p.factor
        return step * head[0] if headed else step

    return formula


@cache
def _from_probabilities(*dtypes: DType) -> Loop:
    """The gradient by probabilities: of the output, the label and perhaps the head."""
    y, label, *head = map(placeholder, range(len(dtypes) - 1))
    step = (y - label) * parameter("grad_scale")
    return Loop([step * head[0] if head else step], dtypes)


def _by_probabilities(op: BackwardSoftmaxOutput, run: Run, inputs: Sequence[Array], out: Array) -> bool:
    arrays = [*inputs, out]
    loop = _from_probabilities(*[each.dtype for each in arrays])
    return bool(loop.is_exact and out.size and loop.run(run.xp, [op.grad_scale], arrays))


def _by_classes(op: BackwardSoftmaxOutput, run: Run, inputs: Sequence[Array], out: Array) -> bool:
    (y, label, *head), xp = inputs, run.xp
    outer, length, inner = merged(op.axes(y), y.shape)
    if length > _MOST_CLASSES:
        return False
    dtype = computing_dtype(y.dtype)
    alpha = 0.0 if op.multi_output else op.smooth_alpha
    factor = op.grad_scale / outer if op.normalization == "batch" else op.grad_scale
    p = _Numbers(1 - alpha, alpha / max(1, length - 1), op.ignore_label, factor)
    counts = op.normalization == "valid"
    singles = [label.astype(dtype, copy=False), *([op.counted(xp, label, dtype)] if counts else [])]
    formula = _from_classes(op.use_ignore, counts, bool(head))
    return _run(run, formula, p, (outer, length, inner), [y, *head], out, singles)


@kernel("gpu", "_backward_SoftmaxOutput")
def _backward(op: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    assert isinstance(op, BackwardSoftmaxOutput)
    by = _by_probabilities if inputs[0].shape == inputs[1].shape else _by_classes
    if not by(op, run, inputs, outputs[0]):
        plainly(op, run, inputs, outputs)
