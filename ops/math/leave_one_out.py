"""Leave-one-out products: the gradient of a product, computed without division, so that factors may be 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from flowmx.ops.arrays.linear import Inferred
from flowmx.ops.math.reduce import Reduction, widen
from flowmx.ops.registry.operators import Array, Run, Shape, ShapeOrNone, operator
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensor, Tensors
from flowmx.ops.registry.traits import Precision


def leave_one_out_products(xp: ArrayNamespace, x: Array, axes: Sequence[int]) -> Array:
    """Return, for each element, the product of all others along the axes, in the shape of ``x``."""
    kept_axes = [axis for axis in range(x.ndim) if axis not in axes]
    order = (*kept_axes, *axes)
    transposed = x.transpose(order)
    rows = transposed.reshape((*(x.shape[axis] for axis in kept_axes), math.prod(x.shape[axis] for axis in axes)))
    products = xp.ones_like(rows)
    if rows.shape[-1] > 1:
        products[..., 1:] = xp.cumprod(rows[..., :-1], axis=-1)
        products[..., :-1] *= xp.cumprod(rows[..., :0:-1], axis=-1)[..., ::-1]
    result: Array = products.reshape(transposed.shape).transpose([order.index(axis) for axis in range(x.ndim)])
    return result


def leave_one_out_derivative(
    x: object, change: object, count: int, cut: Callable[..., object], join: Callable[..., object]
) -> Any:
    """Return the derivative of :func:`leave_one_out_products` along the last axis, for a change of the factors.

    The factors are multiplied in pairs, as a tree, so all higher derivatives exist, also at factors of 0. The Jacobian
    is symmetric, so this is also the gradient.

    Args:
        x: the factors, (rows, count).
        change: the change of each factor.
        count: the length of the last axis.
        cut: ``cut(array, start, stop)`` slices the last axis.
        join: ``join(arrays)`` concatenates along the last axis.
    """
    return _products_and_changes(x, change, count, cut, join)[1]


def _products_and_changes(x: Any, change: Any, count: int, cut: Any, join: Any) -> tuple[Any, Any]:
    """Return the leave-one-out products, and their change."""
    if count == 1:
        return x * 0.0 + 1.0, change * 0.0
    half = count // 2
    (a, a_change), (b, b_change), odd = (
        [cut(factors, *span) for factors in (x, change)] for span in _spans(half, count)
    )
    pairs, pairs_change = a * b, a_change * b + a * b_change
    if count % 2:
        pairs, pairs_change = join([pairs, odd[0]]), join([pairs_change, odd[1]])
    outer, outer_change = _products_and_changes(pairs, pairs_change, count - half, cut, join)
    first, first_change = (cut(factors, 0, half) for factors in (outer, outer_change))
    last = [[cut(factors, half, half + 1)] if count % 2 else [] for factors in (outer, outer_change)]
    return (
        join([first * b, first * a, *last[0]]),
        join([first_change * b + first * b_change, first_change * a + first * a_change, *last[1]]),
    )


def _spans(half: int, count: int) -> tuple[tuple[int, int], ...]:
    return (0, half), (half, 2 * half), (count - 1, count)


@operator("_products_of_others")
class LeaveOneOutProducts(Reduction, hidden=True, precision=Precision.FLOAT32):
    """For each element, the product of all others over the axes."""

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, shapes[:1]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = leave_one_out_products(run.xp, widen(inputs[0]), self.axes(inputs[0].ndim))

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        shape: Shape = inputs[0].shape
        axes = self.axes(len(shape))
        if not shape or 0 in shape:
            return [F.zeros_like(heads[0])]
        order = (*(axis for axis in range(len(shape)) if axis not in axes), *axes)
        moved_shape = tuple([shape[axis] for axis in order])
        count = math.prod(shape[axis] for axis in axes)

        def rows(array: object) -> Any:
            return F.op("Reshape", F.op("transpose", array, axes=order), shape=(-1, count))

        def cut(array: object, start: int, stop: int) -> Tensor:
            return F.op("slice_axis", array, axis=1, begin=start, end=stop)

        def join(parts: list[Any]) -> Any:
            return F.op("Concat", *parts, dim=1, num_args=len(parts))

        slopes = leave_one_out_derivative(rows(inputs[0]), rows(heads[0]), count, cut, join)
        inverse_order = tuple([order.index(axis) for axis in range(len(shape))])
        return [F.op("transpose", F.op("Reshape", slopes, shape=moved_shape), axes=inverse_order)]
