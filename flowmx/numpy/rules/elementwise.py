"""The derivatives of elementwise functions."""

from __future__ import annotations

import math
from typing import Any

from flowmx.numpy.rules.registry import (
    Rule,
    is_array,
)

__all__ = ["ELEMENTWISE"]


_LN2, _LN10 = math.log(2), math.log(10)


ELEMENTWISE: dict[str, tuple[Rule, ...]] = {
    "absolute": (lambda np, g, r, x: g * np.sign(x),),
    "fabs": (lambda np, g, r, x: g * np.sign(x),),
    "add": (lambda np, g, r, x, y: g, lambda np, g, r, x, y: g),
    "subtract": (lambda np, g, r, x, y: g, lambda np, g, r, x, y: -g),
    "multiply": (lambda np, g, r, x, y: g * y, lambda np, g, r, x, y: g * x),
    "true_divide": (lambda np, g, r, x, y: g / y, lambda np, g, r, x, y: -g * r / y),
    "power": (
        lambda np, g, r, x, y: g * y * np.power(x, y - 1),
        lambda np, g, r, x, y: g * r * np.log(np.where(_positive(x), x, 1.0) if is_array(x) else x),
    ),
    "float_power": (lambda np, g, r, x, y: g * y * np.power(x, y - 1), lambda np, g, r, x, y: g * r * np.log(x)),
    "remainder": (lambda np, g, r, x, y: g, lambda np, g, r, x, y: -g * np.floor_divide(x, y)),
    "fmod": (lambda np, g, r, x, y: g, lambda np, g, r, x, y: -g * np.trunc(x / y)),
    "maximum": (lambda np, g, r, x, y: g * (x >= y), lambda np, g, r, x, y: g * (x < y)),
    "minimum": (lambda np, g, r, x, y: g * (x <= y), lambda np, g, r, x, y: g * (x > y)),
    "fmax": (lambda np, g, r, x, y: g * (r == x), lambda np, g, r, x, y: g * (r != x)),
    "fmin": (lambda np, g, r, x, y: g * (r == x), lambda np, g, r, x, y: g * (r != x)),
    "hypot": (lambda np, g, r, x, y: g * x / r, lambda np, g, r, x, y: g * y / r),
    "arctan2": (
        lambda np, g, r, x, y: g * y / (x * x + y * y),
        lambda np, g, r, x, y: -g * x / (x * x + y * y),
    ),
    "copysign": (lambda np, g, r, x, y: g * np.sign(x) * np.sign(r), lambda np, g, r, x, y: g * 0),
    "ldexp": (lambda np, g, r, x, y: g * np.exp2(y), lambda np, g, r, x, y: g * r * _LN2),
    "logaddexp": (lambda np, g, r, x, y: g * np.exp(x - r), lambda np, g, r, x, y: g * np.exp(y - r)),
    "logaddexp2": (lambda np, g, r, x, y: g * np.exp2(x - r), lambda np, g, r, x, y: g * np.exp2(y - r)),
    "negative": (lambda np, g, r, x: -g,),
    "positive": (lambda np, g, r, x: g,),
    "conjugate": (lambda np, g, r, x: g,),
    "real": (lambda np, g, r, x: g,),
    "exp": (lambda np, g, r, x: g * r,),
    "exp2": (lambda np, g, r, x: g * r * _LN2,),
    "expm1": (lambda np, g, r, x: g * (r + 1),),
    "log": (lambda np, g, r, x: g / x,),
    "log2": (lambda np, g, r, x: g / (x * _LN2),),
    "log10": (lambda np, g, r, x: g / (x * _LN10),),
    "log1p": (lambda np, g, r, x: g / (x + 1),),
    "sqrt": (lambda np, g, r, x: g * 0.5 / r,),
    "cbrt": (lambda np, g, r, x: g / (3 * r * r),),
    "square": (lambda np, g, r, x: g * 2 * x,),
    "reciprocal": (lambda np, g, r, x: -g * r * r,),
    "sin": (lambda np, g, r, x: g * np.cos(x),),
    "cos": (lambda np, g, r, x: -g * np.sin(x),),
    "tan": (lambda np, g, r, x: g * (r * r + 1),),
    "arcsin": (lambda np, g, r, x: g / np.sqrt(1 - x * x),),
    "arccos": (lambda np, g, r, x: -g / np.sqrt(1 - x * x),),
    "arctan": (lambda np, g, r, x: g / (x * x + 1),),
    "sinh": (lambda np, g, r, x: g * np.cosh(x),),
    "cosh": (lambda np, g, r, x: g * np.sinh(x),),
    "tanh": (lambda np, g, r, x: g * (1 - r * r),),
    "arcsinh": (lambda np, g, r, x: g / np.sqrt(x * x + 1),),
    "arccosh": (lambda np, g, r, x: g / np.sqrt(x * x - 1),),
    "arctanh": (lambda np, g, r, x: g / (1 - x * x),),
    "deg2rad": (lambda np, g, r, x: g * (math.pi / 180),),
    "rad2deg": (lambda np, g, r, x: g * (180 / math.pi),),
    "sinc": (lambda np, g, r, x: g * np.where(x == 0, 0.0, (np.cos(x * math.pi) - r) / np.where(x == 0, 1.0, x)),),
    "angle": (lambda np, g, r, x, *others: g * 0,),
    "imag": (lambda np, g, r, x: g * 0,),
    "nan_to_num": (lambda np, g, r, x, *others: g * (r == x),),
}
"""For each function the derivative for each argument, of (functions, gradient of the result, result, *arguments)."""


def _positive(x: Any) -> Any:
    return x > 0
