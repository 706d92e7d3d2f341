"""The registry of gradient rules, and helper functions for rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeGuard, cast

from flowmx.graph.gradient import Value
from flowmx.numpy import calls, graph_values
from flowmx.ops.registry.tensors import Functions, Gradients, Tensor

__all__ = [
    "RULES",
    "Axis",
    "Rule",
    "apply_mask",
    "axes_of",
    "broadcast_back",
    "cast_to",
    "count_of",
    "divide",
    "extension",
    "for_matrices",
    "from_rows",
    "getitem",
    "is_array",
    "reciprocal",
    "refuse",
    "replace_zeros",
    "restore_axes",
    "rule",
    "to_rows",
    "transpose_last",
]

Axis = int | Sequence[int] | None
"""The ``axis`` argument of a function; None: all axes."""
Rule = Callable[..., Gradients]


def refuse(name: str) -> NoReturn:
    """Raise the error for a function without a gradient.

    Raises:
        AutogradError: always.
    """
    calls.refusal(name)(None, (), (), ())
    raise AssertionError


RULES: dict[str, Rule] = {}
"""The gradient rule of each function, called with (namespace, gradient of result, result, *arguments, **keywords)."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a gradient rule for functions."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def axes_of(axis: Axis, ndim: int) -> tuple[int, ...]:
    """Return the sorted axes of an ``axis`` argument."""
    if axis is None:
        return tuple(range(ndim))
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    return tuple(sorted(index % ndim for index in axes)) if ndim else ()


def restore_axes(xp: Functions, value: Tensor, x: Tensor, axis: Axis) -> Tensor:
    """Restore the reduced axes, with length 1, of a reduction's result or of its gradient."""
    axes = axes_of(axis, x.ndim)
    return xp.reshape(value, tuple(1 if index in axes else n for index, n in enumerate(x.shape)))


def broadcast_back(xp: Functions, g: Tensor, x: Tensor, axis: Axis) -> Tensor:
    """Broadcast a reduction's gradient to the shape of its input."""
    return xp.broadcast_to(restore_axes(xp, g, x, axis), x.shape)


def count_of(x: Tensor, axis: Axis) -> int:
    """Return the number of elements that are reduced to one."""
    return math.prod(x.shape[index] for index in axes_of(axis, x.ndim))


def replace_zeros(divisor: Tensor) -> Tensor:
    """Replace 0 by 1 in a divisor whose dividend is 0 there."""
    return divisor + (divisor == 0)


def divide(xp: Functions, value: Tensor, divisor: Tensor) -> Tensor:
    """Divide, with the result 0 where the divisor is 0."""
    is_zero = divisor == 0
    return xp.where(is_zero, 0.0, value / xp.where(is_zero, 1.0, divisor))


def reciprocal(count: float) -> float:
    """Return the reciprocal of a number of elements; infinity for 0, as in NumPy."""
    return 1 / count if count > 0 else math.inf


def cast_to(g: Tensor, x: Tensor) -> Tensor:
    """Cast a gradient to the dtype of its floating-point array."""
    return g.astype(x.dtype) if x.element_type.kind == "f" and g.element_type != x.element_type else g


def getitem(array: Tensor, key: object) -> Tensor:
    """Index an array with an operation. A view could not be differentiated again."""
    return extension(array, "getitem", key)


def extension(array: Tensor, function: str, *args: object) -> Tensor:
    """Call a function of ``operator.EXTENSIONS`` with an array and other arguments."""
    value: object = array
    if isinstance(value, Value):
        return cast("Tensor", graph_values.call(value.builder, function, (array, *args), {}))
    return cast("Tensor", calls.call(function, (array, *args), {}))


def to_rows(xp: Functions, x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Move the reduced axes to the end and merge them into one."""
    others = tuple(index for index in range(x.ndim) if index not in axes)
    return xp.reshape(xp.transpose(x, (*others, *axes)), (*(x.shape[index] for index in others), -1))


def from_rows(xp: Functions, rows: Tensor, x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Undo :func:`to_rows`."""
    order = (*(index for index in range(x.ndim) if index not in axes), *axes)
    whole = xp.reshape(rows, tuple(x.shape[index] for index in order))
    return xp.transpose(whole, tuple(order.index(index) for index in range(x.ndim)))


def apply_mask(xp: Functions, gradient: Tensor, where: object) -> Tensor:
    """Set a gradient to 0 where a mask is false."""
    return gradient if where is None or where is True else xp.where(where, gradient, 0.0)


def is_array(value: object) -> TypeGuard[Tensor]:
    """Return whether an argument is an array, or a value of a graph."""
    return hasattr(value, "element_type")


def transpose_last(xp: Functions, x: Tensor) -> Tensor:
    """Transpose the last two axes."""
    return xp.swapaxes(x, -1, -2)


def for_matrices(xp: Functions, g: Tensor) -> Tensor:
    """Append two axes, to broadcast a number per matrix over the matrix."""
    return xp.reshape(g, (*g.shape, 1, 1))
