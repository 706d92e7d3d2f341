"""Formulas as small graphs: the computation of a fused loop for each element.

Python's operators on an :class:`Expr` build new expressions. Leaves are the inputs of the loop, numbers, and
parameters, whose values are set in each call. Expressions of parameters and numbers only are *uniform*: they are
computed once for each call, in Python's floats. Equal expressions are the same object, so a repeated subexpression is
computed once.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Container, Sequence
from typing import Any, Union

Operand = Union["Expr", float]

_interned: dict[object, Expr] = {}

# Primitives that can be computed before the loop, in Python's floats.
_UNIFORM: dict[str, Callable[..., float]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "neg": operator.neg,
    "power": operator.pow,
}


class Expr:
    """A node: a primitive applied to other nodes, or a leaf. Create it with the functions below, never directly.

    Attributes:
        kind: the name of the primitive, or of the kind of leaf: input, number, parameter.
        args: the operands.
        value: the position or name of an input, the number, or the name of a parameter.
        uniform: whether it depends on no input.
    """

    __slots__ = ("args", "kind", "uniform", "value")

    def __init__(self, kind: str, args: tuple[Expr, ...], value: Any) -> None:
        self.kind = kind
        self.args = args
        self.value = value
        self.uniform: bool = kind in ("number", "parameter") or (kind in _UNIFORM and all(arg.uniform for arg in args))

    def __add__(self, other: Operand) -> Expr:
        return make("add", self, other)

    def __radd__(self, other: Operand) -> Expr:
        return make("add", other, self)

    def __sub__(self, other: Operand) -> Expr:
        return make("sub", self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return make("sub", other, self)

    def __mul__(self, other: Operand) -> Expr:
        return make("mul", self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return make("mul", other, self)

    def __truediv__(self, other: Operand) -> Expr:
        return make("div", self, other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return make("div", other, self)

    def __pow__(self, other: Operand) -> Expr:
        return make("power", self, other)

    def __rpow__(self, other: Operand) -> Expr:
        return make("power", other, self)

    def __neg__(self) -> Expr:
        return make("neg", self)

    def __lt__(self, other: Operand) -> Expr:
        return make("lt", self, other)

    def __le__(self, other: Operand) -> Expr:
        return make("le", self, other)

    def __gt__(self, other: Operand) -> Expr:
        return make("gt", self, other)

    def __ge__(self, other: Operand) -> Expr:
        return make("ge", self, other)

    def __and__(self, other: Expr) -> Expr:
        return make("and", self, other)

    def __bool__(self) -> bool:
        raise TypeError("a condition in a formula has no value outside the loop: use where()")

    def __repr__(self) -> str:
        inside = ", ".join(map(repr, self.args)) if self.args else self.value
        return f"{self.kind}({inside})"


def make(kind: str, *operands: Operand) -> Expr:
    """Return the expression of a primitive; operands that are numbers become leaves, and constants are folded."""
    args = tuple([arg if isinstance(arg, Expr) else number(arg) for arg in operands])
    if kind in _UNIFORM and all(arg.kind == "number" for arg in args):
        return number(_UNIFORM[kind](*[arg.value for arg in args]))
    return _intern(kind, args, None)


def _intern(kind: str, args: tuple[Expr, ...], value: object) -> Expr:
    # A zero's sign matters, and 1 == 1.0 == True.
    key = (kind, tuple(map(id, args)), repr(value))
    expr = _interned.get(key)
    return expr if expr is not None else _interned.setdefault(key, Expr(kind, args, value))


def number(value: float) -> Expr:
    """Return a number that is part of the formula."""
    return _intern("number", (), float(value))


def placeholder(name: int | str) -> Expr:
    """Return the element of an input, or another value that the loop reads for each element."""
    return _intern("input", (), name)


def parameter(name: str) -> Expr:
    """Return a number that is set in each call: an attribute of the operator."""
    return _intern("parameter", (), name)


class Parameters:
    """The parameters of an operator inside a formula: ``p.lr`` is the expression of its attribute ``lr``.

    Attributes:
        op: the operator, for parameters that select the form of the formula.
    """

    def __init__(self, op: Any) -> None:
        self.op = op

    def __getattr__(self, name: str) -> Expr:
        return parameter(name)


def evaluate(uniform: Expr, values: Callable[[str], float]) -> float:
    """Return the value of a uniform expression; ``values(name)`` returns that of a parameter.

    An overflow or a division by 0 returns infinity or NaN, as in a loop.
    """
    if uniform.kind == "number":
        return float(uniform.value)
    if uniform.kind == "parameter":
        return float(values(uniform.value))
    operands = [evaluate(arg, values) for arg in uniform.args]
    try:
        return float(_UNIFORM[uniform.kind](*operands))
    except ZeroDivisionError:
        return math.nan if not operands[0] else math.copysign(math.inf, operands[0])
    except OverflowError:
        return math.inf


def uniforms(outputs: Sequence[Expr]) -> list[Expr]:
    """Return the largest uniform subexpressions except numbers, without duplicates."""
    largest: dict[Expr, None] = {}
    visited: set[Expr] = set()
    pending = list(outputs)[::-1]
    while pending:
        expr = pending.pop()
        if expr in visited:
            continue
        visited.add(expr)
        if not expr.uniform:
            pending += expr.args[::-1]
        elif expr.kind != "number":
            largest[expr] = None
    return list(largest)


def evaluation_order(outputs: Sequence[Expr], available: Container[Expr]) -> list[Expr]:
    """Return the expressions to compute, operands first, without duplicates; do not descend into available ones."""
    order: dict[Expr, None] = {}
    pending = list(outputs)[::-1]
    while pending:
        expr = pending[-1]
        operands = [arg for arg in expr.args if arg not in order and arg not in available]
        if expr in available or expr in order or not operands:
            pending.pop()
            if expr not in available:
                order[expr] = None
        else:
            pending += operands[::-1]
    return list(order)


def subexpressions(outputs: Sequence[Expr]) -> set[Expr]:
    """Return all subexpressions, including the outputs."""
    visited: set[Expr] = set()
    pending = list(outputs)
    while pending:
        expr = pending.pop()
        if expr not in visited:
            visited.add(expr)
            pending += expr.args
    return visited


def primitives(outputs: Sequence[Expr]) -> set[str]:
    """Return the names of the primitives in formulas."""
    return {expr.kind for expr in subexpressions(outputs)}


def instruction_count(outputs: Sequence[Expr]) -> int:
    """Return the approximate number of instructions for each element; a division counts as several."""
    return sum(
        8 if expr.kind in ("div", "sqrt") else 1 for expr in subexpressions(outputs) if expr.args and not expr.uniform
    )


# -- primitives beyond Python's operators ------------------------------------------------------------------


def fma(a: Operand, b: Operand, c: Operand) -> Expr:
    """The sum a · b + c, rounded once if the machine supports it."""
    return make("fma", a, b, c)


def where(condition: Expr, then: Operand, otherwise: Operand) -> Expr:
    """``then`` where the condition holds, else ``otherwise``."""
    return make("select", condition, then, otherwise)


def equal(a: Operand, b: Operand) -> Expr:
    """The condition a = b."""
    return make("eq", a, b)


def not_equal(a: Operand, b: Operand) -> Expr:
    """The condition a ≠ b (NaN is unequal to everything)."""
    return make("ne", a, b)


def logical_or(a: Expr, b: Expr) -> Expr:
    """The condition "a or b" of two conditions."""
    return make("or", a, b)


def logical_xor(a: Expr, b: Expr) -> Expr:
    """The condition "exactly one of a and b" of two conditions."""
    return make("xor", a, b)


def one_if(condition: Expr) -> Expr:
    """1 where the condition holds, else 0."""
    return where(condition, 1.0, 0.0)


def absolute(x: Operand) -> Expr:
    """The absolute value."""
    return make("abs", x)


def sqrt(x: Operand) -> Expr:
    """The square root."""
    return make("sqrt", x)


def nearest(x: Operand) -> Expr:
    """The nearest integer; ties go to the even one."""
    return make("rint", x)


def floor(x: Operand) -> Expr:
    """The largest integer not above x."""
    return make("floor", x)


def ceil(x: Operand) -> Expr:
    """The smallest integer not below x."""
    return make("ceil", x)


def trunc(x: Operand) -> Expr:
    """The number rounded towards zero."""
    return make("trunc", x)


def copysign(size: Operand, sign: Operand) -> Expr:
    """The magnitude of the first operand with the sign of the second."""
    return make("copysign", size, sign)


def scale(x: Operand, exponent: Operand) -> Expr:
    """The product x · 2^exponent, for a whole-numbered exponent from -252 to 252."""
    return make("scale", x, exponent)


def exponent(x: Operand) -> Expr:
    """The integer e of x = m · 2^e with √½ ≤ m < √2, for normal positive x."""
    return make("exponent", x)


def mantissa(x: Operand) -> Expr:
    """The factor m of x = m · 2^e with √½ ≤ m < √2, for normal positive x."""
    return make("mantissa", x)


def minimum(a: Operand, b: Operand) -> Expr:
    """The smaller operand, or NaN if either is NaN."""
    return _extreme(a, b, lambda x, y: x > y)


def maximum(a: Operand, b: Operand) -> Expr:
    """The larger operand, or NaN if either is NaN."""
    return _extreme(a, b, lambda x, y: x < y)


def _extreme(a: Operand, b: Operand, replaces: Callable[[Any, Any], Any]) -> Expr:
    if not isinstance(a, Expr):
        a, b = b, a
    assert isinstance(a, Expr)
    result = where(replaces(a, b), b, a)  # a, where a is NaN
    if isinstance(b, Expr) and b.kind != "number":
        result = where(not_equal(b, b), b, result)
    return result


def clip(x: Expr, low: Operand, high: Operand) -> Expr:
    """Clip x to [low, high]. The bounds must not be NaN; a NaN in x is propagated."""
    x = where(x < low, low, x)
    return where(x > high, high, x)


def polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Σ coefficients[k] · x^k: by Horner's rule if it is short, else by Estrin's scheme, a shorter chain."""
    terms = [number(coefficient) for coefficient in coefficients]
    if len(terms) < 8:
        result = terms.pop()
        while terms:
            result = fma(result, x, terms.pop())
        return result
    while len(terms) > 1:
        pairs = [fma(terms[index + 1], x, terms[index]) for index in range(0, len(terms) - 1, 2)]
        terms = pairs + terms[2 * len(pairs) :]
        x = x * x
    return terms[0]
