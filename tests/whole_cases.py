"""Calls with an integer array and a number outside its dtype's range."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

DTYPES = ["uint8", "int8", "int32", "int64"]
NUMBERS = [-1, -300, 3, 200, 300, 2**31, 2**40, 2**63, -1.5, 300.7, float("nan"), float("inf"), np.int64(-1)]

Case = Callable[[Any, str, Any], Any]


def array(mx: Any, dtype: str) -> Any:
    """A few integers of a dtype."""
    return mx.nd.array([1, 2, 0, 100, 3], dtype=dtype)


def _operator(name: str, swapped: bool = False) -> Case:
    function = getattr(operator, name)
    if swapped:
        return lambda mx, dtype, number: function(number, array(mx, dtype))
    return lambda mx, dtype, number: function(array(mx, dtype), number)


def _of_symbols(make: Callable[[Any, Any], Any]) -> Case:
    """A symbol of a variable and a number that went through JSON."""

    def run(mx: Any, dtype: str, number: Any) -> Any:
        symbol = mx.sym.load_json(make(mx.sym.var("x"), number).tojson())
        return symbol.bind(mx.cpu(), {"x": array(mx, dtype)}).forward()[0]

    return run


def _hybridized(mx: Any, dtype: str, number: Any) -> Any:
    block = mx.gluon.nn.HybridLambda(lambda F, x: (x + number) * 2 - number)
    block.hybridize()
    return block(array(mx, dtype))


def _written(key: Any) -> Case:
    def run(mx: Any, dtype: str, number: Any) -> Any:
        x = array(mx, dtype)
        x[key] = number
        return x

    return run


def _of_numpy(call: Callable[[Any, Any, Any], Any]) -> Case:
    """A call on an array of ``mx.np``; floating numbers are promoted there, so they are left out."""

    def run(mx: Any, dtype: str, number: Any) -> Any:
        if isinstance(number, float):
            return array(mx, dtype)
        return call(mx.np, array(mx, dtype).as_np_ndarray(), number)

    return run


def _padded(mx: Any, dtype: str, number: Any) -> Any:
    image = array(mx, dtype).reshape((1, 1, 1, 5))
    return mx.nd.pad(image, mode="constant", pad_width=(0, 0, 0, 0, 1, 0, 0, 0), constant_value=number)


def _masked(mx: Any, dtype: str, number: Any) -> Any:
    return mx.nd.SequenceMask(array(mx, dtype).reshape((5, 1)), mx.nd.array([1]), True, value=number)


CASES: dict[str, Case] = {
    **{name: _operator(name) for name in ("add", "sub", "mul", "truediv", "mod", "pow", "eq", "ne", "lt", "ge")},
    **{f"r{name}": _operator(name, True) for name in ("sub", "truediv", "mod", "pow", "gt")},
    **{name: _operator(name) for name in ("iadd", "isub", "imul", "imod")},
    "maximum": lambda mx, dtype, number: mx.nd.maximum(array(mx, dtype), number),
    "minimum": lambda mx, dtype, number: mx.nd.minimum(number, array(mx, dtype)),
    "logical_and": lambda mx, dtype, number: mx.nd.logical_and(array(mx, dtype), number),
    "x[:] = n": _written(slice(None)),
    "x[0] = n": _written(0),
    "x[::2] = n": _written(slice(None, None, 2)),
    "x[[0, 2]] = n": _written([0, 2]),
    "full": lambda mx, dtype, number: mx.nd.full((2,), number, dtype=dtype),
    "_full": lambda mx, dtype, number: mx.nd._internal._full(shape=(2,), value=number, dtype=dtype),
    "array": lambda mx, dtype, number: mx.nd.array([number, 1], dtype=dtype),
    "one_hot": lambda mx, dtype, number: mx.nd.one_hot(mx.nd.array([1]), 2, on_value=number, off_value=0, dtype=dtype),
    "pad": _padded,
    "SequenceMask": _masked,
    "clip above": lambda mx, dtype, number: mx.nd.clip(array(mx, dtype), 0, number),
    "clip below": lambda mx, dtype, number: mx.nd.clip(array(mx, dtype), number, 1e6),
    "_slice_assign_scalar": lambda mx, dtype, number: mx.nd._internal._slice_assign_scalar(
        array(mx, dtype), scalar=number, begin=(0,), end=(2,)
    ),
    "symbol +": _of_symbols(lambda x, number: x + number),
    "symbol <": _of_symbols(lambda x, number: x < number),
    "symbol, chained": _of_symbols(lambda x, number: (number - x) * 3 + number),
    "hybridized": _hybridized,
    "np +": _of_numpy(lambda np_, x, number: x + number),
    "np -": _of_numpy(lambda np_, x, number: number - x),
    "np <": _of_numpy(lambda np_, x, number: x < number),
    "np **": _of_numpy(lambda np_, x, number: x**number),
    "np maximum": _of_numpy(lambda np_, x, number: np_.maximum(x, number)),
    "np where": _of_numpy(lambda np_, x, number: np_.where(x > 1, x, number)),
    "np full": _of_numpy(lambda np_, x, number: np_.full((2,), number, dtype=x.dtype)),
}
"""A call of each kind, of (the package, a dtype, a number)."""
