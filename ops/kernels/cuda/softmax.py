"""Softmax, softmin and log_softmax with their gradients, along the last axis; SoftmaxOutput; L2Normalization."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

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
from flowmx.ops.kernels.cuda.layouts import run_fallback
from flowmx.ops.kernels.cuda.row_kernels import Row, Rows
from flowmx.ops.kernels.llvm.normalization import l2
from flowmx.ops.kernels.llvm.row_loops import Formula, Kind
from flowmx.ops.kernels.llvm.softmax import FORMULAS, PLAIN, Of, Scaled, around, merged, softmax
from flowmx.ops.nn.common import computing_dtype
from flowmx.ops.nn.output_layers import BackwardSoftmaxOutput
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.kernels import kernel
from flowmx.ops.registry.operators import Array, Operator, Run

if TYPE_CHECKING:
    from flowmx.ops.nn.normalization.l2 import L2Normalization

Shape = tuple[int, int, int]
"""(outer, length, inner), with the reduced axis in the middle."""

_MAX_CLASSES = 1 << 24
"""float32 represents all class numbers below this."""


@cache
def _rows(formula: Formula, full: int, singles: int, *dtypes: DType) -> Rows:
    return Rows(Kind(full=full, singles=singles), formula, dtypes)


def _run(
    run: Run, formula: Formula, p: object, shape: Shape, full: Sequence[Array], out: Array,
    singles: Sequence[Array] = (),
) -> bool:  # fmt: skip
    """Launch a formula on arrays of this shape; return False, without effect, if the fallback must run."""
    inputs = [*full, *singles]
    rows = _rows(formula, len(full), len(singles), *[each.dtype for each in (*inputs, out)])
    return shape[2] == 1 and rows.run(run.xp, p, shape[1], inputs, [out])


def _register(
    name: str, formula: Formula, full: int, p_of: Callable[[Any], Any], shape_of: Callable[..., Shape]
) -> None:
    """Register the kernel of an operator.

    Args:
        name: the operator's name.
        formula: its formula.
        full: the number of inputs that the formula reads.
        p_of: returns an object with the formula's parameters, from the operator.
        shape_of: returns the shape in which to view the arrays, from the operator and its first input.
    """

    @kernel("gpu", name)
    def compute(op: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        whole = not getattr(op, "use_length", False)
        if not (whole and _run(run, formula, p_of(op), shape_of(op, inputs[0]), inputs[:full], outputs[0])):
            run_fallback(op, run, inputs, outputs)


def _make_scaled(of: Of) -> Callable[[Any], Scaled]:
    return lambda op: Scaled(of.scaling(op))


def _norm_shape(op: L2Normalization, x: Array) -> Shape:
    if op.mode == "channel":
        return around(x.shape, 1)
    axes = 1 if op.mode == "instance" else 2
    return math.prod(x.shape[:axes]), math.prod(x.shape[axes:]), 1


for _name, _of in FORMULAS.items():
    _register(_name, _of.formula, _of.full, _make_scaled(_of), lambda op, x: around(x.shape, op.axis))
_register("SoftmaxActivation", softmax, 1, lambda op: PLAIN, lambda op, x: around(x.shape, op.axis()))
_register("SoftmaxOutput", softmax, 1, lambda op: PLAIN, lambda op, x: merged(op.axes(x), x.shape))
_register("L2Normalization", l2, 1, lambda op: op, _norm_shape)


# -- SoftmaxOutput's gradient ------------------------------------------------------------------------------


class _Numbers(NamedTuple):
    """The parameters of the formulas below.

    Attributes:
        here, elsewhere: the target of the output at the label and at other classes.
        ignored: the label without gradient.
        factor: the factor of the gradient.
    """

    here: float
    elsewhere: float
    ignored: float
    factor: float


@cache
def _from_classes(ignores: bool, counts: bool, headed: bool) -> Formula:
    """Return the formula of the gradient for labels that are class numbers.

    Args:
        ignores: whether a label may be ignored.
        counts: whether to divide by the number of valid labels, an additional input.
        headed: whether to multiply by the head gradient, an additional input.
    """

    def formula(p: Parameters, row: Row, y: Expr, *extra_inputs: Expr) -> Expr:
        head, (label, *label_count) = extra_inputs[:headed], extra_inputs[headed:]
        step = y - where(equal(row.column, trunc(label)), p.here, p.elsewhere)
        if ignores:
            step = step * one_if(not_equal(label, p.ignored))
        step = step / label_count[0] * p.factor if counts else step * p.factor
        return step * head[0] if headed else step

    return formula


@cache
def _from_probabilities(*dtypes: DType) -> Loop:
    """Return the loop of the gradient for labels that are probabilities; inputs: output, label and optionally head."""
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
    if length > _MAX_CLASSES:
        return False
    dtype = computing_dtype(y.dtype)
    alpha = 0.0 if op.multi_output else op.smooth_alpha
    factor = op.grad_scale / outer if op.normalization == "batch" else op.grad_scale
    p = _Numbers(1 - alpha, alpha / max(1, length - 1), op.ignore_label, factor)
    counts = op.normalization == "valid"
    singles = [label.astype(dtype, copy=False), *([op.valid_count(xp, label, dtype)] if counts else [])]
    formula = _from_classes(op.use_ignore, counts, bool(head))
    return _run(run, formula, p, (outer, length, inner), [y, *head], out, singles)


@kernel("gpu", "_backward_SoftmaxOutput")
def _backward(op: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    assert isinstance(op, BackwardSoftmaxOutput)
    by = _by_probabilities if inputs[0].shape == inputs[1].shape else _by_classes
    if not by(op, run, inputs, outputs[0]):
        run_fallback(op, run, inputs, outputs)
