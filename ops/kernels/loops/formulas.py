"""The formulas of elementwise operators: arithmetic, functions, activations and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowmx.ops.kernels.loops import functions as f
from flowmx.ops.kernels.loops.elementwise import fused
from flowmx.ops.kernels.loops.expressions import (
    Expr,
    Parameters,
    absolute,
    ceil,
    clip,
    differ,
    either,
    equal,
    floor,
    maximum,
    minimum,
    not_equal,
    one_if,
    sqrt,
    trunc,
    where,
)

_PLAIN = 1 << 16
"""Elements below which the plain forward is as fast, for operators where it is one of NumPy's fast functions."""

SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def _softsign(x: Expr) -> Expr:
    return x / (absolute(x) + 1.0)


def relu(x: Expr) -> Expr:
    """max(x, 0); NaN stays."""
    return where(x < 0.0, 0.0, x)


def _slope_of_relu(y: Expr) -> Expr:
    """The slope of ReLU by its output, which is not negative; NaN stays."""
    return where(y > 0.0, 1.0, y)


def _sign(x: Expr) -> Expr:
    return one_if(x > 0.0) - one_if(x < 0.0)


def _rint(x: Expr) -> Expr:
    """The nearest integer, halves downwards, as in MXNet."""
    below = floor(x)
    return below + one_if(x - below > ceil(x) - x)


# -- one operand -------------------------------------------------------------------------------------------

_ONE: dict[str, Callable[[Expr], Expr]] = {
    "rsqrt": f.rsqrt,
    "expm1": f.expm1,
    "log1p": f.log1p,
    "tanh": f.tanh,
    "sigmoid": f.sigmoid,
    "softsign": _softsign,
    "_softrelu": f.softplus,
}
_ONE_PLAIN: dict[str, Callable[[Expr], Expr]] = {
    "negative": lambda x: -x,
    "abs": absolute,
    "sign": _sign,
    "rint": _rint,
    "ceil": ceil,
    "floor": floor,
    "trunc": trunc,
    "fix": trunc,
    "square": lambda x: x * x,
    "sqrt": sqrt,
    "exp": f.exp,
    "log": f.log,
    "reciprocal": lambda x: 1.0 / x,
    "relu": relu,
    "_slope_of_relu": _slope_of_relu,
    "logical_not": lambda x: one_if(equal(x, 0.0)),
    "_copy": lambda x: x,
    "BlockGrad": lambda x: x,
}


def _of_one(function: Callable[[Expr], Expr]) -> Callable[..., Expr]:
    return lambda p, x: function(x)


for _name, _function in _ONE.items():
    fused(_name, _of_one(_function))
for _name, _function in _ONE_PLAIN.items():
    fused(_name, _of_one(_function), least=_PLAIN)
fused("erf", _of_one(f.erf), least=512)  # NumPy has none: the plain forward goes through Python's

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
    "logical_or": lambda a, b: one_if(either(not_equal(a, 0.0), not_equal(b, 0.0))),
    "logical_xor": lambda a, b: one_if(differ(not_equal(a, 0.0), not_equal(b, 0.0))),
}
_SCALAR = {"add": "_plus_scalar", "sub": "_minus_scalar"}
_REVERSED = {"sub": "_rminus_scalar", "div": "_rdiv_scalar"}


def _of_two(function: Callable[[Any, Any], Expr]) -> Callable[..., Expr]:
    return lambda p, a, b: function(a, b)


def _with_number(function: Callable[[Any, Any], Expr]) -> Callable[..., Expr]:
    return lambda p, x: function(x, p.scalar)


def _number_with(function: Callable[[Any, Any], Expr]) -> Callable[..., Expr]:
    return lambda p, x: function(p.scalar, x)


for _name, _pair in _TWO.items():
    _same = f"elemwise_{_name}" if _name in ("add", "sub", "mul", "div") else f"_{_name}"
    fused(f"broadcast_{_name}", _of_two(_pair), least=_PLAIN)
    fused(_same, _of_two(_pair), least=_PLAIN)
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


def _smooth_l1(p: Parameters, x: Expr) -> Expr:
    squared, size = p.scalar * p.scalar, absolute(x)
    return where(size < 1.0 / squared, x * x * (0.5 * squared), size - 0.5 / squared)


fused("smooth_l1", _smooth_l1)
fused("clip", lambda p, x: clip(x, p.a_min, p.a_max), least=_PLAIN)
fused("hard_sigmoid", lambda p, x: clip(x * p.alpha + p.beta, 0.0, 1.0))


def _sum(p: Parameters, *terms: Expr) -> Expr:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


fused("add_n", _sum)
fused("where", lambda p, condition, x, y: where(not_equal(condition, 0.0), x, y))

# -- activations -------------------------------------------------------------------------------------------

_ACTIVATIONS: dict[str, tuple[Callable[[Expr], Expr], Callable[[Expr], Expr]]] = {
    # The function of x, and its derivative, of its result.
    "relu": (relu, _slope_of_relu),
    "sigmoid": (f.sigmoid, lambda y: y * (1.0 - y)),
    "tanh": (f.tanh, lambda y: 1.0 - y * y),
    "softrelu": (f.softplus, lambda y: -f.expm1(-y)),
    "softsign": (_softsign, lambda y: (1.0 - absolute(y)) * (1.0 - absolute(y))),
}


def _act_type(op: Any) -> Any:
    return op.act_type


fused("Activation", lambda p, x: _ACTIVATIONS[p.op.act_type][0](x), variant=_act_type)
fused("_backward_Activation", lambda p, head, y: head * _ACTIVATIONS[p.op.act_type][1](y), variant=_act_type)


def _rectified(p: Parameters, x: Expr, gamma: Expr | None = None) -> Expr | None:
    kind = p.op.act_type
    if kind == "gelu":
        return x * f.normal(x)
    if kind == "leaky":
        return where(x < 0.0, x * p.slope, x)
    if kind == "elu":
        return where(x < 0.0, f.expm1(x) * p.slope, x)
    if kind == "selu":
        return where(x < 0.0, f.expm1(x) * (SELU_SCALE * SELU_ALPHA), x * SELU_SCALE)
    return None


def _rectified_backward(p: Parameters, head: Expr, x: Expr) -> Expr | None:
    kind = p.op.act_type
    if kind == "gelu":
        return head * (f.normal(x) + x * f.normal_density(x))
    if kind == "leaky":
        return head * where(x > 0.0, 1.0, p.slope)
    if kind == "elu":
        return head * where(x > 0.0, 1.0, f.exp(x) * p.slope)
    if kind == "selu":
        return head * where(x > 0.0, SELU_SCALE, f.exp(x) * (SELU_SCALE * SELU_ALPHA))
    return None


fused("LeakyReLU", _rectified, variant=_act_type, least=2048)
fused("_backward_LeakyReLU", _rectified_backward, variant=_act_type, least=2048)
