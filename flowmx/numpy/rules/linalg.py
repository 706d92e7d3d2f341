"""The gradients of linear algebra."""

from __future__ import annotations

import math
from typing import Any, cast

from flowmx.numpy.rules.registry import (
    RULES,
    Axis,
    divide,
    extension,
    for_matrices,
    getitem,
    refuse,
    replace_zeros,
    restore_axes,
    rule,
    transpose_last,
)
from flowmx.ops.registry.tensors import Functions, Gradients, Tensor

__all__: list[str] = []


@rule("linalg.inv")
def _inv(xp: Functions, g: Tensor, r: Tensor, x: Tensor) -> Gradients:
    back = transpose_last(xp, r)
    return (-xp.matmul(xp.matmul(back, g), back),)


@rule("linalg.det")
def _det(xp: Functions, g: Tensor, r: Tensor, x: Tensor) -> Gradients:
    return (for_matrices(xp, g) * extension(x, "cofactors"),)


@rule("cofactors")
def _cofactors(xp: Functions, g: Tensor, r: Tensor, x: Tensor) -> Gradients:
    return (extension(x, "cofactors_along", g),)


@rule("linalg.slogdet")
def _slogdet(xp: Functions, g: Tensor, r: Tensor, x: Tensor) -> Gradients:
    return (for_matrices(xp, g[1]) * transpose_last(xp, xp.linalg.inv(x)),)


@rule("linalg.solve")
def _solve(xp: Functions, g: Tensor, r: Tensor, a: Tensor, b: Tensor) -> Gradients:
    b_gradient = xp.linalg.solve(transpose_last(xp, a), g)
    if b.ndim == 1:
        return -xp.expand_dims(b_gradient, -1) * xp.expand_dims(r, -2), b_gradient
    return -xp.matmul(b_gradient, transpose_last(xp, r)), b_gradient


@rule("linalg.cholesky")
def _cholesky(xp: Functions, g: Tensor, r: Tensor, x: Tensor, **others: object) -> Gradients:
    if others.get("upper"):
        refuse("linalg.cholesky with upper=True")
    half = xp.tril(xp.matmul(transpose_last(xp, r), g))
    half = half - 0.5 * half * xp.eye(x.shape[-1], dtype=x.dtype)
    back = xp.linalg.inv(r)
    gradient = xp.matmul(xp.matmul(transpose_last(xp, back), half), back)
    return (0.5 * (gradient + transpose_last(xp, gradient)),)


@rule("linalg.eigh")
def _eigh(xp: Functions, g: Tensor, r: Tensor, x: Tensor, *_: object, **others: object) -> Gradients:
    (w_gradient, v_gradient), (w, v) = g, r
    unit = xp.eye(x.shape[-1], dtype=x.dtype)
    gaps = xp.expand_dims(w, -2) - xp.expand_dims(w, -1)
    inner = divide(xp, xp.matmul(transpose_last(xp, v), v_gradient), gaps) + xp.expand_dims(w_gradient, -2) * unit
    gradient = xp.matmul(xp.matmul(v, inner), transpose_last(xp, v))
    return (0.5 * (gradient + transpose_last(xp, gradient)),)


@rule("linalg.eigvalsh")
def _eigvalsh(xp: Functions, g: Tensor, r: Tensor, x: Tensor, *_: object, **others: object) -> Gradients:
    v = xp.linalg.eigh(x)[1]
    return (xp.matmul(v * xp.expand_dims(g, -2), transpose_last(xp, v)),)


@rule("linalg.norm", "linalg.vector_norm", "linalg.matrix_norm")
def _norm(
    xp: Functions, g: Tensor, r: Tensor, x: Tensor, ord: object = None, axis: Axis = None, *_: object, **others: object
) -> Gradients:
    axes = (axis,) if isinstance(axis, int) else axis
    is_vector = x.ndim == 1 if axes is None else len(axes) == 1
    head, result = restore_axes(xp, g, x, axis), restore_axes(xp, r, x, axis)
    if ord in (None, "fro") or (ord == 2 and is_vector):
        return (head * x / replace_zeros(result),)
    if is_vector and ord in (0, 1):
        return (head * xp.sign(x) * ord,)
    if is_vector and ord in (math.inf, -math.inf):
        return (head * xp.sign(x) * (xp.abs(x) == result),)
    if is_vector and isinstance(ord, (int, float)):
        sizes = xp.where(x == 0, 1.0, xp.abs(x))
        return (head * xp.sign(x) * xp.where(result == 0, 0.0, xp.power(divide(xp, sizes, result), ord - 1)),)
    if is_vector:
        refuse(f"linalg.norm with ord={ord!r}")
    rows, columns = (x.ndim - 2, x.ndim - 1) if axes is None else (axis % x.ndim for axis in axes)
    if ord in (1, -1, math.inf, -math.inf):  # the largest or smallest sum of a column or row
        sums = xp.sum(xp.abs(x), axis=rows if abs(ord) == 1 else columns, keepdims=True)
        return (head * xp.sign(x) * (sums == result),)
    # The other norms are functions of the singular values, which need the matrix axes to be the last two.
    moved = xp.moveaxis(x, (rows, columns), (-2, -1))
    u, s, v = xp.linalg.svd(moved, full_matrices=False)
    weights = xp.sign(s)
    if ord != "nuc":
        weights = weights * (s == (xp.max if ord == 2 else xp.min)(s, axis=-1, keepdims=True))
    gradient = xp.matmul(u * xp.expand_dims(weights, -2), v)
    return (xp.moveaxis(xp.moveaxis(head, (rows, columns), (-2, -1)) * gradient, (-2, -1), (rows, columns)),)


@rule("linalg.svd")
def _svd(
    xp: Functions, g: Tensor, r: Tensor, x: Tensor, full_matrices: bool = True, compute_uv: bool = True, **_: object
) -> Gradients:
    if not compute_uv:
        return _svdvals(xp, g, r, x)
    if full_matrices and x.shape[-2] != x.shape[-1]:
        refuse("linalg.svd with full_matrices=True of a matrix that is not square")
    (u_gradient, s_gradient, v_gradient), (u, s, v) = g, r
    count = s.shape[-1]
    unit = xp.eye(count, dtype=x.dtype)
    row, column = xp.expand_dims(s, -2), xp.expand_dims(s, -1)
    gaps = divide(xp, 1 - unit, (row - column) * (row + column))
    left, right = xp.matmul(transpose_last(xp, u), u_gradient), xp.matmul(v, transpose_last(xp, v_gradient))
    inner = (
        (left - transpose_last(xp, left)) * gaps * row
        + column * (right - transpose_last(xp, right)) * gaps
        + xp.expand_dims(s_gradient, -2) * unit
    )
    gradient = xp.matmul(xp.matmul(u, inner), v)
    if x.shape[-2] > count:
        gradient = gradient + xp.matmul(divide(xp, u_gradient - xp.matmul(u, left), row), v)
    if x.shape[-1] > count:
        gradient = gradient + xp.matmul(divide(xp, u, row), v_gradient - xp.matmul(transpose_last(xp, right), v))
    return (gradient,)


@rule("linalg.svdvals")
def _svdvals(xp: Functions, g: Tensor, r: Tensor, x: Tensor, *_: object, **others: object) -> Gradients:
    u, _s, v = xp.linalg.svd(x, full_matrices=False)
    return (xp.matmul(u * xp.expand_dims(g, -2), v),)


@rule("linalg.qr")
def _qr(xp: Functions, g: Tensor, r: Tensor, x: Tensor, mode: str = "reduced", **_: object) -> Gradients:
    rows, columns = x.shape[-2:]
    if mode not in ("reduced", "complete") or (mode == "complete" and rows > columns):
        refuse(f"linalg.qr with mode={mode!r}")
    (q_gradient, r_gradient), (q, upper) = g, r
    wide = columns > rows
    if wide:  # the remaining columns are combinations of the first ones
        first, last = (..., slice(0, rows)), (..., slice(rows, None))
        rest_gradient = getitem(r_gradient, last)
        q_gradient = q_gradient + xp.matmul(getitem(x, last), transpose_last(xp, rest_gradient))
        r_gradient, upper = getitem(r_gradient, first), getitem(upper, first)
    inner = xp.matmul(upper, transpose_last(xp, r_gradient)) - xp.matmul(transpose_last(xp, q_gradient), q)
    both = xp.tril(inner) + transpose_last(xp, xp.tril(inner, -1))
    gradient = xp.matmul(q_gradient + xp.matmul(q, both), transpose_last(xp, xp.linalg.inv(upper)))
    return (xp.concatenate([gradient, xp.matmul(q, rest_gradient)], axis=-1) if wide else gradient,)


@rule("linalg.pinv")
def _pinv(xp: Functions, g: Tensor, r: Tensor, x: Tensor, *_: object, **others: object) -> Gradients:
    back, head = transpose_last(xp, r), transpose_last(xp, g)
    rows_gradient = xp.matmul(head - xp.matmul(x, xp.matmul(r, head)), xp.matmul(r, back))
    columns_gradient = xp.matmul(xp.matmul(back, r), head - xp.matmul(xp.matmul(head, r), x))
    return rows_gradient + columns_gradient - xp.matmul(xp.matmul(back, g), back), None


@rule("linalg.tensorinv")
def _tensorinv(xp: Functions, g: Tensor, r: Tensor, x: Tensor, ind: int = 2) -> Gradients:
    size = math.prod(x.shape[:ind])
    back, head = (xp.reshape(array, (size, size)) for array in (r, g))
    return (xp.reshape(-xp.matmul(xp.matmul(transpose_last(xp, back), head), transpose_last(xp, back)), x.shape),)


@rule("linalg.tensorsolve")
def _tensorsolve(xp: Functions, g: Tensor, r: Tensor, a: Tensor, b: Tensor, axes: Axis = None) -> Gradients:
    axes = () if axes is None else (axes,) if isinstance(axes, int) else tuple(axis % a.ndim for axis in axes)
    order = (*(index for index in range(a.ndim) if index not in axes), *axes)
    moved = xp.transpose(a, order)
    size = b.size
    b_gradient = xp.linalg.solve(transpose_last(xp, xp.reshape(moved, (size, size))), xp.reshape(g, (size, 1)))
    a_gradient = -xp.matmul(b_gradient, xp.reshape(r, (1, size)))
    places = tuple(order.index(index) for index in range(a.ndim))
    return xp.transpose(xp.reshape(a_gradient, moved.shape), places), xp.reshape(b_gradient, b.shape)


@rule("linalg.multi_dot")
def _multi_dot(xp: Functions, g: Tensor, r: Tensor, arrays: Any, *_: object) -> Gradients:
    gradients = []
    is_vector_first, is_vector_last = arrays[0].ndim == 1, arrays[-1].ndim == 1
    matrices = [*arrays]
    if is_vector_first:
        matrices[0] = xp.expand_dims(matrices[0], 0)
    if is_vector_last:
        matrices[-1] = xp.expand_dims(matrices[-1], 1)
    head = xp.reshape(g, (matrices[0].shape[0], matrices[-1].shape[1]))
    for index in range(len(matrices)):
        gradient = head
        for matrix in matrices[:index]:
            gradient = xp.matmul(transpose_last(xp, matrix), gradient)
        for matrix in reversed(matrices[index + 1 :]):
            gradient = xp.matmul(gradient, transpose_last(xp, matrix))
        gradients.append(xp.reshape(gradient, arrays[index].shape))
    return (cast("Tensor", gradients),)


@rule("linalg.matrix_power")
def _matrix_power(xp: Functions, g: Tensor, r: Tensor, x: Tensor, n: int) -> Gradients:
    # Sum the gradients of the factors of x^n; for a negative power, of the inverse.
    base = xp.linalg.inv(x) if n < 0 else x
    gradient = None
    for index in range(abs(n)):
        left, right = (transpose_last(xp, xp.linalg.matrix_power(base, count)) for count in (index, abs(n) - 1 - index))
        term = xp.matmul(xp.matmul(left, g), right)
        gradient = term if gradient is None else gradient + term
    if gradient is None:
        return (x * 0,)
    return (gradient if n > 0 else -xp.matmul(xp.matmul(transpose_last(xp, base), gradient), transpose_last(xp, base)),)


@rule("linalg.cond")
def _cond(xp: Functions, g: Tensor, r: Tensor, x: Tensor, p: object = None) -> Gradients:
    head = xp.reshape(g, (*g.shape, 1, 1))
    if p in (None, 2, -2):
        u, s, v = xp.linalg.svd(x, full_matrices=False)
        row = xp.reshape(s, (*s.shape[:-1], 1, -1))
        high, low = (f(row, axis=-1, keepdims=True) for f in (xp.max, xp.min))
        ratio = (row == high) / low - (row == low) * high / (low * low)
        if p == -2:
            ratio = -ratio * low * low / (high * high)
        return (head * xp.matmul(u * ratio, v),)
    norm, inverse = RULES["linalg.norm"], xp.linalg.inv(x)
    one, other = (xp.linalg.norm(matrix, p, axis=(-2, -1)) for matrix in (x, inverse))
    inverse_gradient = norm(xp, g * one, other, inverse, p, (-2, -1))[0]
    terms = norm(xp, g * other, one, x, p, (-2, -1)), RULES["linalg.inv"](xp, inverse_gradient, inverse, x)
    return (cast("Tensor", terms[0][0]) + terms[1][0],)


@rule("linalg.lstsq")
def _lstsq(xp: Functions, g: Tensor, r: Tensor, a: Tensor, b: Tensor, *_: object, **others: object) -> Gradients:
    """Add the gradients of the solution (for full rank), of the residual sums of squares and of the singular values."""
    inverse = xp.linalg.pinv(a)
    back = transpose_last(xp, inverse)
    vector = b.ndim == 1
    target, solution, head = (xp.reshape(array, (-1, 1)) if vector else array for array in (b, r[0], g[0]))
    a_gradient: Any = RULES["linalg.pinv"](xp, xp.matmul(head, transpose_last(xp, target)), inverse, a)[0]
    b_gradient = xp.matmul(back, head)
    if r[1].size:
        residual = (target - xp.matmul(a, solution)) * g[1] * 2
        a_gradient, b_gradient = a_gradient - xp.matmul(residual, transpose_last(xp, solution)), b_gradient + residual
    a_gradient = a_gradient + RULES["linalg.svdvals"](xp, g[-1], r[-1], a)[0]
    return a_gradient, xp.reshape(b_gradient, b.shape)


def _eig_gradient(xp: Functions, w_gradient: Tensor, v_gradient: Tensor, w: Tensor, v: Tensor, is_real: bool) -> Tensor:
    back = xp.conjugate(transpose_last(xp, v))
    gradient = xp.linalg.solve(back, xp.matmul(_eig_inner(xp, w_gradient, v_gradient, w, v, back), back))
    return xp.real(gradient) if is_real else gradient


def _eig_inner(xp: Functions, w_gradient: Tensor, v_gradient: Tensor, w: Tensor, v: Tensor, back: Tensor) -> Tensor:
    unit = xp.eye(w.shape[-1], dtype=w.dtype)
    gaps = xp.conjugate(xp.expand_dims(w, -2) - xp.expand_dims(w, -1))
    projection = xp.matmul(back, v_gradient)
    # Vectors have length 1: remove the component that would lengthen them.
    length = xp.real(xp.sum(xp.conjugate(v) * v_gradient, axis=-2, keepdims=True))
    inner = projection - xp.matmul(back, v) * length
    return divide(xp, inner * (1 - unit), gaps) + xp.expand_dims(w_gradient, -2) * unit


@rule("linalg.eig")
def _eig(xp: Functions, g: Tensor, r: Tensor, a: Tensor) -> Gradients:
    (w_gradient, v_gradient), (w, v) = g, r
    return (_eig_gradient(xp, w_gradient, v_gradient, w, v, a.element_type.kind == "f"),)


@rule("linalg.eigvals")
def _eigvals(xp: Functions, g: Tensor, r: Tensor, a: Tensor) -> Gradients:
    w, v = xp.linalg.eig(a)
    return (_eig_gradient(xp, g, v * 0, w, v, a.element_type.kind == "f"),)


@rule("trace", "linalg.trace")
def _trace(
    xp: Functions, g: Tensor, r: Tensor, x: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1, **others: object
) -> Gradients:
    axis1, axis2 = axis1 % x.ndim, axis2 % x.ndim
    unit = xp.eye(x.shape[axis1], x.shape[axis2], offset, dtype=x.dtype)
    return (xp.moveaxis(xp.reshape(g, (*g.shape, 1, 1)) * unit, (-2, -1), (axis1, axis2)),)
