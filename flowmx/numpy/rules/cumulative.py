"""The gradients of cumulative sums and products, and of differences."""

from __future__ import annotations

import math

from flowmx.numpy.rules.registry import getitem, is_array, refuse, rule
from flowmx.ops.registry.tensors import Functions, Gradients, Tensor

__all__: list[str] = []


@rule("cumsum")
def _cumsum(
    xp: Functions, g: Tensor, r: Tensor, x: Tensor, axis: int | None = None, *_: object, **others: object
) -> Gradients:
    sum_axis = 0 if axis is None else axis
    return (xp.reshape(xp.flip(xp.cumsum(xp.flip(g, sum_axis), sum_axis), sum_axis), x.shape),)


def _reverse_cumsum(xp: Functions, x: Tensor, axis: int) -> Tensor:
    """Sum each element and those after it."""
    return xp.flip(xp.cumsum(xp.flip(x, axis), axis), axis)


@rule("nancumsum")
def _nancumsum(
    xp: Functions, g: Tensor, r: Tensor, x: Tensor, axis: int | None = None, *_: object, **others: object
) -> Gradients:
    return (xp.reshape(_reverse_cumsum(xp, g, 0 if axis is None else axis), x.shape) * (x == x),)


def _cumprod_gradient(xp: Functions, g: Tensor, x: Tensor, axis: int) -> Tensor:
    """Return the gradient of cumulative products along an axis: the product before an element, times its suffix sum.

    The suffix sum of an element is g + (next element) * (suffix sum of the next element). It is computed by doubling
    distances, without a division, which would fail at zeros.
    """
    axis %= x.ndim
    count = x.shape[axis]
    suffix, factor = g, _shift(xp, x, axis, -1)
    for step in (1 << index for index in range(max(0, count - 1).bit_length())):
        suffix = suffix + factor * _shift(xp, suffix, axis, -step)
        factor = factor * _shift(xp, factor, axis, -step)
    prefix = xp.cumprod(_shift(xp, x, axis, 1, 1.0), axis).astype(g.dtype)
    return prefix * suffix


def _shift(xp: Functions, x: Tensor, axis: int, by: int, fill: float = 0.0) -> Tensor:
    """Shift elements along an axis, filling the free positions with a number."""
    count = x.shape[axis]
    step = min(abs(by), count)
    remaining = slice(0, count - step) if by > 0 else slice(step, None)
    widths = tuple(((step, 0) if by > 0 else (0, step)) if index == axis else (0, 0) for index in range(x.ndim))
    return xp.pad(getitem(x, (slice(None),) * axis + (remaining,)), widths, constant_values=fill)


@rule("cumprod")
def _cumprod(
    xp: Functions, g: Tensor, r: Tensor, x: Tensor, axis: int | None = None, *_: object, **others: object
) -> Gradients:
    if axis is not None:
        return (_cumprod_gradient(xp, g, x, axis),)
    return (xp.reshape(_cumprod_gradient(xp, g, xp.reshape(x, -1), 0), x.shape),)


@rule("nancumprod")
def _nancumprod(
    xp: Functions, g: Tensor, r: Tensor, x: Tensor, axis: int | None = None, *_: object, **others: object
) -> Gradients:
    gradient = _cumprod(xp, g, r, xp.where(x == x, x, 1.0), axis)[0]
    return (xp.where(x == x, gradient, 0.0),)


def _without_initial(g: Tensor, axis: int, others: dict[str, object]) -> Tensor:
    """Remove the gradient of the initial 0 or 1 of a cumulative sum or product."""
    if not others.get("include_initial"):
        return g
    return getitem(g, (slice(None),) * (axis % g.ndim) + (slice(1, None),))


@rule("cumulative_sum")
def _cumulative_sum(
    xp: Functions, g: Tensor, r: Tensor, x: Tensor, axis: int | None = None, **others: object
) -> Gradients:
    axis = 0 if axis is None else axis
    return (_reverse_cumsum(xp, _without_initial(g, axis, others), axis),)


@rule("cumulative_prod")
def _cumulative_prod(
    xp: Functions, g: Tensor, r: Tensor, x: Tensor, axis: int | None = None, **others: object
) -> Gradients:
    axis = 0 if axis is None else axis
    return (_cumprod_gradient(xp, _without_initial(g, axis, others), x, axis),)


@rule("diff")
def _diff(xp: Functions, g: Tensor, r: Tensor, x: Tensor, n: int = 1, axis: int = -1, **others: object) -> Gradients:
    if others:
        refuse("diff with prepend= or append=")
    axis %= x.ndim
    for _ in range(n):
        g = -xp.diff(xp.pad(g, tuple((1, 1) if index == axis else (0, 0) for index in range(x.ndim))), axis=axis)
    return (g,)


@rule("ediff1d")
def _ediff1d(
    xp: Functions, g: Tensor, r: Tensor, x: Tensor, to_end: object = None, to_begin: object = None
) -> Gradients:
    def length(end: object) -> int:
        return (
            0 if end is None else math.prod(end.shape) if is_array(end) else len(end) if hasattr(end, "__len__") else 1
        )

    first, count = length(to_begin), max(0, x.size - 1)
    gradient = -xp.diff(xp.pad(getitem(g, slice(first, first + count)), (1, 1))) if count else xp.reshape(x, -1) * 0
    ends = [
        None if end is None else getitem(g, slice(0, first) if end is to_begin else slice(first + count, None))
        for end in (to_end, to_begin)
    ]
    return xp.reshape(getitem(gradient, slice(0, x.size)), x.shape), *[
        xp.reshape(head, end.shape) if is_array(end) else None
        for head, end in zip(ends, (to_end, to_begin), strict=True)
    ]
