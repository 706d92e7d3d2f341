"""The cofactors of matrices (the derivatives of the determinant), and the derivatives of cofactors.

They are computed from the singular values, without division, so that singular matrices have cofactors too.
"""

from __future__ import annotations

import numpy as np

from flowmx.ops.math.leave_one_out import leave_one_out_products
from flowmx.ops.registry.operators import Array
from flowmx.ops.registry.tensors import ArrayNamespace


def cofactors(xp: ArrayNamespace, a: Array) -> Array:
    """Return the cofactors of square matrices."""
    if 0 in a.shape:
        return xp.zeros_like(a)
    det = xp.linalg.det(a)[..., None, None]
    regular = (det != 0) & xp.isfinite(det)
    inverse = xp.linalg.inv(xp.where(regular, a, xp.eye(a.shape[-1], dtype=a.dtype)))
    result = det * inverse.swapaxes(-1, -2)
    if not (xp is np and regular.all()):  # on a GPU, do not wait for the result
        u, s, v, sign = _svd_with_sign(xp, a)
        scale = sign * leave_one_out_products(xp, s, (s.ndim - 1,))[..., None, :]
        result = xp.where(regular, result, xp.matmul(u * scale, v))
    cast_result: Array = result.astype(a.dtype, copy=False)
    return cast_result


def cofactors_derivative(xp: ArrayNamespace, a: Array, change: Array) -> Array:
    """Return the derivative of the cofactors for a change of the matrices."""
    count = a.shape[-1]
    if 0 in a.shape or count < 2:
        return xp.zeros_like(a)
    u, s, v, sign = _svd_with_sign(xp, a)
    rotated = xp.matmul(xp.matmul(u.swapaxes(-1, -2), change), v.swapaxes(-1, -2))
    # The products of all singular values except two.
    unit = xp.eye(count, dtype=bool)
    is_excluded = unit[:, None, :] | unit[None, :, :]
    others = xp.prod(xp.where(is_excluded, 1, s[..., None, None, :]), axis=-1) * ~unit
    diagonal = xp.matmul(others, xp.diagonal(rotated, axis1=-2, axis2=-1)[..., None])
    inner = diagonal * unit - others * rotated.swapaxes(-1, -2)
    result: Array = sign * xp.matmul(xp.matmul(u, inner), v)
    return result


def _svd_with_sign(xp: ArrayNamespace, a: Array) -> tuple[Array, Array, Array, Array]:
    """Return the singular value decomposition, and the determinant of its orthogonal factors (1 or -1).

    The result is NaN for matrices that are not finite, since LAPACK does not terminate for some of them.
    """
    finite = xp.isfinite(a).all(axis=(-2, -1), keepdims=True)
    u, s, v = xp.linalg.svd(xp.where(finite, a, xp.eye(a.shape[-1], dtype=a.dtype)))
    u = xp.where(finite, u, xp.nan)
    return u, s, v, xp.sign(xp.linalg.det(u) * xp.linalg.det(v))[..., None, None]
