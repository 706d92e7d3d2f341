"""The gradients of elementwise functions."""

from __future__ import annotations

import math
from typing import Any

from flowmx.numpy.rules.registry import Rule, is_array, replace_zeros, rule
from flowmx.ops.registry.tensors import Functions, Gradients, Tensor

__all__ = ["ELEMENTWISE"]


_LN2, _LN10 = math.log(2), math.log(10)


ELEMENTWISE: dict[str, tuple[Rule, ...]] = {
    "absolute": (lambda xp, g, r, x: g * xp.sign(x),),
    "fabs": (lambda xp, g, r, x: g * xp.sign(x),),
    "add": (lambda xp, g, r, x, y: g, lambda xp, g, r, x, y: g),
    "subtract": (lambda xp, g, r, x, y: g, lambda xp, g, r, x, y: -g),
    "multiply": (lambda xp, g, r, x, y: g * y, lambda xp, g, r, x, y: g * x),
    "true_divide": (lambda xp, g, r, x, y: g / y, lambda xp, g, r, x, y: -g * r / y),
    "power": (
        lambda xp, g, r, x, y: g * y * xp.power(_base(x, y), y - 1),
        lambda xp, g, r, x, y: g * r * xp.log(xp.where(_positive(x), x, 1.0) if is_array(x) else x or 1.0),
    ),
    "float_power": (
        lambda xp, g, r, x, y: g * y * xp.power(_base(x, y), y - 1),
        lambda xp, g, r, x, y: g * r * xp.log(x + (x == 0)),
    ),
    "remainder": (lambda xp, g, r, x, y: g, lambda xp, g, r, x, y: -g * xp.floor_divide(x, y)),
    "fmod": (lambda xp, g, r, x, y: g, lambda xp, g, r, x, y: -g * xp.trunc(x / y)),
    "maximum": (lambda xp, g, r, x, y: g * (x >= y), lambda xp, g, r, x, y: g * (x < y)),
    "minimum": (lambda xp, g, r, x, y: g * (x <= y), lambda xp, g, r, x, y: g * (x > y)),
    "fmax": (lambda xp, g, r, x, y: g * (r == x), lambda xp, g, r, x, y: g * (r != x)),
    "fmin": (lambda xp, g, r, x, y: g * (r == x), lambda xp, g, r, x, y: g * (r != x)),
    "hypot": (lambda xp, g, r, x, y: g * x / replace_zeros(r), lambda xp, g, r, x, y: g * y / replace_zeros(r)),
    "arctan2": (
        lambda xp, g, r, x, y: g * y / replace_zeros(x * x + y * y),
        lambda xp, g, r, x, y: -g * x / replace_zeros(x * x + y * y),
    ),
    "copysign": (lambda xp, g, r, x, y: g * xp.sign(x) * xp.sign(r), lambda xp, g, r, x, y: g * 0),
    "ldexp": (lambda xp, g, r, x, y: g * xp.exp2(y), lambda xp, g, r, x, y: g * r * _LN2),
    "logaddexp": (
        lambda xp, g, r, x, y: g / (1 + xp.exp(_difference(xp, y, x))),
        lambda xp, g, r, x, y: g / (1 + xp.exp(_difference(xp, x, y))),
    ),
    "logaddexp2": (
        lambda xp, g, r, x, y: g / (1 + xp.exp2(_difference(xp, y, x))),
        lambda xp, g, r, x, y: g / (1 + xp.exp2(_difference(xp, x, y))),
    ),
    "negative": (lambda xp, g, r, x: -g,),
    "positive": (lambda xp, g, r, x: g,),
    "conjugate": (lambda xp, g, r, x: g,),
    "real": (lambda xp, g, r, x: g,),
    "exp": (lambda xp, g, r, x: g * r,),
    "exp2": (lambda xp, g, r, x: g * r * _LN2,),
    "expm1": (lambda xp, g, r, x: g * (r + 1),),
    "log": (lambda xp, g, r, x: g / x,),
    "log2": (lambda xp, g, r, x: g / (x * _LN2),),
    "log10": (lambda xp, g, r, x: g / (x * _LN10),),
    "log1p": (lambda xp, g, r, x: g / (x + 1),),
    "sqrt": (lambda xp, g, r, x: g * 0.5 / r,),
    "cbrt": (lambda xp, g, r, x: g / (3 * r * r),),
    "square": (lambda xp, g, r, x: g * 2 * x,),
    "reciprocal": (lambda xp, g, r, x: -g * r * r,),
    "sin": (lambda xp, g, r, x: g * xp.cos(x),),
    "cos": (lambda xp, g, r, x: -g * xp.sin(x),),
    "tan": (lambda xp, g, r, x: g * (r * r + 1),),
    "arcsin": (lambda xp, g, r, x: g / xp.sqrt(1 - x * x),),
    "arccos": (lambda xp, g, r, x: -g / xp.sqrt(1 - x * x),),
    "arctan": (lambda xp, g, r, x: g / (x * x + 1),),
    "sinh": (lambda xp, g, r, x: g * xp.cosh(x),),
    "cosh": (lambda xp, g, r, x: g * xp.sinh(x),),
    "tanh": (lambda xp, g, r, x: g * (1 - r * r),),
    "arcsinh": (lambda xp, g, r, x: g / xp.sqrt(x * x + 1),),
    "arccosh": (lambda xp, g, r, x: g / xp.sqrt(x * x - 1),),
    "arctanh": (lambda xp, g, r, x: g / (1 - x * x),),
    "deg2rad": (lambda xp, g, r, x: g * (math.pi / 180),),
    "rad2deg": (lambda xp, g, r, x: g * (180 / math.pi),),
    "sinc": (lambda xp, g, r, x: g * xp.where(x == 0, 0.0, (xp.cos(x * math.pi) - r) / xp.where(x == 0, 1.0, x)),),
    "angle": (lambda xp, g, r, x, *others: g * 0,),
    "imag": (lambda xp, g, r, x: g * 0,),
    "nan_to_num": (lambda xp, g, r, x, *others: g * (r == x),),
}
"""For each function the gradient rule of each argument, called with (namespace, gradient, result, *arguments)."""


def _positive(x: Any) -> Any:
    return x > 0


def _base(base: Any, exponent: Any) -> Any:
    """Replace the base 0 where the exponent is 0, too: the derivative there is 0, not NaN."""
    if not is_array(exponent) and exponent != 0:
        return base
    return base + (base == 0) * (exponent == 0)


def _difference(xp: Functions, one: Tensor, other: Tensor) -> Tensor:
    """Subtract, with the result 0 for equal numbers, including infinities."""
    return xp.where(one == other, 0.0, one - other)


@rule("divmod")
def _divmod(xp: Functions, g: Tensor, r: Tensor, x: Tensor, y: Tensor) -> Gradients:
    return g[1], -g[1] * r[0]


@rule("modf")
def _modf(xp: Functions, g: Tensor, r: Tensor, x: Tensor) -> Gradients:
    return (g[0],)


@rule("frexp")
def _frexp(xp: Functions, g: Tensor, r: Tensor, x: Tensor) -> Gradients:
    return (g[0] * xp.exp2(-r[1].astype(x.dtype)),)


@rule("i0")
def _i0(xp: Functions, g: Tensor, r: Tensor, x: Tensor) -> Gradients:
    # Bessel's I1 is the mean of exp(x cos t) cos t over half a period; this sum has full precision up to |x| = 700.
    cosines = xp.cos((xp.arange(128, dtype="float64") + 0.5) * (math.pi / 128))
    terms = xp.exp(xp.expand_dims(x, -1) * cosines) * cosines
    return (g * xp.mean(terms, axis=-1).astype(x.dtype),)


@rule("clip")
def _clip(
    xp: Functions, g: Tensor, r: Tensor, x: Tensor, low: object = None, high: object = None, **others: object
) -> Gradients:
    low, high = (others.get(a, others.get(b, c)) for a, b, c in (("a_min", "min", low), ("a_max", "max", high)))
    inside: Any = x == x
    inside = inside if low is None else inside & (x >= low)
    return (g * (inside if high is None else inside & (x <= high)),)
