"""Softmax, softmin and log_softmax along any axis, with their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flowmx.ops.formulas.expressions import Expr, Parameters
from flowmx.ops.kernels.llvm.assembly import FLOAT
from flowmx.ops.kernels.llvm.elementwise import MIN_SIZE_MANY_STEPS, float_type_of
from flowmx.ops.kernels.llvm.row_loops import Kind, Row, Rows
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.kernels import Kernel, kernel, register_kernel
from flowmx.ops.registry.operators import Array, Bound, Form, Run, Shape

if TYPE_CHECKING:
    from flowmx.ops.nn.activation import SoftmaxActivation
    from flowmx.ops.nn.output_layers import SoftmaxCrossEntropy, SoftmaxOutput
    from flowmx.ops.registry.operators import Operator

MIN_SIZE = MIN_SIZE_MANY_STEPS
"""The minimum number of elements for which a loop replaces the fallback, except for softmax and its relatives."""


def softmax(p: Parameters, row: Row, x: Expr) -> Expr:
    """Return the formula of softmax."""
    top = row.max(x * p.scaling)
    e = row.keep(0, row.exp(x * p.scaling - top))
    return e * (1.0 / row.sum(e))


def log_softmax(p: Parameters, row: Row, x: Expr) -> Expr:
    """Return the formula of log_softmax."""
    top = row.max(x * p.scaling)
    shifted = x * p.scaling - top
    return shifted - row.log(row.sum(row.exp(shifted)))


def _log_total(p: Parameters, row: Row, x: Expr) -> Expr:
    """Return the logarithm of the sum of exponentials of each row."""
    top = row.max(x)
    return top + row.log(row.sum(row.exp(x - top)))


def _backward_softmax(p: Parameters, row: Row, head: Expr, y: Expr) -> Expr:
    return y * (head - row.sum(head * y)) * p.scaling


def _backward_log_softmax(p: Parameters, row: Row, head: Expr, y: Expr) -> Expr:
    return (head - row.exp(y) * row.sum(head)) * p.scaling


class Scaled(NamedTuple):
    """The parameter of the formulas above: the factor of the data."""

    scaling: float


PLAIN = Scaled(1.0)


class Of(NamedTuple):
    """The formula of a softmax operator's kernels."""

    formula: Callable[..., Expr]
    full: int
    """The number of float inputs; lengths are an additional input of a different dtype."""
    scaling: Callable[[Any], float]
    """Called with the operator; returns the factor of the data."""


FORMULAS = {
    "softmax": Of(softmax, 1, lambda op: op.scale()),
    "softmin": Of(softmax, 1, lambda op: op.scale()),
    "log_softmax": Of(log_softmax, 1, lambda op: op.scale()),
    "_backward_softmax": Of(_backward_softmax, 2, lambda op: op.scaling),
    "_backward_log_softmax": Of(_backward_log_softmax, 2, lambda op: op.scaling),
}
"""The formulas by operator name; other devices use them too."""


def around(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """Return a shape as (outer, length, inner) with the axis in the middle."""
    axis %= len(shape)
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


@cache
def computed(dtype: DType) -> bool:
    """Return whether row kernels support an element type: float32, or 16 bits that the processor can widen."""
    real = float_type_of(dtype)
    return real is not None and real.name == FLOAT.name


def suits(*arrays: Array) -> bool:
    """Return whether row kernels support these arrays: float32 or 16 bits, in C order."""
    return all(computed(array.dtype) and array.flags.c_contiguous for array in arrays)


def bound_rows(
    rows: Rows, parameters: Any, place: tuple[int, int, int], dtypes: Sequence[DType], plain: Bound
) -> Bound:  # fmt: skip
    """Bind a row formula to arrays of one form, with the operator's forward as fallback."""
    call, compute = rows.bind(parameters, place, dtypes), rows.run

    def run_rows(inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
        if call is None:
            return compute(parameters, place, inputs, outputs)
        call(*inputs, *outputs)
        return True

    def bound(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        if not in_c_order(run_rows, inputs, outputs):
            plain(run, inputs, outputs)

    return bound


def in_c_order(
    compute: Callable[[Sequence[Array], Sequence[Array]], bool], inputs: Sequence[Array], outputs: Sequence[Array]
) -> bool:
    """Compute on arrays in C order, copied if necessary, so that results do not depend on the layout.

    Args:
        compute: the computation; returns False if it did nothing.
        inputs: the inputs.
        outputs: the outputs.

    Returns:
        The result of the computation.
    """
    for each in (*inputs, *outputs):
        if not each.flags.c_contiguous:
            break
    else:
        return compute(inputs, outputs)
    copies = [each if each.flags.c_contiguous else np.empty_like(each, order="C") for each in outputs]
    if not compute([np.ascontiguousarray(each) for each in inputs], copies):
        return False
    for target, copy in zip(outputs, copies, strict=True):
        if copy is not target:
            target[...] = copy
    return True


class OfRows(Kernel):
    """The kernel of an operator with a row formula.

    Args:
        rows: the formula.
        count: the number of inputs for which the formula applies.
        place: called with the operator and its output's shape; returns the parameters, and the shape for
            :meth:`Rows.run`.
        is_for_few: whether it replaces the operator's forward also below :data:`MIN_SIZE`.
    """

    only_native = True

    def __init__(
        self, rows: Rows, count: int, place: Callable[[Any, Shape], tuple[Any, tuple[int, int, int]]],
        is_for_few: bool = False,
    ) -> None:  # fmt: skip
        self._rows, self._count, self._place, self._is_for_few = rows, count, place, is_for_few

    def _is_enough(self, size: int) -> bool:
        return size >= MIN_SIZE or (self._is_for_few and size > 0)

    def compute(self, op: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute the operator."""
        out = outputs[0]
        fast = self._is_enough(out.size) and len(inputs) == self._count
        fast = fast and all(map(computed, [each.dtype for each in (*inputs, *outputs)]))
        if not (fast and in_c_order(partial(self._rows.run, *self._place(op, out.shape)), inputs, outputs)):
            op.forward(run, inputs, outputs)

    def takes(self, op: Operator, dtype: DType) -> bool:
        """Return whether the kernel computes on elements of this type."""
        return len(op.inputs()) == self._count and computed(dtype)

    def bind(self, op: Any, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> Bound | None:
        """Return the kernel specialized for arrays of these shapes and dtypes."""
        shape = out_forms[0][0]
        dtypes = [dtype for _, dtype in (*in_forms, *out_forms)]
        if not all(map(computed, dtypes)) or len(in_forms) != self._count:
            return None
        if not self._is_enough(math.prod(shape)):
            plain: Bound = op.bound(np, in_forms, out_forms) or op.forward
            return plain
        return bound_rows(self._rows, *self._place(op, shape), dtypes, op.forward)


def _register(name: str, of: Of) -> None:
    rows = Rows(Kind(full=of.full), of.formula)

    def of_rows(op: Any, shape: Shape) -> tuple[Any, tuple[int, int, int]]:
        return Scaled(of.scaling(op)), around(shape, op.axis)

    register_kernel("cpu", name, OfRows(rows, of.full, of_rows, True))


for _name, _of in FORMULAS.items():
    _register(_name, _of)


_softmax_rows = Rows(Kind(), softmax)
_log_total_rows = Rows(Kind(outputs=0, results=1), _log_total)


def merged(axes: int | tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return a shape as (outer, length, inner) with adjacent axes in the middle."""
    if isinstance(axes, int):
        return around(shape, axes)
    return math.prod(shape[: axes[0]]), math.prod(shape[axes[0] : axes[-1] + 1]), math.prod(shape[axes[-1] + 1 :])


def takes(op: Operator, dtype: DType) -> bool:
    """Return whether row kernels support this element type."""
    return computed(dtype)


@kernel("cpu", "SoftmaxOutput", takes=takes, only_native=True)
def _softmax_output(op: SoftmaxOutput, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    x, out = inputs[0], outputs[0]
    fast = x.size >= MIN_SIZE and suits(x, out)
    if not (fast and _softmax_rows.run(PLAIN, merged(op.axes(x), x.shape), [x], [out])):
        op.forward(run, inputs, outputs)


@kernel("cpu", "SoftmaxActivation", takes=takes, only_native=True)
def _softmax_activation(op: SoftmaxActivation, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    x, out = inputs[0], outputs[0]
    fast = x.size >= MIN_SIZE and suits(x, out)
    if not (fast and _softmax_rows.run(PLAIN, around(x.shape, op.axis()), [x], [out])):
        op.forward(run, inputs, outputs)


@kernel("cpu", "softmax_cross_entropy")
def _softmax_cross_entropy(
    op: SoftmaxCrossEntropy, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]
) -> None:
    x, label = inputs
    totals = np.empty(len(x), np.float32)
    fast = x.size >= MIN_SIZE and suits(x)
    if not (fast and _log_total_rows.run(PLAIN, (*x.shape, 1), [x], [totals])):
        op.forward(run, inputs, outputs)
        return
    here = np.take_along_axis(x, label.astype(np.int64)[:, None], axis=1)[:, 0]
    outputs[0][...] = (totals - here).sum()
