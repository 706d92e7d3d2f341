"""Formulas composed of operators on recorded arrays or symbols, for gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowmx.ops.formulas.expressions import (
    Expr,
    Parameters,
    evaluate,
    evaluation_order,
    placeholder,
    subexpressions,
    uniforms,
)
from flowmx.ops.registry.tensors import Functions, Tensor

_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_NAMES = {"slope_of_relu": "_slope_of_relu", "digamma": "_polygamma", "softplus": "_softrelu", "copy": "_copy"}
"""The operators of primitives whose names differ."""
_TO_DENSITY = 0.3989422804014327


class FrontendFormula:
    """A formula as a function of arrays or symbols.

    Args:
        formula: called as ``formula(p, *inputs)``; returns an expression.
        names: the names of the inputs.
        p: the operator whose parameters select the form of the formula; None for a formula without parameters.

    Attributes:
        reads: the names of the inputs that the formula depends on.
    """

    def __init__(self, formula: Callable[..., Expr], names: Sequence[str], p: object = None) -> None:
        inputs = {placeholder(name): name for name in names}
        self._expr = formula(Parameters(p), *inputs)
        self._uniforms = [expr for expr in uniforms([self._expr]) if expr is not self._expr]
        self.reads = [name for expr, name in inputs.items() if expr in subexpressions([self._expr])]
        terms = inputs | {expr: f"u[{index}]" for index, expr in enumerate(self._uniforms)}
        self._function = None if self._expr.uniform else _compile_formula(self._expr, terms, self.reads)

    def __call__(self, F: Functions, p: object, *values: Tensor) -> Tensor | float:
        """Return the value for the inputs in :attr:`reads`.

        Args:
            F: the frontend, with an operator as ``F.op(name, ...)``.
            p: an object with the parameters as attributes.
            *values: arrays or symbols.

        Returns:
            An array or a symbol; a float if the formula depends on no input.
        """
        numbers = [evaluate(expr, lambda name: getattr(p, name)) for expr in self._uniforms]
        if self._function is None:
            return evaluate(self._expr, lambda name: getattr(p, name))
        result: Tensor = self._function(F, numbers, *values)
        return result


def gradient_of(derivative: Callable[[Expr, Expr, Expr], Expr]) -> Callable[..., list[Any]]:
    """Return the method ``gradient`` of an operator with one input.

    The derivative is a function of input, output and head gradient. The method reads only those that the derivative
    needs, since the others may have been changed. If the derivative is zero everywhere, the gradient is None.
    """
    places = {placeholder("x"): "inputs[0]", placeholder("y"): "outputs[0]", placeholder("g"): "heads[0]"}
    expr = derivative(*places)
    if expr.kind == "number":
        assert expr.value == 0
        return lambda self, F, inputs, outputs, heads: [None]
    subexprs = subexpressions([expr])
    return _compile_function(
        "self, F, inputs, outputs, heads", [expr], places, [place for place in places if place in subexprs]
    )


def _compile_formula(expr: Expr, terms: dict[Expr, str], names: Sequence[str]) -> Callable[..., Any]:
    """Compile a formula to a function ``(F, u, *inputs)``, where ``u`` are the uniform values of a call."""
    function = _compile_function(", ".join(["F", "u", *names]), [expr], terms, [])
    return lambda *arguments: function(*arguments)[0]


def _compile_function(
    arguments: str, outputs: Sequence[Expr], leaves: dict[Expr, str], read_first: Sequence[Expr]
) -> Callable[..., list[Any]]:
    """Compile formulas to a function that returns the list of their values.

    Args:
        arguments: the parameter list of the function.
        outputs: the formulas.
        leaves: source code for placeholders and uniforms, in terms of the arguments.
        read_first: the leaves to read once before the computation.
    """
    terms, lines = dict(leaves), []
    for index, expr in enumerate(read_first):
        terms[expr] = f"v{index}"
        lines.append(f"    v{index} = {leaves[expr]}")
    for index, expr in enumerate(evaluation_order(outputs, leaves)):
        if expr.kind == "number":
            terms[expr] = repr(expr.value)
        else:
            terms[expr] = f"t{index}"
            lines.append(f"    t{index} = {_term(expr, [terms[arg] for arg in expr.args])}")
    lines.append(f"    return [{', '.join([terms[output] for output in outputs])}]")
    source = "\n".join([f"def function({arguments}):", *lines])
    namespace: dict[str, Any] = {"normal_density": _normal_density, "select": _select}
    exec(compile(source, __file__, "exec"), namespace)  # a file of flowmx: errors name the user's line
    function: Callable[..., list[Any]] = namespace["function"]
    return function


def _term(expr: Expr, operands: Sequence[str]) -> str:
    if expr.kind in _OPERATORS:
        return f" {_OPERATORS[expr.kind]} ".join(operands)
    if expr.kind == "neg":
        return f"-{operands[0]}"
    if expr.kind in ("normal_density", "select"):
        return f"{expr.kind}(F, {', '.join(operands)})"
    return f"F.op({_NAMES.get(expr.kind, expr.kind)!r}, {', '.join(operands)})"


def _normal_density(F: Functions, x: Tensor) -> Tensor:
    return F.op("exp", x * x * -0.5) * _TO_DENSITY


def _select(F: Functions, condition: Tensor, then: Tensor | float, otherwise: Tensor | float) -> Tensor:
    return F.op("where", condition, _spread(F, then, condition), _spread(F, otherwise, condition))


def _spread(F: Functions, value: Tensor | float, like: Tensor) -> Tensor:
    return F.zeros_like(like) + value if isinstance(value, float) else value
