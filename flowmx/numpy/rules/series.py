"""The gradients of convolutions, polynomials, interpolation and differences, and of functions with several parts."""

from __future__ import annotations

import math
from typing import Any

from flowmx.graph.gradient import Value
from flowmx.numpy import calls, values
from flowmx.numpy.rules.registry import RULES, is_array, kept, part, refuse, rule, transposed

__all__: list[str] = []


@rule("divmod")
def _divmod(np: Any, g: Any, r: Any, x: Any, y: Any) -> Any:
    return g[1], -g[1] * r[0]


@rule("modf")
def _modf(np: Any, g: Any, r: Any, x: Any) -> Any:
    return (g[0],)


@rule("frexp")
def _frexp(np: Any, g: Any, r: Any, x: Any) -> Any:
    return (g[0] * np.exp2(-r[1].astype(x.dtype)),)


@rule("unwrap")
def _unwrap(np: Any, g: Any, r: Any, p: Any, *_: Any, **others: Any) -> Any:
    return (g,)


@rule("i0")
def _i0(np: Any, g: Any, r: Any, x: Any) -> Any:
    # Bessel's I1 is the mean of exp(x cos t) cos t over half a turn, which sums give to all digits up to |x| = 700.
    cosines = np.cos((np.arange(128, dtype="float64") + 0.5) * (math.pi / 128))
    spread = np.exp(np.expand_dims(x, -1) * cosines) * cosines
    return (g * np.mean(spread, axis=-1).astype(x.dtype),)


@rule("select")
def _select(np: Any, g: Any, r: Any, conditions: Any, choices: Any, default: Any = 0) -> Any:
    left, found = None, []
    for one in conditions:
        chosen = one if left is None else one & left
        found.append(np.where(chosen, g, 0.0))
        no = np.logical_not(one)
        left = no if left is None else left & no
    return None, found, np.where(left, g, 0.0) if is_array(default) else None


@rule("matvec")
def _matvec(np: Any, g: Any, r: Any, x: Any, y: Any) -> Any:
    return np.expand_dims(g, -1) * np.expand_dims(y, -2), np.sum(x * np.expand_dims(g, -1), axis=-2)


@rule("vecmat")
def _vecmat(np: Any, g: Any, r: Any, x: Any, y: Any) -> Any:
    return np.sum(y * np.expand_dims(g, -2), axis=-1), np.expand_dims(x, -1) * np.expand_dims(g, -2)


# -- convolutions and polynomials ------------------------------------------------------------------------------


def _whole(np: Any, g: Any, long: int, short: int, mode: str) -> Any:
    """The gradient of a full convolution, of whose result the middle was kept."""
    full = long + short - 1
    first = {"full": 0, "same": (short - 1) // 2, "valid": short - 1}[mode]
    return np.pad(g, (first, full - first - g.shape[0]))


@rule("convolve")
def _convolve(np: Any, g: Any, r: Any, a: Any, v: Any, mode: str = "full") -> Any:
    head = _whole(np, g, max(a.size, v.size), min(a.size, v.size), mode)
    return tuple(np.convolve(head, np.flip(np.reshape(other, -1)), mode="valid") for other in (v, a))


@rule("correlate")
def _correlate(np: Any, g: Any, r: Any, a: Any, v: Any, mode: str = "valid") -> Any:
    swapped = v.size > a.size  # the shorter one is turned, and then the result
    if swapped and mode != "full":
        of_v, of_a = _correlate(np, np.flip(g), r, v, a, mode)
        return of_a, of_v
    of_a, of_turned = _convolve(np, g, r, a, np.flip(v), mode)
    return of_a, np.flip(of_turned)


def _last(np: Any, g: Any, x: Any) -> Any:
    return part(g, slice(g.shape[0] - x.shape[0], None)) if x.ndim else part(g, -1)


@rule("polyadd")
def _polyadd(np: Any, g: Any, r: Any, a: Any, b: Any) -> Any:
    return _last(np, g, a), _last(np, g, b)


@rule("polysub")
def _polysub(np: Any, g: Any, r: Any, a: Any, b: Any) -> Any:
    return _last(np, g, a), -_last(np, g, b)


@rule("polymul")
def _polymul(np: Any, g: Any, r: Any, a: Any, b: Any) -> Any:
    if not (is_array(a) and is_array(b)) or g.shape[0] != a.size + b.size - 1:
        refuse("polymul of lists, or with zeros for the highest powers,")
    return _convolve(np, g, r, a, b)


@rule("polyder")
def _polyder(np: Any, g: Any, r: Any, p: Any, m: int = 1) -> Any:
    degree = p.shape[0] - 1
    factors = [math.perm(degree - at, m) for at in range(g.shape[0])]
    return (np.pad(g * np.array(factors, dtype=g.dtype), (0, p.shape[0] - g.shape[0])),)


@rule("polyint")
def _polyint(np: Any, g: Any, r: Any, p: Any, m: int = 1, k: Any = None) -> Any:
    if is_array(k):
        refuse("polyint with an array k")
    count = p.shape[0]
    factors = [1 / math.perm(count - 1 - at + m, m) for at in range(count)]
    return (part(g, slice(0, count)) * np.array(factors, dtype=g.dtype),)


@rule("vander")
def _vander(np: Any, g: Any, r: Any, x: Any, N: Any = None, increasing: bool = False) -> Any:
    count = g.shape[-1]
    powers = np.arange(count, dtype=x.dtype)
    powers = powers if increasing else np.flip(powers)
    lower = np.power(np.expand_dims(x, -1), np.maximum(powers - 1, 0.0))
    return (np.sum(g * powers * lower, axis=-1),)


# -- interpolation and differences -----------------------------------------------------------------------------


def _added(positions: Any, given: Any, count: int) -> Any:
    """Sums of numbers by their positions."""
    if isinstance(given, Value):
        return values.call(given.builder, "added_at", (positions, given, count), {})
    return calls.call("added_at", (positions, given, count), {})


@rule("interp")
def _interp(
    np: Any, g: Any, r: Any, x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None
) -> Any:
    dtype = next(each.dtype for each in (fp, x, xp) if is_array(each))
    x, xp, fp = (each if is_array(each) else np.array(each, dtype=dtype) for each in (x, xp, fp))
    if period is not None or xp.shape[0] < 2:
        refuse("interp with a period, or of one point")
    count = xp.shape[0]
    below = np.clip(np.searchsorted(xp, x, side="right") - 1, 0, count - 2)
    first, last, low, high = (np.take(of, at) for of in (xp, fp) for at in (below, below + 1))
    width, rise = last - first, high - low
    before, after = x < np.take(xp, 0), x > np.take(xp, count - 1)
    share = np.clip((x - first) / width, 0.0, 1.0)
    slope = np.where(before | after, 0.0, g * rise / width)
    head = g if left is None else np.where(before, 0.0, g)
    head = head if right is None else np.where(after, 0.0, head)
    of_fp = _added(below, head * (1 - share), count) + _added(below + 1, head * share, count)
    of_xp = _added(below, -slope * (1 - share), count) + _added(below + 1, -slope * share, count)
    return (
        slope,
        of_xp,
        of_fp,
        *(
            np.sum(np.where(outside, g, 0.0)) if is_array(given) else None
            for given, outside in ((left, before), (right, after))
        ),
    )


@rule("gradient")
def _gradient(np: Any, g: Any, r: Any, f: Any, *spacings: Any, axis: Any = None, edge_order: int = 1) -> Any:
    axes = range(f.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    heads = g if isinstance(g, list) else [g]
    if not spacings:
        spacings = (1.0,)
    if len(spacings) == 1:
        spacings = spacings * len(heads)
    total = None
    for head, each, spacing in zip(heads, axes, spacings, strict=True):
        # Linear along its axis: the matrix is what it gives of unit vectors.
        unit = np.eye(f.shape[each], dtype=f.dtype)
        matrix = np.gradient(unit, spacing, axis=0, edge_order=edge_order)
        made = np.moveaxis(np.matmul(np.moveaxis(head, each, -1), matrix), -1, each)
        total = made if total is None else total + made
    return total, *(None for _ in spacings)


@rule("trapezoid")
def _trapezoid(np: Any, g: Any, r: Any, y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    axis %= y.ndim
    count = y.shape[axis]
    head = kept(np, g, y, axis)
    ends = ((slice(None),) * axis + (slice(1, None),), (slice(None),) * axis + (slice(0, count - 1),))
    upper, lower = (tuple((one if at == axis else 0, two if at == axis else 0) for at in range(y.ndim))
                    for one, two in ((1, 0), (0, 1)))  # fmt: skip
    width = dx
    if is_array(x):
        flat = x.ndim == 1
        width = np.diff(x, axis=0 if flat else axis)
        if flat:
            width = np.reshape(width, tuple(-1 if at == axis else 1 for at in range(y.ndim)))
    elif x is not None:
        refuse("trapezoid with a list of places")
    middle = np.broadcast_to(head * width * 0.5, tuple(n - 1 if at == axis else n for at, n in enumerate(y.shape)))
    of_y = np.pad(middle, upper) + np.pad(middle, lower)
    if not is_array(x):
        return of_y, None, None
    of_width = head * (part(y, ends[0]) + part(y, ends[1])) * 0.5
    of_x = np.pad(of_width, upper) - np.pad(of_width, lower)
    if x.ndim == 1:
        of_x = np.sum(of_x, axis=tuple(at for at in range(y.ndim) if at != axis))
    return of_y, of_x, None


# -- linear algebra --------------------------------------------------------------------------------------------


@rule("linalg.cond")
def _cond(np: Any, g: Any, r: Any, x: Any, p: Any = None) -> Any:
    head = np.reshape(g, (*g.shape, 1, 1))
    if p in (None, 2, -2):
        u, s, v = np.linalg.svd(x, full_matrices=False)
        whole = np.reshape(s, (*s.shape[:-1], 1, -1))
        high, low = (f(whole, axis=-1, keepdims=True) for f in (np.max, np.min))
        ratio = (whole == high) / low - (whole == low) * high / (low * low)
        if p == -2:
            ratio = -ratio * low * low / (high * high)
        return (head * np.matmul(u * ratio, v),)
    norm, inverse = RULES["linalg.norm"], np.linalg.inv(x)
    one, other = (np.linalg.norm(each, p, axis=(-2, -1)) for each in (x, inverse))
    of_inverse = norm(np, g * one, other, inverse, p, (-2, -1))[0]
    return (norm(np, g * other, one, x, p, (-2, -1))[0] + RULES["linalg.inv"](np, of_inverse, inverse, x)[0],)


@rule("linalg.lstsq")
def _lstsq(np: Any, g: Any, r: Any, a: Any, b: Any, *_: Any, **others: Any) -> Any:
    """The solution's, of a matrix of full rank, those of the sums of squares that are left, and the singular values."""
    inverse = np.linalg.pinv(a)
    back = transposed(np, inverse)
    vector = b.ndim == 1
    given, solved, head = (np.reshape(each, (-1, 1)) if vector else each for each in (b, r[0], g[0]))
    of_a = RULES["linalg.pinv"](np, np.matmul(head, transposed(np, given)), inverse, a)[0]
    of_b = np.matmul(back, head)
    if r[1].size:
        left = (given - np.matmul(a, solved)) * g[1] * 2
        of_a, of_b = of_a - np.matmul(left, transposed(np, solved)), of_b + left
    of_a = of_a + RULES["linalg.svdvals"](np, g[-1], r[-1], a)[0]
    return of_a, np.reshape(of_b, b.shape)


def _of_eig(np: Any, of_w: Any, of_v: Any, w: Any, v: Any, is_real: bool) -> Any:
    back = np.conjugate(transposed(np, v))
    made = np.linalg.solve(back, np.matmul(_inner(np, of_w, of_v, w, v, back), back))
    return np.real(made) if is_real else made


def _inner(np: Any, of_w: Any, of_v: Any, w: Any, v: Any, back: Any) -> Any:
    unit = np.eye(w.shape[-1], dtype=w.dtype)
    gaps = np.conjugate(np.expand_dims(w, -2) - np.expand_dims(w, -1)) + unit
    turned = np.matmul(back, of_v)
    # Vectors have length 1: what would lengthen them has no part in it.
    long = np.real(np.sum(np.conjugate(v) * of_v, axis=-2, keepdims=True))
    inner = turned - np.matmul(back, v) * long
    return inner * (1 - unit) / gaps + np.expand_dims(of_w, -2) * unit


@rule("linalg.eig")
def _eig(np: Any, g: Any, r: Any, a: Any) -> Any:
    (of_w, of_v), (w, v) = g, r
    return (_of_eig(np, of_w, of_v, w, v, a.dtype.kind == "f"),)


@rule("linalg.eigvals")
def _eigvals(np: Any, g: Any, r: Any, a: Any) -> Any:
    w, v = np.linalg.eig(a)
    return (_of_eig(np, g, v * 0, w, v, a.dtype.kind == "f"),)


# -- functions whose results' shapes follow from what arrays hold ----------------------------------------------


@rule("extract")
def _extract(np: Any, g: Any, r: Any, condition: Any, arr: Any) -> Any:
    places = np.flatnonzero(condition)
    return None, np.reshape(_added(places, g, arr.size), arr.shape)


@rule("compress")
def _compress(np: Any, g: Any, r: Any, condition: Any, a: Any, axis: Any = None, *_: Any) -> Any:
    places = np.flatnonzero(np.asarray(condition))
    if axis is None:
        return None, np.reshape(_added(places, g, a.size), a.shape)
    moved = np.zeros(tuple(a.shape[at] for at in _first(axis % a.ndim, a.ndim)), dtype=g.dtype)
    moved[places] = np.moveaxis(g, axis, 0)
    return None, np.moveaxis(moved, 0, axis)


def _first(axis: int, ndim: int) -> list[int]:
    return [axis, *(at for at in range(ndim) if at != axis)]


@rule("bincount")
def _bincount(np: Any, g: Any, r: Any, x: Any, weights: Any = None, minlength: int = 0) -> Any:
    return None, None if weights is None else np.take(g, x)


@rule("polyval")
def _polyval(np: Any, g: Any, r: Any, p: Any, x: Any) -> Any:
    if not is_array(p) or not is_array(x):
        refuse("polyval of a list")
    count = p.shape[0]
    powers = [np.power(x, count - 1 - at) for at in range(count)]
    of_p = np.stack([np.sum(g * each) for each in powers])
    of_x = g * 0
    for at in range(count - 1):
        of_x = of_x + g * part(p, at) * powers[at + 1] * (count - 1 - at)
    return of_p, of_x
