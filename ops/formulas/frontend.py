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


def gradient_of(derivative: Callable[[Expr, Expr, Expr], Expr]) -> Callable[..., list[Any]]:
    """The method ``gradient`` of an operator of one input, by its derivative: of input, output and head gradient.

    It looks at no more of them than the derivative needs: the others may have been changed since. Where the derivative
    is zero everywhere, no gradient flows, and no second one is that of a head.
    """
    places = {placeholder("x"): "inputs[0]", placeholder("y"): "outputs[0]", placeholder("g"): "heads[0]"}
    made = derivative(*places)
    if made.kind == "number":
        assert made.value == 0
        return lambda self, F, inputs, outputs, heads: [None]
    parts = parts_of([made])
    return _written("self, F, inputs, outputs, heads", [made], places, [each for each in places if each in parts])


def _compiled(made: Expr, given: dict[Expr, str], names: Sequence[str]) -> Callable[..., Any]:
    """A formula as a function ``(F, u, *inputs)``, where u are the numbers that come with a call."""
    function = _written(", ".join(["F", "u", *names]), [made], given, [])
    return lambda *arguments: function(*arguments)[0]


def _written(
    arguments: str, outputs: Sequence[Expr], given: dict[Expr, str], first: Sequence[Expr]
) -> Callable[..., list[Any]]:
    """Compile formulas to a function that returns the list of their values.

    Args:
        arguments: the function's.
        outputs: the formulas.
        given: what stands for placeholders and uniforms, in terms of the arguments.
        first: those of them that are looked up once, before anything is computed.
    """
    terms, lines = dict(given), []
    for at, expr in enumerate(first):
        terms[expr] = f"v{at}"
        lines.append(f"    v{at} = {given[expr]}")
    for at, expr in enumerate(in_order(outputs, given)):
        if expr.kind == "number":
            terms[expr] = repr(expr.value)
        else:
            terms[expr] = f"t{at}"
            lines.append(f"    t{at} = {_term(expr, [terms[arg] for arg in expr.args])}")
    lines.append(f"    return [{', '.join([terms[each] for each in outputs])}]")
    source = "\n".join([f"def function({arguments}):", *lines])
    space: dict[str, Any] = {"normal_density": _normal_density, "select": _select}
    exec(source, space)
    function: Callable[..., list[Any]] = space["function"]
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
