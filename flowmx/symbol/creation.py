"""Symbol functions that are no operators by themselves: constants, splitting, functions of two operands."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from numbers import Number
from typing import Any

from flowmx.ops.arrays.reshaping import split_at
from flowmx.symbol.symbol import Symbol, call

Operand = Symbol | float

# -- constants ---------------------------------------------------------------------------------------------


def zeros(shape: int | Sequence[int], dtype: Any = None, **kwargs: Any) -> Symbol:
    """Zeros of the given shape and dtype (float32 by default); ``name`` and ``attr`` as for every operator."""
    return call("_zeros", (), {"shape": shape, "dtype": dtype, **kwargs})


def ones(shape: int | Sequence[int], dtype: Any = None, **kwargs: Any) -> Symbol:
    """Ones of the given shape and dtype (float32 by default)."""
    return call("_ones", (), {"shape": shape, "dtype": dtype, **kwargs})


def full(shape: int | Sequence[int], val: float, dtype: Any = None, **kwargs: Any) -> Symbol:
    """One number in the given shape and dtype (float32 by default)."""
    return call("_full", (), {"shape": shape, "value": float(val), "dtype": dtype, **kwargs})


def eye(N: int, M: int = 0, k: int = 0, dtype: Any = None, **kwargs: Any) -> Symbol:
    """A matrix of N rows and M columns (default: N) with ones on the k-th diagonal, zeros elsewhere."""
    return call("_eye", (), {"N": N, "M": M, "k": k, "dtype": dtype, **kwargs})


def arange(
    start: float, stop: float | None = None, step: float = 1.0, repeat: int = 1, infer_range: bool = False,
    name: str | None = None, dtype: Any = None,
) -> Symbol:  # fmt: skip
    """Numbers from ``start`` to before ``stop`` in steps of ``step``, each ``repeat`` times.

    With one argument: from 0 to before that. With ``infer_range``, and no ``stop``, as many numbers as the
    use of the symbol asks for.
    """
    given = {"start": start, "stop": stop, "step": step, "repeat": repeat, "infer_range": infer_range}
    return call("_arange", (), {**given, "name": name, "dtype": dtype})


def linspace(
    start: float, stop: float, num: int, endpoint: bool = True, name: str | None = None, dtype: Any = None
) -> Symbol:
    """``num`` evenly spaced numbers from ``start`` to ``stop`` (left out where ``endpoint`` is False)."""
    given = {"start": start, "stop": stop, "num": num, "endpoint": endpoint}
    return call("_linspace", (), {**given, "name": name, "dtype": dtype})


# -- parts -------------------------------------------------------------------------------------------------


def split_v2(
    ary: Symbol, indices_or_sections: int | Sequence[int], axis: int = 0, squeeze_axis: bool = False, **kwargs: Any
) -> Symbol:
    """The parts along an axis: split at the indices given, or into as many equal parts as a number says."""
    where = split_at(indices_or_sections)
    return call("_split_v2", (ary,), {"axis": axis, "squeeze_axis": squeeze_axis, **where, **kwargs})


# -- functions of two operands -----------------------------------------------------------------------------


def _two(
    name: str, arrays: str, scalar: str, swapped: str, numbers: Callable[[Any, Any], Any], doc: str
) -> Callable[[Operand, Operand], Any]:
    """A function of two operands, each a symbol or a number, by the names that MXNet's frontend calls."""

    def function(left: Operand, right: Operand) -> Any:
        for side, value in (("left", left), ("right", right)):
            if not isinstance(value, (Symbol, Number)):
                raise TypeError(f"{name}: {side} is {type(value).__name__}, expected a Symbol or a number")
        if isinstance(left, Symbol):
            if isinstance(right, Symbol):
                return call(arrays, (left, right), {})
            return call(scalar, (left,), {"scalar": right})
        if isinstance(right, Symbol):
            return call(swapped, (right,), {"scalar": left})
        return numbers(left, right)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Elementwise {doc}: of symbols of one shape, of a symbol and a number, or of two numbers."
    return function


_power = _two("power", "_Power", "_PowerScalar", "_RPowerScalar", operator.pow, "left to the power right")
maximum = _two("maximum", "_Maximum", "_MaximumScalar", "_MaximumScalar", max, "maximum")
minimum = _two("minimum", "_Minimum", "_MinimumScalar", "_MinimumScalar", min, "minimum")
hypot = _two("hypot", "_Hypot", "_HypotScalar", "_HypotScalar", math.hypot, "√(left² + right²)")


def power(base: Operand, exp: Operand) -> Any:
    """Elementwise ``base`` to the power ``exp``: of symbols of one shape, a symbol and a number, or two numbers."""
    return _power(base, exp)


pow = power


def histogram(a: Symbol, bins: int | Symbol = 10, range: tuple[float, float] | None = None, **kwargs: Any) -> Symbol:
    """Count the elements of each bin; a bin includes its lower edge, the last one also its upper edge.

    Args:
        a: a symbol of any shape.
        bins: number of bins of equal width, or a symbol of increasing edges of shape (n + 1,).
        range: lowest and highest edge; needed where ``bins`` is a number.
        **kwargs: ``name`` and ``attr`` of the new symbol.

    Returns:
        A symbol of two outputs: the counts, int64 of shape (n,), and the edges, of the data's dtype and shape (n + 1,).

    Raises:
        ValueError: a number of bins without a range, which a symbol can not take from the elements.
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
