"""Functions of two operands, each an array or a number: ``mx.nd.maximum(2, x)``."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Protocol, cast, overload

import numpy as np

from flowmx.ndarray.arithmetic import Numbers, as_mask
from flowmx.ndarray.array import NDArray
from flowmx.ndarray.fast_calls import FastCall
from flowmx.ops.registry.operators import lookup

Operand = NDArray | float
_NUMBERS: Any = (int, float, bool, np.generic)


class _Binary(Protocol):
    """A function of two operands, which returns a number only for two numbers."""

    @overload
    def __call__(self, lhs: NDArray, rhs: Operand) -> NDArray: ...

    @overload
    def __call__(self, lhs: float, rhs: NDArray) -> NDArray: ...

    @overload
    def __call__(self, lhs: float, rhs: float) -> float: ...

    @overload
    def __call__(self, lhs: Operand, rhs: Operand) -> NDArray | float: ...


def _binary(
    name: str, arrays: str, scalar: str, swapped: str, numbers: Callable[[Any, Any], Any], gives_mask: bool = False
) -> _Binary:
    """Define a function of two operands.

    Args:
        name: its name.
        arrays: the operator of two arrays is ``broadcast_{arrays}``.
        scalar: the operator with a number on the right is ``{scalar}_scalar``.
        swapped: the operator with a number on the left is ``{swapped}_scalar``.
        numbers: the function of two numbers.
        gives_mask: whether it is a comparison.
    """
    both = FastCall(lookup(f"broadcast_{arrays}").create())
    right, left = (Numbers(f"{each}_scalar") for each in (scalar, swapped))

    def function(lhs: Operand, rhs: Operand) -> Any:
        if isinstance(lhs, NDArray):
            if isinstance(rhs, NDArray):
                return both(lhs, rhs)
            if isinstance(rhs, _NUMBERS):
                return (right.bound.get(rhs) or right.bind(rhs))(lhs)
        elif isinstance(lhs, _NUMBERS):
            if isinstance(rhs, NDArray):
                return (left.bound.get(lhs) or left.bind(lhs))(rhs)
            if isinstance(rhs, _NUMBERS):
                return numbers(lhs, rhs)
        side, value = ("rhs", rhs) if isinstance(lhs, (NDArray, *_NUMBERS)) else ("lhs", lhs)
        raise TypeError(f"{name}: {side} is {type(value).__name__}, expected an NDArray or a number")

    if gives_mask:
        compute, function = function, lambda lhs, rhs: as_mask(compute(lhs, rhs))
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{lookup(f'broadcast_{arrays}').__doc__} Each is an array or a number."
    return cast("_Binary", function)


def _mask(compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], float]:
    """Return a comparison of numbers that returns 1.0 or 0.0."""
    return lambda lhs, rhs: float(compute(lhs, rhs))


# fmt: off
add = _binary("add", "add", "_plus", "_plus", operator.add)
subtract = _binary("subtract", "sub", "_minus", "_rminus", operator.sub)
multiply = _binary("multiply", "mul", "_mul", "_mul", operator.mul)
divide = _binary("divide", "div", "_div", "_rdiv", operator.truediv)
true_divide = _binary("true_divide", "div", "_div", "_rdiv", operator.truediv)
modulo = _binary("modulo", "mod", "_mod", "_rmod", operator.mod)
_power = _binary("power", "power", "_power", "_rpower", operator.pow)
maximum = _binary("maximum", "maximum", "_maximum", "_maximum", max)
minimum = _binary("minimum", "minimum", "_minimum", "_minimum", min)
hypot = _binary("hypot", "hypot", "_hypot", "_hypot", math.hypot)
equal = _binary("equal", "equal", "_equal", "_equal", _mask(operator.eq), True)
not_equal = _binary("not_equal", "not_equal", "_not_equal", "_not_equal", _mask(operator.ne), True)
greater = _binary("greater", "greater", "_greater", "_lesser", _mask(operator.gt), True)
greater_equal = _binary("greater_equal", "greater_equal", "_greater_equal", "_lesser_equal", _mask(operator.ge), True)
lesser = _binary("lesser", "lesser", "_lesser", "_greater", _mask(operator.lt), True)
lesser_equal = _binary("lesser_equal", "lesser_equal", "_lesser_equal", "_greater_equal", _mask(operator.le), True)
logical_and = _binary("logical_and", "logical_and", "_logical_and", "_logical_and", _mask(np.logical_and), True)
logical_or = _binary("logical_or", "logical_or", "_logical_or", "_logical_or", _mask(np.logical_or), True)
logical_xor = _binary("logical_xor", "logical_xor", "_logical_xor", "_logical_xor", _mask(np.logical_xor), True)
# fmt: on


@overload
def power(base: NDArray, exp: Operand) -> NDArray: ...


@overload
def power(base: float, exp: NDArray) -> NDArray: ...


@overload
def power(base: float, exp: float) -> float: ...


def power(base: Operand, exp: Operand) -> NDArray | float:
    """Elementwise ``base`` to the power ``exp``, with broadcasting. Each is an array or a number."""
    return _power(base, exp)


__all__ = [
    "add", "divide", "equal", "greater", "greater_equal", "hypot", "lesser", "lesser_equal", "logical_and",
    "logical_or", "logical_xor", "maximum", "minimum", "modulo", "multiply", "not_equal", "power", "subtract",
    "true_divide",
]  # fmt: skip
