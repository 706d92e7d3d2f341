"""Formulas put together from operators, on arrays that record or on symbols: as gradients need them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowmx.ops.formulas.expressions import Expr, Parameters, evaluate, in_order, parts_of, placeholder, uniforms

_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_NAMES = {"slope_of_relu": "_slope_of_relu", "digamma": "_polygamma", "softplus": "_softrelu", "copy": "_copy"}
"""The operators of functions that are called otherwise."""
_TO_DENSITY = 0.3989422804014327


class OnFrontend:
    """A formula as a function of arrays or symbols.

    Args:
        formula: called as ``formula(p, *inputs)``; returns an expression.
        names: of the inputs.
        p: the parameters of an operator, for the form that the formula has with them; None where it has none.

    Attributes:
        reads: the names of those inputs that the formula looks at.
    """

    def __init__(self, formula: Callable[..., Expr], names: Sequence[str], p: Any = None) -> None:
        inputs = {placeholder(name): name for name in names}
        self._made = formula(Parameters(p), *inputs)
        self._uniforms = [expr for expr in uniforms([self._made]) if expr is not self._made]
        self.reads = [name for expr, name in inputs.items() if expr in parts_of([self._made])]
        given = inputs | {expr: f"u[{at}]" for at, expr in enumerate(self._uniforms)}
        self._function = None if self._made.uniform else _compiled(self._made, given, self.reads)

    def __call__(self, F: Any, p: Any, *values: Any) -> Any:
        """The value, for those inputs that :attr:`reads` names.

        Args:
            F: the frontend, with an operator as ``F.op(name, ...)``.
            p: what has the parameters as attributes.
            *values: arrays or symbols.

        Returns:
            An array or a symbol, or a float where the formula depends on no input.
        """
        numbers = [evaluate(expr, lambda name: getattr(p, name)) for expr in self._uniforms]
        if self._function is None:
            return evaluate(self._made, lambda name: getattr(p, name))
        return self._function(F, numbers, *values)


def _compiled(made: Expr, given: dict[Expr, str], names: Sequence[str]) -> Callable[..., Any]:
    """A formula as a function ``(F, u, *inputs)``, where u are the numbers that come with a call."""
    terms, lines = dict(given), []
    for at, expr in enumerate(in_order([made], given)):
        if expr.kind == "number":
            terms[expr] = repr(expr.value)
        else:
            terms[expr] = f"t{at}"
            lines.append(f"    t{at} = {_term(expr, [terms[arg] for arg in expr.args])}")
    source = "\n".join([f"def function({', '.join(['F', 'u', *names])}):", *lines, f"    return {terms[made]}"])
    space: dict[str, Any] = {"normal_density": _normal_density, "select": _select}
    exec(source, space)
    function: Callable[..., Any] = space["function"]
    return function


def _term(expr: Expr, operands: Sequence[str]) -> str:
    if expr.kind in _OPERATORS:
        return f" {_OPERATORS[expr.kind]} ".join(operands)
    if expr.kind == "neg":
        return f"-{operands[0]}"
    if expr.kind in ("normal_density", "select"):
        return f"{expr.kind}(F, {', '.join(operands)})"
    return f"F.op({_NAMES.get(expr.kind, expr.kind)!r}, {', '.join(operands)})"


def _normal_density(F: Any, x: Any) -> Any:
    return F.op("exp", x * x * -0.5) * _TO_DENSITY


def _select(F: Any, condition: Any, yes: Any, no: Any) -> Any:
    return F.op("where", condition, _spread(F, yes, condition), _spread(F, no, condition))


def _spread(F: Any, value: Any, like: Any) -> Any:
    return F.zeros_like(like) + value if isinstance(value, float) else value
