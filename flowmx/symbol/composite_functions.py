"""Symbol functions that are not single operators: constants, splitting, functions of two operands."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from numbers import Number
from typing import Any

from flowmx.ops.arrays.shape_arithmetic import split_at
from flowmx.symbol.symbol import Symbol, call

Operand = Symbol | float

# -- constants ---------------------------------------------------------------------------------------------


def zeros(shape: int | Sequence[int], dtype: object = None, **kwargs: object) -> Symbol:
    """Return zeros of a shape and dtype (default: float32). ``name`` and ``attr`` have their usual meaning."""
    return call("_zeros", (), {"shape": shape, "dtype": dtype, **kwargs})


def ones(shape: int | Sequence[int], dtype: object = None, **kwargs: object) -> Symbol:
    """Return ones of a shape and dtype (default: float32)."""
    return call("_ones", (), {"shape": shape, "dtype": dtype, **kwargs})


def full(shape: int | Sequence[int], val: float, dtype: object = None, **kwargs: object) -> Symbol:
    """Return an array filled with one number, of a shape and dtype (default: float32)."""
    return call("_full", (), {"shape": shape, "value": float(val), "dtype": dtype, **kwargs})


def eye(N: int, M: int = 0, k: int = 0, dtype: object = None, **kwargs: object) -> Symbol:
    """Return a matrix of N rows and M columns (default: N) with ones on the k-th diagonal, zeros elsewhere."""
    return call("_eye", (), {"N": N, "M": M, "k": k, "dtype": dtype, **kwargs})


def arange(
    start: float, stop: float | None = None, step: float = 1.0, repeat: int = 1, infer_range: bool = False,
    name: str | None = None, dtype: object = None,
) -> Symbol:  # fmt: skip
    """Return numbers from ``start`` up to but excluding ``stop`` in steps of ``step``, each ``repeat`` times.

    With one argument, the numbers start at 0. With ``infer_range`` and no ``stop``, the number of elements is inferred
    from the operators that use the result.
    """
    parameters = {"start": start, "stop": stop, "step": step, "repeat": repeat, "infer_range": infer_range}
    return call("_arange", (), {**parameters, "name": name, "dtype": dtype})


def linspace(
    start: float, stop: float, num: int, endpoint: bool = True, name: str | None = None, dtype: object = None
) -> Symbol:
    """Return ``num`` evenly spaced numbers from ``start`` to ``stop`` (excluded if ``endpoint`` is False)."""
    parameters = {"start": start, "stop": stop, "num": num, "endpoint": endpoint}
    return call("_linspace", (), {**parameters, "name": name, "dtype": dtype})


# -- parts -------------------------------------------------------------------------------------------------


def split_v2(
    ary: Symbol, indices_or_sections: int | Sequence[int], axis: int = 0, squeeze_axis: bool = False, **kwargs: object
) -> Symbol:
    """Split along an axis at the given indices, or into a number of equal parts."""
    positions = split_at(indices_or_sections)
    return call("_split_v2", (ary,), {"axis": axis, "squeeze_axis": squeeze_axis, **positions, **kwargs})


# -- functions of two operands -----------------------------------------------------------------------------


def _binary_function(
    name: str, symbol_op: str, scalar_op: str, swapped_op: str, number_function: Callable[[Any, Any], Any], doc: str
) -> Callable[[Operand, Operand], Any]:
    """Return a function of two operands, symbols or numbers, which uses the operators of MXNet's frontend."""

    def function(left: Operand, right: Operand) -> Any:
        for side, value in (("left", left), ("right", right)):
            if not isinstance(value, (Symbol, Number)):
                raise TypeError(f"{name}: {side} is {type(value).__name__}, expected a Symbol or a number")
        if isinstance(left, Symbol):
            if isinstance(right, Symbol):
                return call(symbol_op, (left, right), {})
            return call(scalar_op, (left,), {"scalar": right})
        if isinstance(right, Symbol):
            return call(swapped_op, (right,), {"scalar": left})
        return number_function(left, right)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Elementwise {doc}, of symbols of the same shape, of a symbol and a number, or of two numbers."
    return function


_power = _binary_function("power", "_Power", "_PowerScalar", "_RPowerScalar", operator.pow, "left to the power right")
maximum = _binary_function("maximum", "_Maximum", "_MaximumScalar", "_MaximumScalar", max, "maximum")
minimum = _binary_function("minimum", "_Minimum", "_MinimumScalar", "_MinimumScalar", min, "minimum")
hypot = _binary_function("hypot", "_Hypot", "_HypotScalar", "_HypotScalar", math.hypot, "√(left² + right²)")


def power(base: Operand, exp: Operand) -> Any:
    """Raise ``base`` to the power ``exp`` elementwise: two symbols of the same shape, or one or two numbers."""
    return _power(base, exp)


pow = power


def histogram(a: Symbol, bins: int | Symbol = 10, range: tuple[float, float] | None = None, **kwargs: object) -> Symbol:
    """Count the elements in each bin; a bin includes its lower edge, the last one also its upper edge.

    Args:
        a: a symbol of any shape.
        bins: the number of bins of equal width, or a symbol of increasing edges of shape (n + 1,).
        range: the lowest and highest edge; required if ``bins`` is a number.
        **kwargs: ``name`` and ``attr`` of the new symbol.

    Returns:
        A symbol of two outputs: the counts, int64 of shape (n,), and the edges, of the data's dtype and shape (n + 1,).

    Raises:
        ValueError: a number of bins was passed without a range, which a symbol cannot infer from its elements.
    """
    if isinstance(bins, Symbol):
        return call("_histogram", (a, bins), kwargs)
    if range is None:
        raise ValueError("histogram: range is missing, expected the lowest and highest edge of the bins")
    return call("_histogram", (a,), {"bin_cnt": bins, "range": range, **kwargs})


__all__ = [
    "arange", "eye", "full", "histogram", "hypot", "linspace", "maximum", "minimum", "ones", "pow", "power", "split_v2",
    "zeros",
]  # fmt: skip
