"""Arithmetic as functions: ``mx.nd.add(a, b)``, where either side may be a number, as MXNet has them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from flowmx.ndarray import functions
from flowmx.ndarray.array import NDArray

__all__ = [
    "add", "divide", "equal", "greater", "greater_equal", "hypot", "lesser", "lesser_equal", "logical_and",
    "logical_or", "logical_xor", "maximum", "minimum", "modulo", "multiply", "not_equal", "power", "subtract",
    "true_divide",
]  # fmt: skip

Operand = NDArray | float
_NUMBERS = (int, float, bool, np.generic)


def _two(name: str, doc: str, numbers: Callable[[Any, Any], Any], symmetric: str = "") -> Callable[..., Any]:
    """A function of two operands.

    Args:
        name: what it is called.
        doc: what it computes.
        numbers: how it computes two numbers; also arrays, where Python has an operator for it.
        symmetric: for a function without one, its operator for an array and a number.
    """

    def function(lhs: Operand, rhs: Operand) -> Any:
        for side, value in (("lhs", lhs), ("rhs", rhs)):
            if not isinstance(value, (NDArray, *_NUMBERS)):
                raise TypeError(f"{name}: {side} is {type(value).__name__}, expected an NDArray or a number")
        arrays = [value for value in (lhs, rhs) if isinstance(value, NDArray)]
        if not symmetric or not arrays:
            return numbers(lhs, rhs)
        if len(arrays) == 2:
            return functions.op(f"broadcast_{name}", *arrays)
        return functions.op(symmetric, arrays[0], scalar=rhs if arrays[0] is lhs else lhs)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Elementwise {doc}, with broadcasting; either side may be a number."
    return function


add = _two("add", "lhs + rhs", operator.add)
subtract = _two("subtract", "lhs - rhs", operator.sub)
multiply = _two("multiply", "lhs · rhs", operator.mul)
divide = _two("divide", "lhs / rhs", operator.truediv)
true_divide = _two("true_divide", "lhs / rhs", operator.truediv)
modulo = _two("modulo", "lhs mod rhs", operator.mod)
power = _two("power", "lhs to the power rhs", operator.pow)
equal = _two("equal", "1 where lhs = rhs, else 0", operator.eq)
not_equal = _two("not_equal", "1 where lhs ≠ rhs, else 0", operator.ne)
greater = _two("greater", "1 where lhs > rhs, else 0", operator.gt)
greater_equal = _two("greater_equal", "1 where lhs ≥ rhs, else 0", operator.ge)
lesser = _two("lesser", "1 where lhs < rhs, else 0", operator.lt)
lesser_equal = _two("lesser_equal", "1 where lhs ≤ rhs, else 0", operator.le)
maximum = _two("maximum", "maximum", max, "_maximum_scalar")
minimum = _two("minimum", "minimum", min, "_minimum_scalar")
hypot = _two("hypot", "√(lhs² + rhs²)", math.hypot, "_hypot_scalar")
logical_and = _two("logical_and", "logical and", lambda a, b: bool(a) and bool(b), "_logical_and_scalar")
logical_or = _two("logical_or", "logical or", lambda a, b: bool(a) or bool(b), "_logical_or_scalar")
logical_xor = _two("logical_xor", "logical exclusive or", lambda a, b: bool(a) != bool(b), "_logical_xor_scalar")
