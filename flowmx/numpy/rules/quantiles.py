"""The gradients of quantiles, medians and sorting."""

from __future__ import annotations

from flowmx.numpy.rules.registry import Axis, Rule, axes_of, from_rows, refuse, rule, to_rows
from flowmx.ops.registry.tensors import Functions, Gradients, Tensor

__all__: list[str] = []


def _quantile_gradient(
    xp: Functions, function: str, g: Tensor, x: Tensor, axis: Axis, q: Tensor | None = None, **kwargs: str
) -> Tensor:
    """Return the gradient of a quantile.

    A quantile is one of the sorted numbers or lies between two neighbors. The same quantile of their positions gives
    the neighbors and the distances to them.
    """
    axes = axes_of(axis, x.ndim)
    rows = to_rows(xp, x, axes)
    count = rows.shape[-1]
    order = xp.argsort(rows, axis=-1, kind="stable")
    numbers = xp.arange(count, dtype="float64")
    ranked = xp.take_along_axis(rows, order, axis=-1)
    places = xp.where(ranked == ranked, numbers, float("nan"))
    several = bool(q.ndim) if q is not None and hasattr(q, "ndim") else isinstance(q, (list, tuple))
    extra = () if q is None else (q,)
    index = getattr(xp, function)(places, *extra, axis=-1, **kwargs)
    leading = index.shape[:1] if several else ()
    near = 1.0 - xp.abs(xp.reshape(index, (*index.shape, 1)) - numbers)
    weights = xp.maximum(near, 0.0).astype(x.dtype)
    gradient = xp.reshape(g, (*leading, *rows.shape[:-1], 1)) * weights
    if several:
        gradient = xp.sum(gradient, axis=0)
    gradient = xp.where(gradient == gradient, gradient, 0.0) if function.startswith("nan") else gradient
    gradient = xp.take_along_axis(gradient, xp.argsort(order, axis=-1), axis=-1)
    return from_rows(xp, gradient, x, axes)


def _quantile(function: str) -> Rule:
    def gradient(
        xp: Functions, g: Tensor, r: Tensor, x: Tensor, q: Tensor, axis: Axis = None, out: object = None,
        overwrite_input: object = False, method: str = "linear", *_: object,
        weights: Tensor | None = None, **others: object,
    ) -> Gradients:  # fmt: skip
        if weights is not None:
            refuse(f"{function} with weights=")
        method = str(others.get("interpolation") or method)
        return (_quantile_gradient(xp, function, g, x, axis, q, method=method),)

    return gradient


def _median(function: str) -> Rule:
    def gradient(
        xp: Functions, g: Tensor, r: Tensor, x: Tensor, axis: Axis = None, *_: object, **others: object
    ) -> Gradients:
        return (_quantile_gradient(xp, function, g, x, axis),)

    return gradient


for _name in ("median", "nanmedian"):
    rule(_name)(_median(_name))
for _name in ("percentile", "nanpercentile", "quantile", "nanquantile"):
    rule(_name)(_quantile(_name))


@rule("partition")
def _partition(
    xp: Functions, g: Tensor, r: Tensor, x: Tensor, kth: object, axis: Axis = -1, *_: object, **others: object
) -> Gradients:
    if axis is None:
        refuse("partition with axis=None")
    order = xp.argpartition(x, kth, axis=axis)
    return (xp.take_along_axis(g, xp.argsort(order, axis=axis), axis=axis),)


@rule("sort")
def _sort(xp: Functions, g: Tensor, r: Tensor, x: Tensor, axis: Axis = -1, *_: object, **others: object) -> Gradients:
    if axis is None:
        return (xp.reshape(xp.take(g, xp.argsort(xp.argsort(xp.ravel(x), kind="stable"))), x.shape),)
    order = xp.argsort(xp.argsort(x, axis=axis, kind="stable"), axis=axis)
    return (xp.take_along_axis(g, order, axis=axis),)
