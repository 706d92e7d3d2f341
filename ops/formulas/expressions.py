"""Formulas as small graphs: what a fused loop computes for each element.

Python's operators on an :class:`Expr` build further ones. Leaves are the loop's inputs, numbers, and
parameters, whose values come with each call. What depends on parameters and numbers alone is computed once a
call, in Python's floats, not once an element. Equal expressions are the same object, so that a formula may
name a subexpression twice and have it computed once.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Container, Sequence
from typing import Any, Union

Operand = Union["Expr", float]

_made: dict[Any, Expr] = {}

# What may be computed ahead of the loop, in Python's floats.
_UNIFORM: dict[str, Callable[..., float]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "neg": operator.neg,
    "power": operator.pow,
}


class Expr:
    """One node: a primitive applied to others, or a leaf. Made by the functions below, never directly.

    Attributes:
        kind: the primitive's name, or a leaf's: input, number, parameter.
        args: its operands.
        value: an input's position or name, a number, a parameter's name.
        uniform: True where no input is part of it.
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
        raise TypeError("a formula's condition is known in the loop alone: use where()")

    def __repr__(self) -> str:
        inside = ", ".join(map(repr, self.args)) if self.args else self.value
        return f"{self.kind}({inside})"


def make(kind: str, *operands: Operand) -> Expr:
    """The expression of a primitive; numbers among the operands become leaves, and numbers alone one number."""
    args = tuple([arg if isinstance(arg, Expr) else number(arg) for arg in operands])
    if kind in _UNIFORM and all(arg.kind == "number" for arg in args):
        return number(_UNIFORM[kind](*[arg.value for arg in args]))
    return _intern(kind, args, None)


def _intern(kind: str, args: tuple[Expr, ...], value: Any) -> Expr:
    # A zero's sign matters, and 1 == 1.0 == True.
    key = (kind, tuple(map(id, args)), repr(value))
    known = _made.get(key)
    return known if known is not None else _made.setdefault(key, Expr(kind, args, value))


def number(value: float) -> Expr:
    """A number that is part of the formula."""
    return _intern("number", (), float(value))


def placeholder(which: int | str) -> Expr:
    """The element of an input, or another value that the loop finds for each element."""
    return _intern("input", (), which)


def parameter(name: str) -> Expr:
    """A number that comes with each call: an attribute of the operator."""
    return _intern("parameter", (), name)


class Parameters:
    """The parameters of an operator inside a formula: ``p.lr`` is the expression of its attribute ``lr``.

    Attributes:
        op: the operator itself, for parameters that the formula's form depends on.
    """

    def __init__(self, op: Any) -> None:
        self.op = op

    def __getattr__(self, name: str) -> Expr:
        return parameter(name)


def evaluate(uniform: Expr, values: Callable[[str], float]) -> float:
    """The value of an expression without inputs, where ``values(name)`` is a parameter's.

    An overflow or a division by 0 gives what it gives in a loop: infinity or NaN.
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
    """The largest subexpressions that come with each call (numbers excepted), each once."""
    found: dict[Expr, None] = {}
    seen: set[Expr] = set()
    todo = list(outputs)[::-1]
    while todo:
        expr = todo.pop()
        if expr in seen:
            continue
        seen.add(expr)
        if not expr.uniform:
            todo += expr.args[::-1]
        elif expr.kind != "number":
            found[expr] = None
    return list(found)


def in_order(outputs: Sequence[Expr], known: Container[Expr]) -> list[Expr]:
    """The expressions to compute for these, operands first, each once; what is known is not looked into."""
    order: dict[Expr, None] = {}
    todo = list(outputs)[::-1]
    while todo:
        expr = todo[-1]
        missing = [arg for arg in expr.args if arg not in order and arg not in known]
        if expr in known or expr in order or not missing:
            todo.pop()
            if expr not in known:
                order[expr] = None
        else:
            todo += missing[::-1]
    return list(order)


def parts_of(outputs: Sequence[Expr]) -> set[Expr]:
    """The expressions that these are made of, each once."""
    seen: set[Expr] = set()
    todo = list(outputs)
    while todo:
        expr = todo.pop()
        if expr not in seen:
            seen.add(expr)
            todo += expr.args
    return seen


def kinds(outputs: Sequence[Expr]) -> set[str]:
    """The primitives that formulas use."""
    return {expr.kind for expr in parts_of(outputs)}


def steps(outputs: Sequence[Expr]) -> int:
    """The approximate number of instructions an element; a division counts for several."""
    return sum(8 if expr.kind in ("div", "sqrt") else 1 for expr in parts_of(outputs) if expr.args and not expr.uniform)


# -- primitives beyond Python's operators ------------------------------------------------------------------


def fma(a: Operand, b: Operand, c: Operand) -> Expr:
    """The sum a · b + c, rounded once where the machine can."""
    return make("fma", a, b, c)


def where(condition: Expr, yes: Operand, no: Operand) -> Expr:
    """``yes`` where the condition holds, else ``no``."""
    return make("select", condition, yes, no)


def equal(a: Operand, b: Operand) -> Expr:
    """The condition a = b."""
    return make("eq", a, b)


def not_equal(a: Operand, b: Operand) -> Expr:
    """The condition a ≠ b (NaN is unequal to everything)."""
    return make("ne", a, b)


def either(a: Expr, b: Expr) -> Expr:
    """The condition "a or b" of two conditions."""
    return make("or", a, b)


def differ(a: Expr, b: Expr) -> Expr:
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
    """The nearest integer, halves to even."""
    return make("rint", x)


def floor(x: Operand) -> Expr:
    """The largest integer not above x."""
    return make("floor", x)


def ceil(x: Operand) -> Expr:
    """The smallest integer not below x."""
    return make("ceil", x)


def trunc(x: Operand) -> Expr:
    """A number without its fraction."""
    return make("trunc", x)


def copysign(size: Operand, sign: Operand) -> Expr:
    """The size of one, the sign of another."""
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
    """The smaller; NaN where one is NaN."""
    return _extreme(a, b, lambda x, y: x > y)


def maximum(a: Operand, b: Operand) -> Expr:
    """The larger; NaN where one is NaN."""
    return _extreme(a, b, lambda x, y: x < y)


def _extreme(a: Operand, b: Operand, gives_way: Callable[[Any, Any], Any]) -> Expr:
    if not isinstance(a, Expr):
        a, b = b, a
    assert isinstance(a, Expr)
    chosen = where(gives_way(a, b), b, a)  # a, where a is NaN
    if isinstance(b, Expr) and b.kind != "number":
        chosen = where(not_equal(b, b), b, chosen)
    return chosen


def clip(x: Expr, low: Operand, high: Operand) -> Expr:
    """A number brought into low ... high, which are no NaN; NaN stays."""
    x = where(x < low, low, x)
    return where(x > high, high, x)


def polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Σ coefficients[k] · x^k: by Horner's rule where it is short, else pairwise (G. Estrin), a shorter chain."""
    terms = [number(coefficient) for coefficient in coefficients]
    if len(terms) < 8:
        result = terms.pop()
        while terms:
            result = fma(result, x, terms.pop())
        return result
    while len(terms) > 1:
        pairs = [fma(terms[at + 1], x, terms[at]) for at in range(0, len(terms) - 1, 2)]
        terms = pairs + terms[2 * len(pairs) :]
        x = x * x
    return terms[0]
