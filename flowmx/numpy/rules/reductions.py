"""The gradients of sums, means, extremes and what else goes along axes."""

from __future__ import annotations

import math
from typing import Any

from flowmx.numpy.rules.registry import (
    count_of,
    is_array,
    kept,
    masked,
    part,
    refuse,
    rule,
    spread,
    typed,
)

__all__: list[str] = []


@rule("sum")
def _sum(np: Any, g: Any, r: Any, x: Any, axis: Any = None, *_: Any, where: Any = None, **others: Any) -> Any:
    return (masked(np, spread(np, g, x, axis), where),)


@rule("nansum")
def _nansum(np: Any, g: Any, r: Any, x: Any, axis: Any = None, *_: Any, **others: Any) -> Any:
    return (spread(np, g, x, axis) * (x == x),)


@rule("mean")
def _mean(np: Any, g: Any, r: Any, x: Any, axis: Any = None, *_: Any, where: Any = None, **others: Any) -> Any:
    if where is not None:
        refuse("mean with where=")
    return (spread(np, typed(g, x) / max(1, count_of(x, axis)), x, axis),)


@rule("prod")
def _prod(np: Any, g: Any, r: Any, x: Any, axis: Any = None, *_: Any, where: Any = None, **others: Any) -> Any:
    return (masked(np, spread(np, g * r, x, axis) / x, where),)


@rule("nanprod")
def _nanprod(np: Any, g: Any, r: Any, x: Any, axis: Any = None, *_: Any, **others: Any) -> Any:
    return (np.where(x == x, spread(np, g * r, x, axis) / x, 0.0),)


@rule("max", "min", "nanmax", "nanmin")
def _extreme(np: Any, g: Any, r: Any, x: Any, axis: Any = None, *_: Any, **others: Any) -> Any:
    return (spread(np, g, x, axis) * (x == kept(np, r, x, axis)),)


@rule("ptp")
def _ptp(np: Any, g: Any, r: Any, x: Any, axis: Any = None, *_: Any, **others: Any) -> Any:
    high, low = (f(x, axis=axis, keepdims=True) for f in (np.max, np.min))
    return (kept(np, g, x, axis) * ((x == high).astype(x.dtype) - (x == low).astype(x.dtype)),)


@rule("var")
def _var(np: Any, g: Any, r: Any, x: Any, axis: Any = None, *_: Any, ddof: Any = 0, **others: Any) -> Any:
    centred = x - np.mean(x, axis=axis, keepdims=True)
    return (kept(np, g, x, axis) * centred * (2 / (count_of(x, axis) - others.get("correction", ddof))),)


@rule("std")
def _std(np: Any, g: Any, r: Any, x: Any, axis: Any = None, *_: Any, ddof: Any = 0, **others: Any) -> Any:
    centred = x - np.mean(x, axis=axis, keepdims=True)
    scale = 1 / (count_of(x, axis) - others.get("correction", ddof))
    return (kept(np, g / r, x, axis) * centred * scale,)


@rule("cumsum")
def _cumsum(np: Any, g: Any, r: Any, x: Any, axis: Any = None, *_: Any, **others: Any) -> Any:
    along = 0 if axis is None else axis
    return (np.reshape(np.flip(np.cumsum(np.flip(g, along), along), along), x.shape),)


@rule("average")
def _average(np: Any, g: Any, r: Any, x: Any, axis: Any = None, weights: Any = None, *_: Any, **others: Any) -> Any:
    if others.get("returned"):
        g, r = g[0], r[0]
    if weights is None:
        return _mean(np, g, r, x, axis)
    if weights.shape != x.shape:
        weights_whole = np.reshape(weights, tuple(n if at == axis % x.ndim else 1 for at, n in enumerate(x.shape)))
    else:
        weights_whole = weights
    total = np.sum(np.broadcast_to(weights_whole, x.shape), axis=axis, keepdims=True)
    head = kept(np, g, x, axis)
    of_weights = head * (x - kept(np, r, x, axis)) / total
    if weights.shape != x.shape:
        others_axes = tuple(at for at in range(x.ndim) if at != axis % x.ndim)
        of_weights = np.sum(of_weights, axis=others_axes)
    return head * weights_whole / total, None, of_weights


@rule("sort")
def _sort(np: Any, g: Any, r: Any, x: Any, axis: Any = -1, *_: Any, **others: Any) -> Any:
    if axis is None:
        return (np.reshape(np.take(g, np.argsort(np.argsort(np.ravel(x), kind="stable"))), x.shape),)
    order = np.argsort(np.argsort(x, axis=axis, kind="stable"), axis=axis)
    return (np.take_along_axis(g, order, axis=axis),)


@rule("clip")
def _clip(np: Any, g: Any, r: Any, x: Any, low: Any = None, high: Any = None, **others: Any) -> Any:
    low, high = (others.get(a, others.get(b, c)) for a, b, c in (("a_min", "min", low), ("a_max", "max", high)))
    inside = x == x
    inside = inside if low is None else inside & (x >= low)
    return (g * (inside if high is None else inside & (x <= high)),)


@rule("reshape")
def _reshape(np: Any, g: Any, r: Any, x: Any, *_: Any, **others: Any) -> Any:
    return (np.reshape(g, x.shape),)


@rule("trace", "linalg.trace")
def _trace(np: Any, g: Any, r: Any, x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, **others: Any) -> Any:
    axis1, axis2 = axis1 % x.ndim, axis2 % x.ndim
    unit = np.eye(x.shape[axis1], x.shape[axis2], offset, dtype=x.dtype)
    return (np.moveaxis(np.reshape(g, (*g.shape, 1, 1)) * unit, (-2, -1), (axis1, axis2)),)


@rule("diff")
def _diff(np: Any, g: Any, r: Any, x: Any, n: int = 1, axis: int = -1, **others: Any) -> Any:
    if others:
        refuse("diff with prepend= or append=")
    axis %= x.ndim
    for _ in range(n):
        g = -np.diff(np.pad(g, tuple((1, 1) if at == axis else (0, 0) for at in range(x.ndim))), axis=axis)
    return (g,)


@rule("ediff1d")
def _ediff1d(np: Any, g: Any, r: Any, x: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    def length(of: Any) -> int:
        return 0 if of is None else math.prod(of.shape) if is_array(of) else len(of) if hasattr(of, "__len__") else 1

    first, count = length(to_begin), max(0, x.size - 1)
    made = -np.diff(np.pad(part(g, slice(first, first + count)), (1, 1))) if count else np.reshape(x, -1) * 0
    ends = [
        None if of is None else part(g, slice(0, first) if of is to_begin else slice(first + count, None))
        for of in (to_end, to_begin)
    ]
    return np.reshape(part(made, slice(0, x.size)), x.shape), *[
        np.reshape(e, of.shape) if is_array(of) else None for e, of in zip(ends, (to_end, to_begin), strict=True)
    ]
