"""Formulas computed with NumPy's or CuPy's functions, one primitive after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowmx.ops.dtypes import FLOAT32, DType
from flowmx.ops.formulas.expressions import Expr, Parameters, evaluate, in_order, placeholder, uniforms
from flowmx.ops.registry import Array

_FUNCTIONS = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "div": "divide",
    "neg": "negative",
    "power": "power",
    "abs": "abs",
    "sqrt": "sqrt",
    "rint": "rint",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "copysign": "copysign",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
    "and": "logical_and",
    "or": "logical_or",
    "xor": "logical_xor",
    "select": "where",
}
"""The function of each primitive, in NumPy and in CuPy."""


class OnArrays:
    """Formulas as functions of arrays.

    Args:
        formula: called as ``formula(p, *inputs)``; returns the expressions of the outputs.
        p: the parameters of an operator, for the form that the formula has with them.
        count: the number of inputs.
    """

    def __init__(self, formula: Callable[..., tuple[Expr, ...]], p: Any, count: int) -> None:
        self._inputs = [placeholder(position) for position in range(count)]
        self._outputs = formula(Parameters(p), *self._inputs)
        self._uniforms = uniforms(self._outputs)
        known = {*self._inputs, *self._uniforms}
        self._steps = [expr for expr in in_order(self._outputs, known) if expr.args]
        self._numbers = {arg for step in self._steps for arg in step.args if arg.kind == "number"}
        last: dict[Expr, int] = {arg: at for at, step in enumerate(self._steps) for arg in step.args}
        self._last = [
            [arg for arg in set(step.args) if last[arg] == at and arg not in self._outputs]
            for at, step in enumerate(self._steps)
        ]

    def numbers(self, p: Any, dtype: DType) -> dict[Expr, Any]:
        """What comes with a call: the values of parameters, and the formula's own numbers, in the computing dtype."""
        exact = {expr: evaluate(expr, lambda name: getattr(p, name)) for expr in (*self._uniforms, *self._numbers)}
        return {expr: dtype.type(value) for expr, value in exact.items()}

    def run(self, xp: Any, numbers: dict[Expr, Any], inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute into the outputs, which may be inputs too; arrays of 16 bits are computed with in float32."""
        values = dict(numbers)
        for expr, array in zip(self._inputs, inputs, strict=True):
            values[expr] = array.astype(FLOAT32) if array.dtype.itemsize < 4 else array
        for step, last in zip(self._steps, self._last, strict=True):
            values[step] = getattr(xp, _FUNCTIONS[step.kind])(*[values[arg] for arg in step.args])
            for arg in last:
                del values[arg]
        # One that is written may be an input that another output is.
        made = [values[expr] if expr.args else xp.array(values[expr]) for expr in self._outputs]
        for target, value in zip(outputs, made, strict=True):
            xp.copyto(target, value, casting="unsafe")
