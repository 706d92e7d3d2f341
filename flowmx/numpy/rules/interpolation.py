"""The gradients of interpolation, numerical differentiation and integration."""

from __future__ import annotations

from typing import Any

from flowmx.numpy.rules.registry import Axis, divide, extension, getitem, is_array, refuse, restore_axes, rule
from flowmx.ops.registry.tensors import Functions, Gradients, Tensor, as_list

__all__: list[str] = []


@rule("interp")
def _interp(
    np: Functions,
    g: Tensor,
    r: Tensor,
    x: Tensor,
    xp: Tensor,
    fp: Tensor,
    left: Tensor | float | None = None,
    right: Tensor | float | None = None,
    period: float | None = None,
) -> Gradients:
    # NumPy calls the sample positions xp, so the namespace is np here.
    dtype = next(array.dtype for array in (fp, x, xp) if is_array(array))
    x, xp, fp = (array if is_array(array) else np.array(array, dtype=dtype) for array in (x, xp, fp))
    if period is not None or xp.shape[0] < 2:
        refuse("interp with a period, or of one point")
    count = xp.shape[0]
    below = np.clip(np.searchsorted(xp, x, side="right") - 1, 0, count - 2)
    first, last, low, high = (np.take(samples, index) for samples in (xp, fp) for index in (below, below + 1))
    width, rise = last - first, high - low
    before: Any = x < np.take(xp, 0)
    after: Any = x > np.take(xp, count - 1)
    fraction = np.clip(divide(np, x - first, width), 0.0, 1.0)
    slope = np.where(before | after, 0.0, divide(np, g * rise, width))
    head = g if left is None else np.where(before, 0.0, g)
    head = head if right is None else np.where(after, 0.0, head)

    def at_samples(lower: Tensor, upper: Tensor) -> Tensor:
        return extension(below, "added_at", lower, count) + extension(below + 1, "added_at", upper, count)

    fp_gradient = at_samples(head * (1 - fraction), head * fraction)
    xp_gradient = at_samples(-slope * (1 - fraction), -slope * fraction)
    left_gradient = np.sum(np.where(before, g, 0.0)) if is_array(left) else None
    right_gradient = np.sum(np.where(after, g, 0.0)) if is_array(right) else None
    return slope, xp_gradient, fp_gradient, left_gradient, right_gradient


@rule("gradient")
def _gradient(
    xp: Functions, g: Tensor, r: Tensor, f: Tensor, *spacings: object, axis: Axis = None, edge_order: int = 1
) -> Gradients:
    axes = range(f.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    heads = as_list(g)
    if not spacings:
        spacings = (1.0,)
    if len(spacings) == 1:
        spacings = spacings * len(heads)
    total = None
    for head, along, spacing in zip(heads, axes, spacings, strict=True):
        # The function is linear along the axis. Its matrix is its result for unit vectors.
        unit = xp.eye(f.shape[along], dtype=f.dtype)
        matrix = xp.gradient(unit, spacing, axis=0, edge_order=edge_order)
        term = xp.moveaxis(xp.matmul(xp.moveaxis(head, along, -1), matrix), -1, along)
        total = term if total is None else total + term
    return total, *(None for _ in spacings)


@rule("trapezoid")
def _trapezoid(
    xp: Functions, g: Tensor, r: Tensor, y: Tensor, x: Tensor | None = None, dx: object = 1.0, axis: int = -1
) -> Gradients:
    axis %= y.ndim
    count = y.shape[axis]
    head = restore_axes(xp, g, y, axis)
    ends = ((slice(None),) * axis + (slice(1, None),), (slice(None),) * axis + (slice(0, count - 1),))
    upper, lower = (tuple((before if index == axis else 0, after if index == axis else 0) for index in range(y.ndim))
                    for before, after in ((1, 0), (0, 1)))  # fmt: skip
    width = dx
    if is_array(x):
        flat = x.ndim == 1
        width = xp.diff(x, axis=0 if flat else axis)
        if flat:
            width = xp.reshape(width, tuple(-1 if index == axis else 1 for index in range(y.ndim)))
    elif x is not None:
        refuse("trapezoid with a list of positions")
    middle = xp.broadcast_to(
        head * width * 0.5, tuple(n - 1 if index == axis else n for index, n in enumerate(y.shape))
    )
    y_gradient = xp.pad(middle, upper) + xp.pad(middle, lower)
    if not is_array(x):
        return y_gradient, None, None
    width_gradient = head * (getitem(y, ends[0]) + getitem(y, ends[1])) * 0.5
    x_gradient = xp.pad(width_gradient, upper) - xp.pad(width_gradient, lower)
    if x.ndim == 1:
        x_gradient = xp.sum(x_gradient, axis=tuple(index for index in range(y.ndim) if index != axis))
    return y_gradient, x_gradient, None


@rule("unwrap")
def _unwrap(xp: Functions, g: Tensor, r: Tensor, p: Tensor, *_: object, **others: object) -> Gradients:
    return (g,)
