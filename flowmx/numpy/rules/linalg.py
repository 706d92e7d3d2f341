"""The gradients of linear algebra."""

from __future__ import annotations

import math
from typing import Any

from flowmx.numpy.rules.registry import (
    for_matrices,
    kept,
    part,
    refuse,
    rule,
    transposed,
)

__all__: list[str] = []


@rule("linalg.inv")
def _inv(np: Any, g: Any, r: Any, x: Any) -> Any:
    back = transposed(np, r)
    return (-np.matmul(np.matmul(back, g), back),)


@rule("linalg.det")
def _det(np: Any, g: Any, r: Any, x: Any) -> Any:
    return (for_matrices(np, g * r) * transposed(np, np.linalg.inv(x)),)


@rule("linalg.slogdet")
def _slogdet(np: Any, g: Any, r: Any, x: Any) -> Any:
    return (for_matrices(np, g[1]) * transposed(np, np.linalg.inv(x)),)


@rule("linalg.solve")
def _solve(np: Any, g: Any, r: Any, a: Any, b: Any) -> Any:
    of_b = np.linalg.solve(transposed(np, a), g)
    if b.ndim == 1:
        return -np.expand_dims(of_b, -1) * np.expand_dims(r, -2), of_b
    return -np.matmul(of_b, transposed(np, r)), of_b


@rule("linalg.cholesky")
def _cholesky(np: Any, g: Any, r: Any, x: Any, **others: Any) -> Any:
    if others.get("upper"):
        refuse("linalg.cholesky with upper=True")
    half = np.tril(np.matmul(transposed(np, r), g))
    half = half - 0.5 * half * np.eye(x.shape[-1], dtype=x.dtype)
    back = np.linalg.inv(r)
    made = np.matmul(np.matmul(transposed(np, back), half), back)
    return (0.5 * (made + transposed(np, made)),)


@rule("linalg.eigh")
def _eigh(np: Any, g: Any, r: Any, x: Any, *_: Any, **others: Any) -> Any:
    (of_w, of_v), (w, v) = g, r
    unit = np.eye(x.shape[-1], dtype=x.dtype)
    gaps = np.expand_dims(w, -2) - np.expand_dims(w, -1) + unit
    inner = np.matmul(transposed(np, v), of_v) * ((1 - unit) / gaps) + np.expand_dims(of_w, -2) * unit
    made = np.matmul(np.matmul(v, inner), transposed(np, v))
    return (0.5 * (made + transposed(np, made)),)


@rule("linalg.eigvalsh")
def _eigvalsh(np: Any, g: Any, r: Any, x: Any, *_: Any, **others: Any) -> Any:
    v = np.linalg.eigh(x)[1]
    return (np.matmul(v * np.expand_dims(g, -2), transposed(np, v)),)


@rule("linalg.norm", "linalg.vector_norm", "linalg.matrix_norm")
def _norm(np: Any, g: Any, r: Any, x: Any, ord: Any = None, axis: Any = None, *_: Any, **others: Any) -> Any:
    along = (axis,) if isinstance(axis, int) else axis
    is_vector = x.ndim == 1 if along is None else len(along) == 1
    head, result = kept(np, g, x, axis), kept(np, r, x, axis)
    if ord in (None, "fro") or (ord == 2 and is_vector):
        return (head * x / np.where(result == 0, 1.0, result),)
    if is_vector and ord == 1:
        return (head * np.sign(x),)
    if is_vector and ord in (math.inf, -math.inf):
        return (head * np.sign(x) * (np.abs(x) == result),)
    if is_vector and isinstance(ord, (int, float)) and ord != 0:
        return (head * np.sign(x) * np.power(np.abs(x) / result, ord - 1),)
    if is_vector:
        refuse(f"linalg.norm with ord={ord!r}")
    rows, columns = (x.ndim - 2, x.ndim - 1) if along is None else (each % x.ndim for each in along)
    if ord in (1, -1, math.inf, -math.inf):  # the largest, or smallest, sum of a column or row
        sums = np.sum(np.abs(x), axis=rows if abs(ord) == 1 else columns, keepdims=True)
        return (head * np.sign(x) * (sums == result),)
    # The others are of singular values: of the last two axes, which are then moved to their places.
    moved = np.moveaxis(x, (rows, columns), (-2, -1))
    u, s, v = np.linalg.svd(moved, full_matrices=False)
    weights = s * 0 + 1 if ord == "nuc" else s == (np.max if ord == 2 else np.min)(s, axis=-1, keepdims=True)
    lost = np.matmul(u * np.expand_dims(weights, -2), v)
    return (np.moveaxis(np.moveaxis(head, (rows, columns), (-2, -1)) * lost, (-2, -1), (rows, columns)),)


@rule("linalg.svd")
def _svd(np: Any, g: Any, r: Any, x: Any, full_matrices: bool = True, compute_uv: bool = True, **_: Any) -> Any:
    if not compute_uv:
        return _svdvals(np, g, r, x)
    if full_matrices and x.shape[-2] != x.shape[-1]:
        refuse("linalg.svd with full_matrices=True of a matrix that is not square")
    (of_u, of_s, of_v), (u, s, v) = g, r
    count = s.shape[-1]
    unit = np.eye(count, dtype=x.dtype)
    row, column = np.expand_dims(s, -2), np.expand_dims(s, -1)
    gaps = (1 - unit) / ((row - column) * (row + column) + unit)
    left, right = np.matmul(transposed(np, u), of_u), np.matmul(v, transposed(np, of_v))
    inner = (
        (left - transposed(np, left)) * gaps * row
        + column * (right - transposed(np, right)) * gaps
        + np.expand_dims(of_s, -2) * unit
    )
    found = np.matmul(np.matmul(u, inner), v)
    if x.shape[-2] > count:
        found = found + np.matmul((of_u - np.matmul(u, left)) / row, v)
    if x.shape[-1] > count:
        found = found + np.matmul(u / row, of_v - np.matmul(transposed(np, right), v))
    return (found,)


@rule("linalg.svdvals")
def _svdvals(np: Any, g: Any, r: Any, x: Any, *_: Any, **others: Any) -> Any:
    u, _s, v = np.linalg.svd(x, full_matrices=False)
    return (np.matmul(u * np.expand_dims(g, -2), v),)


@rule("linalg.qr")
def _qr(np: Any, g: Any, r: Any, x: Any, mode: str = "reduced", **_: Any) -> Any:
    rows, columns = x.shape[-2:]
    if mode not in ("reduced", "complete") or (mode == "complete" and rows > columns):
        refuse(f"linalg.qr with mode={mode!r}")
    (of_q, of_r), (q, upper) = g, r
    wide = columns > rows
    if wide:  # of the first columns, and of the others by what they are in terms of them
        first, last = (..., slice(0, rows)), (..., slice(rows, None))
        of_rest = part(of_r, last)
        of_q = of_q + np.matmul(part(x, last), transposed(np, of_rest))
        of_r, upper = part(of_r, first), part(upper, first)
    inner = np.matmul(upper, transposed(np, of_r)) - np.matmul(transposed(np, of_q), q)
    both = np.tril(inner) + transposed(np, np.tril(inner, -1))
    found = np.matmul(of_q + np.matmul(q, both), transposed(np, np.linalg.inv(upper)))
    return (np.concatenate([found, np.matmul(q, of_rest)], axis=-1) if wide else found,)


@rule("linalg.pinv")
def _pinv(np: Any, g: Any, r: Any, x: Any, *_: Any, **others: Any) -> Any:
    back, head = transposed(np, r), transposed(np, g)
    of_rows = np.matmul(head - np.matmul(x, np.matmul(r, head)), np.matmul(r, back))
    of_columns = np.matmul(np.matmul(back, r), head - np.matmul(np.matmul(head, r), x))
    return of_rows + of_columns - np.matmul(np.matmul(back, g), back), None


@rule("linalg.tensorinv")
def _tensorinv(np: Any, g: Any, r: Any, x: Any, ind: int = 2) -> Any:
    size = math.prod(x.shape[:ind])
    back, head = (np.reshape(each, (size, size)) for each in (r, g))
    return (np.reshape(-np.matmul(np.matmul(transposed(np, back), head), transposed(np, back)), x.shape),)


@rule("linalg.tensorsolve")
def _tensorsolve(np: Any, g: Any, r: Any, a: Any, b: Any, axes: Any = None) -> Any:
    axes = () if axes is None else (axes,) if isinstance(axes, int) else tuple(each % a.ndim for each in axes)
    order = (*(at for at in range(a.ndim) if at not in axes), *axes)
    turned = np.transpose(a, order)
    size = b.size
    of_b = np.linalg.solve(transposed(np, np.reshape(turned, (size, size))), np.reshape(g, (size, 1)))
    of_a = -np.matmul(of_b, np.reshape(r, (1, size)))
    places = tuple(order.index(at) for at in range(a.ndim))
    return np.transpose(np.reshape(of_a, turned.shape), places), np.reshape(of_b, b.shape)


@rule("linalg.multi_dot")
def _multi_dot(np: Any, g: Any, r: Any, arrays: Any, *_: Any) -> Any:
    found = []
    first, last = arrays[0].ndim == 1, arrays[-1].ndim == 1
    whole = [*arrays]
    if first:
        whole[0] = np.expand_dims(whole[0], 0)
    if last:
        whole[-1] = np.expand_dims(whole[-1], 1)
    head = np.reshape(g, (whole[0].shape[0], whole[-1].shape[1]))
    for at, each in enumerate(whole):
        made = head
        for one in whole[:at]:
            made = np.matmul(transposed(np, one), made)
        for one in reversed(whole[at + 1 :]):
            made = np.matmul(made, transposed(np, one))
        found.append(np.reshape(made, arrays[at].shape))
        del each
    return (found,)


@rule("linalg.matrix_power")
def _matrix_power(np: Any, g: Any, r: Any, x: Any, n: int) -> Any:
    # Of x^n the part for each factor; of a negative power that of the inverse's.
    base = np.linalg.inv(x) if n < 0 else x
    found = None
    for at in range(abs(n)):
        left, right = (transposed(np, np.linalg.matrix_power(base, count)) for count in (at, abs(n) - 1 - at))
        part = np.matmul(np.matmul(left, g), right)
        found = part if found is None else found + part
    if found is None:
        return (x * 0,)
    return (found if n > 0 else -np.matmul(np.matmul(transposed(np, base), found), transposed(np, base)),)
