"""The gradients of what is read out of sorted numbers, and of reductions that leave NaN out."""

from __future__ import annotations

from typing import Any

from flowmx.numpy.rules.registry import axes_of, kept, part, refuse, rule

__all__: list[str] = []


def _rows(np: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """An array with the axes that are reduced as its last one."""
    others = tuple(at for at in range(x.ndim) if at not in axes)
    return np.reshape(np.transpose(x, (*others, *axes)), (*(x.shape[at] for at in others), -1))


def _back(np: Any, rows: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """The inverse of :func:`_rows`."""
    order = (*(at for at in range(x.ndim) if at not in axes), *axes)
    whole = np.reshape(rows, tuple(x.shape[at] for at in order))
    return np.transpose(whole, tuple(order.index(at) for at in range(x.ndim)))


def _of_sorted(np: Any, function: str, g: Any, x: Any, axis: Any, q: Any = None, **kwargs: Any) -> Any:
    """The gradient of a quantile.

    A quantile of sorted numbers is one of them, or lies between two neighbours. The same quantile of their positions
    says between which, and how near to each.
    """
    axes = axes_of(axis, x.ndim)
    rows = _rows(np, x, axes)
    count = rows.shape[-1]
    order = np.argsort(rows, axis=-1, kind="stable")
    numbers = np.arange(count, dtype="float64")
    ranked = np.take_along_axis(rows, order, axis=-1)
    places = np.where(ranked == ranked, numbers, float("nan"))
    several = bool(q.ndim) if hasattr(q, "ndim") else isinstance(q, (list, tuple))
    given = () if q is None else (q,)
    at = getattr(np, function)(places, *given, axis=-1, **kwargs)
    leading = at.shape[:1] if several else ()
    near = 1.0 - np.abs(np.reshape(at, (*at.shape, 1)) - numbers)
    weights = np.maximum(near, 0.0).astype(x.dtype)
    made = np.reshape(g, (*leading, *rows.shape[:-1], 1)) * weights
    if several:
        made = np.sum(made, axis=0)
    made = np.where(made == made, made, 0.0) if function.startswith("nan") else made
    made = np.take_along_axis(made, np.argsort(order, axis=-1), axis=-1)
    return _back(np, made, x, axes)


def _quantile(function: str) -> Any:
    def of(
        np: Any, g: Any, r: Any, x: Any, q: Any, axis: Any = None, out: Any = None, overwrite_input: Any = False,
        method: str = "linear", *_: Any, weights: Any = None, **others: Any,
    ) -> Any:  # fmt: skip
        if weights is not None:
            refuse(f"{function} with weights=")
        method = others.get("interpolation") or method
        return (_of_sorted(np, function, g, x, axis, q, method=method),)

    return of


def _median(function: str) -> Any:
    def of(np: Any, g: Any, r: Any, x: Any, axis: Any = None, *_: Any, **others: Any) -> Any:
        return (_of_sorted(np, function, g, x, axis),)

    return of


for _name in ("median", "nanmedian"):
    rule(_name)(_median(_name))
for _name in ("percentile", "nanpercentile", "quantile", "nanquantile"):
    rule(_name)(_quantile(_name))


@rule("partition")
def _partition(np: Any, g: Any, r: Any, x: Any, kth: Any, axis: Any = -1, *_: Any, **others: Any) -> Any:
    if axis is None:
        refuse("partition with axis=None")
    order = np.argpartition(x, kth, axis=axis)
    return (np.take_along_axis(g, np.argsort(order, axis=axis), axis=axis),)


def _there(np: Any, x: Any, axis: Any) -> Any:
    """The numbers that are no NaN, with zeros for the others; which they are; how many."""
    mask = x == x
    return np.where(mask, x, 0.0), mask, np.sum(mask.astype(x.dtype), axis=axis, keepdims=True)


@rule("nanmean")
def _nanmean(np: Any, g: Any, r: Any, x: Any, axis: Any = None, *_: Any, where: Any = None, **others: Any) -> Any:
    if where is not None:
        refuse("nanmean with where=")
    _, mask, count = _there(np, x, axis)
    return (kept(np, g, x, axis) / count * mask,)


def _nanspread(np: Any, head: Any, x: Any, axis: Any, ddof: Any, others: dict[str, Any]) -> Any:
    if others.get("where") is not None or others.get("mean") is not None:
        refuse("nanvar with where= or mean=")
    numbers, mask, count = _there(np, x, axis)
    centred = np.where(mask, numbers - np.sum(numbers, axis=axis, keepdims=True) / count, 0.0)
    return (kept(np, head, x, axis) * centred / (count - others.get("correction", ddof)),)


@rule("nanvar")
def _nanvar(np: Any, g: Any, r: Any, x: Any, axis: Any = None, *_: Any, ddof: Any = 0, **others: Any) -> Any:
    return _nanspread(np, g * 2, x, axis, ddof, others)


@rule("nanstd")
def _nanstd(np: Any, g: Any, r: Any, x: Any, axis: Any = None, *_: Any, ddof: Any = 0, **others: Any) -> Any:
    return _nanspread(np, g / r, x, axis, ddof, others)


def _totals_back(np: Any, x: Any, axis: int) -> Any:
    """At each position the sum of it and all that follow."""
    return np.flip(np.cumsum(np.flip(x, axis), axis), axis)


@rule("nancumsum")
def _nancumsum(np: Any, g: Any, r: Any, x: Any, axis: Any = None, *_: Any, **others: Any) -> Any:
    return (np.reshape(_totals_back(np, g, 0 if axis is None else axis), x.shape) * (x == x),)


def _of_products(np: Any, g: Any, r: Any, x: Any, axis: int) -> Any:
    """The gradient of cumulative products along an axis.

    An element's is the sum of g times the products that it is in, divided by it. A zero has no part in that quotient:
    those after the first are in products that are 0 whatever they are, and the first one's is the sum over the products
    with 1 in its place.
    """
    zeros = x == 0
    first = zeros & (np.cumsum(zeros, axis) == 1)
    others = np.cumprod(np.where(first, 1.0, x).astype(r.dtype), axis)
    quotients = _totals_back(np, g * r, axis) / np.where(zeros, 1.0, x)
    return np.where(zeros, np.where(first, _totals_back(np, g * others, axis), 0.0), quotients)


@rule("cumprod")
def _cumprod(np: Any, g: Any, r: Any, x: Any, axis: Any = None, *_: Any, **others: Any) -> Any:
    if axis is not None:
        return (_of_products(np, g, r, x, axis),)
    return (np.reshape(_of_products(np, g, r, np.reshape(x, -1), 0), x.shape),)


@rule("nancumprod")
def _nancumprod(np: Any, g: Any, r: Any, x: Any, axis: Any = None, *_: Any, **others: Any) -> Any:
    made = _cumprod(np, g, r, np.where(x == x, x, 1.0), axis)[0]
    return (np.where(x == x, made, 0.0),)


def _without_initial(g: Any, axis: int, others: dict[str, Any]) -> Any:
    """The part of the elements, without the sum or product of none of them that may come first."""
    if not others.get("include_initial"):
        return g
    return part(g, (slice(None),) * (axis % g.ndim) + (slice(1, None),))


@rule("cumulative_sum")
def _cumulative_sum(np: Any, g: Any, r: Any, x: Any, axis: Any = None, **others: Any) -> Any:
    axis = 0 if axis is None else axis
    return (_totals_back(np, _without_initial(g, axis, others), axis),)


@rule("cumulative_prod")
def _cumulative_prod(np: Any, g: Any, r: Any, x: Any, axis: Any = None, **others: Any) -> Any:
    axis = 0 if axis is None else axis
    g, r = (_without_initial(each, axis, others) for each in (g, r))
    return (_of_products(np, g, r, x, axis),)


@rule("cov")
def _cov(
    np: Any, g: Any, r: Any, m: Any, y: Any = None, rowvar: Any = True, bias: Any = False, ddof: Any = None, *_: Any,
    **others: Any,
) -> Any:  # fmt: skip
    if y is not None or others.get("fweights") is not None or others.get("aweights") is not None or _:
        refuse("cov with y= or weights")
    rows = np.reshape(m, (1, -1)) if m.ndim == 1 else m if rowvar or m.shape[0] == 1 else np.transpose(m)
    scale = 1 / (rows.shape[1] - (ddof if ddof is not None else 0 if bias else 1))
    centred = rows - np.mean(rows, axis=1, keepdims=True)
    head = np.reshape(g, (rows.shape[0], rows.shape[0]))
    made = np.matmul(head + np.transpose(head), centred) * scale
    return (np.reshape(made if rows.shape == m.shape or m.ndim == 1 else np.transpose(made), m.shape),)


@rule("corrcoef")
def _corrcoef(np: Any, g: Any, r: Any, x: Any, y: Any = None, rowvar: Any = True, *_: Any, **others: Any) -> Any:
    if y is not None or others:
        refuse("corrcoef with y= or a dtype")
    if x.ndim == 1:
        return (x * 0,)
    rows = x if rowvar else np.transpose(x)
    centred = rows - np.mean(rows, axis=1, keepdims=True)
    length = np.sqrt(np.sum(centred * centred, axis=1, keepdims=True))
    unit = centred / length
    head = np.matmul(g + np.transpose(g), unit)
    made = (head - unit * np.sum(unit * head, axis=1, keepdims=True)) / length
    return (made if rowvar else np.transpose(made),)
