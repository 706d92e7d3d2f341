"""The rules of gradients of ``mx.np``'s functions, and what they are written with."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

from flowmx.graph.gradient import Value
from flowmx.numpy import calls

__all__ = [
    "RULES",
    "Rule",
    "axes_of",
    "count_of",
    "for_matrices",
    "is_array",
    "kept",
    "masked",
    "part",
    "refuse",
    "rule",
    "spread",
    "transposed",
    "typed",
]

Rule = Callable[..., Any]


def refuse(name: str) -> NoReturn:
    """Raise an error that says that there is no gradient.

    Raises:
        AutogradError: always.
    """
    calls.refusal(name)(None, (), (), ())
    raise AssertionError


RULES: dict[str, Rule] = {}
"""For each function one of (functions, gradient of the result, result, *arguments, **keywords)."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule under the names of the functions that it serves."""

    def register(made: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, made))
        return made

    return register


def axes_of(axis: Any, ndim: int) -> tuple[int, ...]:
    """The axes that an argument names, in order."""
    if axis is None:
        return tuple(range(ndim))
    return tuple(sorted(each % ndim for each in (axis if isinstance(axis, (tuple, list)) else (axis,)))) if ndim else ()


def kept(np: Any, value: Any, x: Any, axis: Any) -> Any:
    """A reduction's result, or its gradient, with the axes of length 1 that it lost."""
    axes = axes_of(axis, x.ndim)
    return np.reshape(value, tuple(1 if at in axes else n for at, n in enumerate(x.shape)))


def spread(np: Any, g: Any, x: Any, axis: Any) -> Any:
    """A reduction's gradient, broadcast over what was reduced."""
    return np.broadcast_to(kept(np, g, x, axis), x.shape)


def count_of(x: Any, axis: Any) -> int:
    """The number of elements that a reduction takes together."""
    return math.prod(x.shape[at] for at in axes_of(axis, x.ndim))


def typed(g: Any, x: Any) -> Any:
    """A gradient in the dtype of the floating array that it is of, in which it is then computed."""
    return g.astype(x.dtype) if x._dtype.kind == "f" and g._dtype != x._dtype else g


def part(array: Any, key: Any) -> Any:
    """The part of an array at a key as an operation of its own: a view is nothing that a rule could run again."""
    is_array = not isinstance(array, Value)
    return calls.call("getitem", (array, key), {}) if is_array else array[key]


def masked(np: Any, gradient: Any, where: Any) -> Any:
    """A gradient where a mask is true."""
    return gradient if where is None or where is True else np.where(where, gradient, 0.0)


def is_array(value: Any) -> bool:
    """Tell whether an argument is an array, or a value of a graph."""
    return hasattr(value, "_dtype")


def transposed(np: Any, x: Any) -> Any:
    """The transposed matrices."""
    return np.swapaxes(x, -1, -2)


def for_matrices(np: Any, g: Any) -> Any:
    """A number for each matrix, with two axes for the matrix."""
    return np.reshape(g, (*g.shape, 1, 1))
