"""The gradients of sums, products, extremes, means, variances and covariances. quantiles.py has the quantiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowmx.numpy.rules.registry import (
    Axis,
    apply_mask,
    axes_of,
    broadcast_back,
    cast_to,
    count_of,
    divide,
    extension,
    from_rows,
    getitem,
    reciprocal,
    refuse,
    replace_zeros,
    restore_axes,
    rule,
    to_rows,
)
from flowmx.ops.math.leave_one_out import leave_one_out_derivative
from flowmx.ops.registry.tensors import Functions, Gradients, Tensor

__all__: list[str] = []


@rule("sum")
def _sum(
    xp: Functions,
    g: Tensor,
    r: Tensor,
    x: Tensor,
    axis: Axis = None,
    *_: object,
    where: object = None,
    **others: object,
) -> Gradients:
    return (apply_mask(xp, broadcast_back(xp, g, x, axis), where),)


@rule("nansum")
def _nansum(
    xp: Functions, g: Tensor, r: Tensor, x: Tensor, axis: Axis = None, *_: object, **others: object
) -> Gradients:
    return (broadcast_back(xp, g, x, axis) * (x == x),)


@rule("mean")
def _mean(
    xp: Functions,
    g: Tensor,
    r: Tensor,
    x: Tensor,
    axis: Axis = None,
    *_: object,
    where: object = None,
    **others: object,
) -> Gradients:
    if where is not None:
        refuse("mean with where=")
    return (broadcast_back(xp, cast_to(g, x) / max(1, count_of(x, axis)), x, axis),)


@rule("prod")
def _prod(
    xp: Functions,
    g: Tensor,
    r: Tensor,
    x: Tensor,
    axis: Axis = None,
    *_: object,
    where: object = None,
    **others: object,
) -> Gradients:
    factors = x if where is None or where is True else xp.where(where, x, 1.0)
    products = extension(factors, "products_of_others", axes_of(axis, x.ndim))
    return (apply_mask(xp, broadcast_back(xp, g, x, axis) * products, where),)


@rule("nanprod")
def _nanprod(
    xp: Functions, g: Tensor, r: Tensor, x: Tensor, axis: Axis = None, *_: object, **others: object
) -> Gradients:
    present = x == x
    products = extension(xp.where(present, x, 1.0), "products_of_others", axes_of(axis, x.ndim))
    return (xp.where(present, broadcast_back(xp, g, x, axis) * products, 0.0),)


@rule("products_of_others")
def _products_of_others(xp: Functions, g: Tensor, r: Tensor, x: Tensor, axes: tuple[int, ...]) -> Gradients:
    if 0 in x.shape or not axes:
        return (x * 0,)

    def cut(array: Tensor, start: int, stop: int) -> Tensor:
        return getitem(array, (Ellipsis, slice(start, stop)))

    def join(parts: list[Tensor]) -> Tensor:
        return xp.concatenate(parts, axis=-1)

    gradient = leave_one_out_derivative(to_rows(xp, x, axes), to_rows(xp, g, axes), count_of(x, axes), cut, join)
    return (from_rows(xp, gradient, x, axes),)


@rule("max", "min", "nanmax", "nanmin")
def _extreme(
    xp: Functions, g: Tensor, r: Tensor, x: Tensor, axis: Axis = None, *_: object, **others: object
) -> Gradients:
    return (broadcast_back(xp, g, x, axis) * (x == restore_axes(xp, r, x, axis)),)


@rule("ptp")
def _ptp(xp: Functions, g: Tensor, r: Tensor, x: Tensor, axis: Axis = None, *_: object, **others: object) -> Gradients:
    high, low = (f(x, axis=axis, keepdims=True) for f in (xp.max, xp.min))
    return (restore_axes(xp, g, x, axis) * ((x == high).astype(x.dtype) - (x == low).astype(x.dtype)),)


@rule("var")
def _var(
    xp: Functions, g: Tensor, r: Tensor, x: Tensor, axis: Axis = None, *_: object, ddof: float = 0, **others: Any
) -> Gradients:
    centred = x - xp.mean(x, axis=axis, keepdims=True)
    return (
        restore_axes(xp, g, x, axis) * centred * (2 * reciprocal(count_of(x, axis) - others.get("correction", ddof))),
    )


@rule("std")
def _std(
    xp: Functions, g: Tensor, r: Tensor, x: Tensor, axis: Axis = None, *_: object, ddof: float = 0, **others: Any
) -> Gradients:
    centred = x - xp.mean(x, axis=axis, keepdims=True)
    scale = reciprocal(count_of(x, axis) - others.get("correction", ddof))
    return (restore_axes(xp, g / replace_zeros(r), x, axis) * centred * scale,)


@rule("average")
def _average(
    xp: Functions,
    g: Tensor,
    r: Tensor,
    x: Tensor,
    axis: int | None = None,
    weights: Tensor | None = None,
    *_: object,
    **others: object,
) -> Gradients:
    if others.get("returned"):
        g, r = g[0], r[0]
    if weights is None:
        return _mean(xp, g, r, x, axis)
    position = 0 if axis is None else axis % x.ndim
    if weights.shape != x.shape:
        weights_whole = xp.reshape(weights, tuple(n if index == position else 1 for index, n in enumerate(x.shape)))
    else:
        weights_whole = weights
    total = xp.sum(xp.broadcast_to(weights_whole, x.shape), axis=axis, keepdims=True)
    head = restore_axes(xp, g, x, axis)
    weights_gradient = head * (x - restore_axes(xp, r, x, axis)) / total
    if weights.shape != x.shape:
        other_axes = tuple(index for index in range(x.ndim) if index != position)
        weights_gradient = xp.sum(weights_gradient, axis=other_axes)
    return head * weights_whole / total, None, weights_gradient


def _mask_nans(xp: Functions, x: Tensor, axis: Axis) -> tuple[Tensor, Tensor, Tensor]:
    """Return the numbers with NaNs replaced by zeros, the mask of the elements that are not NaN, and their count."""
    mask = x == x
    return xp.where(mask, x, 0.0), mask, xp.sum(mask.astype(x.dtype), axis=axis, keepdims=True)


@rule("nanmean")
def _nanmean(
    xp: Functions,
    g: Tensor,
    r: Tensor,
    x: Tensor,
    axis: Axis = None,
    *_: object,
    where: object = None,
    **others: object,
) -> Gradients:
    if where is not None:
        refuse("nanmean with where=")
    mask, count = _mask_nans(xp, x, axis)[1:]
    return (divide(xp, restore_axes(xp, g, x, axis), count) * mask,)


def _nanvar_gradient(
    xp: Functions, head: Tensor, x: Tensor, axis: Axis, ddof: float, others: Mapping[str, object]
) -> Gradients:
    if others.get("where") is not None or others.get("mean") is not None:
        refuse("nanvar with where= or mean=")
    numbers, mask, count = _mask_nans(xp, x, axis)
    centred = xp.where(mask, numbers - divide(xp, xp.sum(numbers, axis=axis, keepdims=True), count), 0.0)
    return (restore_axes(xp, head, x, axis) * centred / (count - others.get("correction", ddof)),)


@rule("nanvar")
def _nanvar(
    xp: Functions, g: Tensor, r: Tensor, x: Tensor, axis: Axis = None, *_: object, ddof: float = 0, **others: object
) -> Gradients:
    return _nanvar_gradient(xp, g * 2, x, axis, ddof, others)


@rule("nanstd")
def _nanstd(
    xp: Functions, g: Tensor, r: Tensor, x: Tensor, axis: Axis = None, *_: object, ddof: float = 0, **others: object
) -> Gradients:
    return _nanvar_gradient(xp, g / replace_zeros(r), x, axis, ddof, others)


@rule("cov")
def _cov(
    xp: Functions, g: Tensor, r: Tensor, m: Tensor, y: Tensor | None = None, rowvar: bool = True,
    bias: bool = False, ddof: int | None = None, *_: object, **others: object,
) -> Gradients:  # fmt: skip
    if y is not None or others.get("fweights") is not None or others.get("aweights") is not None or _:
        refuse("cov with y= or weights")
    rows = xp.reshape(m, (1, -1)) if m.ndim == 1 else m if rowvar or m.shape[0] == 1 else xp.transpose(m)
    scale = reciprocal(rows.shape[1] - (ddof if ddof is not None else 0 if bias else 1))
    centred = rows - xp.mean(rows, axis=1, keepdims=True)
    head = xp.reshape(g, (rows.shape[0], rows.shape[0]))
    gradient = xp.matmul(head + xp.transpose(head), centred) * scale
    return (xp.reshape(gradient if rows.shape == m.shape or m.ndim == 1 else xp.transpose(gradient), m.shape),)


@rule("corrcoef")
def _corrcoef(
    xp: Functions,
    g: Tensor,
    r: Tensor,
    x: Tensor,
    y: Tensor | None = None,
    rowvar: bool = True,
    *_: object,
    **others: object,
) -> Gradients:
    if y is not None or others:
        refuse("corrcoef with y= or a dtype")
    if x.ndim == 1:
        return (x * 0,)
    rows = x if rowvar else xp.transpose(x)
    centred = rows - xp.mean(rows, axis=1, keepdims=True)
    length = xp.sqrt(xp.sum(centred * centred, axis=1, keepdims=True))
    unit = centred / length
    head = xp.matmul(g + xp.transpose(g), unit)
    gradient = (head - unit * xp.sum(unit * head, axis=1, keepdims=True)) / length
    return (gradient if rowvar else xp.transpose(gradient),)
