"""Loops of elementwise operators: arithmetic, functions, activations and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowmx.ops.formulas.activations import ACTIVATIONS, RECTIFIERS, hard_sigmoid, smooth_l1
from flowmx.ops.formulas.expressions import (
    Expr,
    Parameters,
    clip,
    equal,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    not_equal,
    one_if,
    placeholder,
    sqrt,
    where,
)
from flowmx.ops.kernels.llvm.elementwise import MIN_SIZE, MIN_SIZE_MANY_STEPS, fused
from flowmx.ops.kernels.llvm.math_functions import expanded
from flowmx.ops.math.unary import TABLE

_PLAIN = 1 << 16
"""The number of elements below which the operator's forward is as fast, if it is one of NumPy's fast functions."""

_MIN_SIZES = {
    **dict.fromkeys(("erf", "sigmoid"), MIN_SIZE_MANY_STEPS),
    **dict.fromkeys(("rsqrt", "expm1", "log1p", "tanh", "softsign", "_softrelu"), MIN_SIZE),
}
"""The forward is as fast below this number of elements, for functions that are slow in NumPy."""


def _unary(function: Callable[[Expr], Expr]) -> Callable[..., Expr]:
    return lambda p, x: function(x)


for _row in TABLE:
    if expanded([_row.formula(placeholder(0))]) is not None:
        fused(_row.name, _unary(_row.formula), least=_MIN_SIZES.get(_row.name, _PLAIN))

# -- two operands ------------------------------------------------------------------------------------------

_TWO: dict[str, Callable[[Any, Any], Expr]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "maximum": maximum,
    "minimum": minimum,
    "equal": lambda a, b: one_if(equal(a, b)),
    "not_equal": lambda a, b: one_if(not_equal(a, b)),
    "greater": lambda a, b: one_if(a > b),
    "greater_equal": lambda a, b: one_if(a >= b),
    "lesser": lambda a, b: one_if(a < b),
    "lesser_equal": lambda a, b: one_if(a <= b),
    "logical_and": lambda a, b: one_if(not_equal(a, 0.0) & not_equal(b, 0.0)),
    "logical_or": lambda a, b: one_if(logical_or(not_equal(a, 0.0), not_equal(b, 0.0))),
    "logical_xor": lambda a, b: one_if(logical_xor(not_equal(a, 0.0), not_equal(b, 0.0))),
}
_SCALAR = {"add": "_plus_scalar", "sub": "_minus_scalar"}
_REVERSED = {"sub": "_rminus_scalar", "div": "_rdiv_scalar"}


def _binary(function: Callable[[Any, Any], Expr]) -> Callable[..., Expr]:
    return lambda p, a, b: function(a, b)


def _with_number(function: Callable[[Any, Any], Expr]) -> Callable[..., Expr]:
    return lambda p, x: function(x, p.scalar)


def _number_with(function: Callable[[Any, Any], Expr]) -> Callable[..., Expr]:
    return lambda p, x: function(p.scalar, x)


for _name, _pair in _TWO.items():
    _same = f"elemwise_{_name}" if _name in ("add", "sub", "mul", "div") else f"_{_name}"
    fused(f"broadcast_{_name}", _binary(_pair), least=_PLAIN)
    fused(_same, _binary(_pair), least=_PLAIN)
    fused(_SCALAR.get(_name, f"_{_name}_scalar"), _with_number(_pair), least=_PLAIN)
    if _name in _REVERSED:
        fused(_REVERSED[_name], _number_with(_pair), least=_PLAIN)


def _power(p: Parameters, x: Expr) -> Expr | None:
    powers: dict[float, Callable[[Expr], Expr]] = {
        2.0: lambda x: x * x,
        3.0: lambda x: x * x * x,
        0.5: sqrt,
        -1.0: lambda x: 1.0 / x,
    }
    function = powers.get(p.op.scalar)
    return None if function is None else function(x)


fused("_power_scalar", _power, variant=lambda op: op.scalar, least=_PLAIN)


fused("smooth_l1", smooth_l1)
fused("clip", lambda p, x: clip(x, p.a_min, p.a_max), least=MIN_SIZE_MANY_STEPS)
fused("hard_sigmoid", hard_sigmoid)


def _sum(p: Parameters, *terms: Expr) -> Expr:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


fused("add_n", _sum)
fused("where", lambda p, condition, x, y: where(not_equal(condition, 0.0), x, y))

# -- activations -------------------------------------------------------------------------------------------


def _act_type(op: Any) -> Any:
    return op.act_type


def _leaky_relu(p: Parameters, x: Expr, gamma: Expr | None = None) -> Expr | None:
    rectifier = RECTIFIERS.get(p.op.act_type)
    return None if rectifier is None else rectifier.compute(p, x)


fused("Activation", lambda p, x: ACTIVATIONS[p.op.act_type].compute(x), variant=_act_type, least=1)
fused(
    "_backward_Activation",
    lambda p, head, y: head * ACTIVATIONS[p.op.act_type].slope(y),
    variant=_act_type,
    least=MIN_SIZE_MANY_STEPS,
)
fused("LeakyReLU", _leaky_relu, variant=_act_type, least=MIN_SIZE_MANY_STEPS)
fused(
    "_backward_LeakyReLU",
    lambda p, head, x: head * RECTIFIERS[p.op.act_type].slope(p, x),
    variant=_act_type,
    least=MIN_SIZE_MANY_STEPS,
)
