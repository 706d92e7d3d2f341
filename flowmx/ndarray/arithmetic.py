"""Functions of two arrays, or of an array and a number on either side."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from flowmx.ndarray.array import NDArray, elementwise
from flowmx.ops.registry import lookup

Operand = NDArray | float
_NUMBERS = (int, float, bool, np.generic)


def _two(
    name: str, arrays: str, scalar: str, swapped: str, numbers: Callable[[Any, Any], Any]
) -> Callable[[Operand, Operand], Any]:
    """A function of two operands: the operators for arrays, for a number right and left, and for numbers."""

    def function(lhs: Operand, rhs: Operand) -> Any:
        for side, value in (("lhs", lhs), ("rhs", rhs)):
            if not isinstance(value, (NDArray, *_NUMBERS)):
                raise TypeError(f"{name}: {side} is {type(value).__name__}, expected an NDArray or a number")
        if isinstance(lhs, NDArray):
            return elementwise(arrays)(lhs, rhs) if isinstance(rhs, NDArray) else elementwise(scalar, rhs)(lhs)
        if isinstance(rhs, NDArray):
            return elementwise(swapped, lhs)(rhs)
        return numbers(lhs, rhs)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{lookup(arrays).__doc__}\n\nBoth are arrays, or one is a number."
    return function


def _as_number(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], float]:
    return lambda lhs, rhs: float(compare(lhs, rhs))


add = _two("add", "broadcast_add", "_plus_scalar", "_plus_scalar", operator.add)
subtract = _two("subtract", "broadcast_sub", "_minus_scalar", "_rminus_scalar", operator.sub)
multiply = _two("multiply", "broadcast_mul", "_mul_scalar", "_mul_scalar", operator.mul)
divide = _two("divide", "broadcast_div", "_div_scalar", "_rdiv_scalar", operator.truediv)
true_divide = _two("true_divide", "broadcast_div", "_div_scalar", "_rdiv_scalar", operator.truediv)
modulo = _two("modulo", "broadcast_mod", "_mod_scalar", "_rmod_scalar", operator.mod)
power = _two("power", "broadcast_power", "_power_scalar", "_rpower_scalar", operator.pow)
maximum = _two("maximum", "broadcast_maximum", "_maximum_scalar", "_maximum_scalar", max)
minimum = _two("minimum", "broadcast_minimum", "_minimum_scalar", "_minimum_scalar", min)
hypot = _two("hypot", "broadcast_hypot", "_hypot_scalar", "_hypot_scalar", math.hypot)
equal = _two("equal", "broadcast_equal", "_equal_scalar", "_equal_scalar", _as_number(operator.eq))
not_equal = _two("not_equal", "broadcast_not_equal", "_not_equal_scalar", "_not_equal_scalar", _as_number(operator.ne))
greater = _two("greater", "broadcast_greater", "_greater_scalar", "_lesser_scalar", _as_number(operator.gt))
greater_equal = _two(
    "greater_equal",
    "broadcast_greater_equal",
    "_greater_equal_scalar",
    "_lesser_equal_scalar",
    _as_number(operator.ge),
)
lesser = _two("lesser", "broadcast_lesser", "_lesser_scalar", "_greater_scalar", _as_number(operator.lt))
lesser_equal = _two(
    "lesser_equal",
    "broadcast_lesser_equal",
    "_lesser_equal_scalar",
    "_greater_equal_scalar",
    _as_number(operator.le),
)
logical_and = _two(
    "logical_and",
    "broadcast_logical_and",
    "_logical_and_scalar",
    "_logical_and_scalar",
    lambda lhs, rhs: float(bool(lhs) and bool(rhs)),
)
logical_or = _two(
    "logical_or",
    "broadcast_logical_or",
    "_logical_or_scalar",
    "_logical_or_scalar",
    lambda lhs, rhs: float(bool(lhs) or bool(rhs)),
)
logical_xor = _two(
    "logical_xor",
    "broadcast_logical_xor",
    "_logical_xor_scalar",
    "_logical_xor_scalar",
    lambda lhs, rhs: float(bool(lhs) != bool(rhs)),
)

__all__ = [
    "add", "divide", "equal", "greater", "greater_equal", "hypot", "lesser", "lesser_equal", "logical_and",
    "logical_or", "logical_xor", "maximum", "minimum", "modulo", "multiply", "not_equal", "power", "subtract",
    "true_divide",
]  # fmt: skip
