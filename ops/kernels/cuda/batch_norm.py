"""BatchNorm and its gradient: sums over each channel, then one pass over the images.

The variance is computed from the distances to each channel's first element, which is close enough to the mean to avoid
cancellation. The flag that the batch's statistics were used stays on the GPU, unknown to the host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from flowmx.ops.formulas.expressions import Expr, maximum, parameter, placeholder, sqrt, where
from flowmx.ops.kernels.cuda.channel_sums import ChannelView, Sums
from flowmx.ops.kernels.cuda.elementwise import Loop
from flowmx.ops.kernels.cuda.layouts import has_layout, run_fallback
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.kernels import kernel
from flowmx.ops.registry.operators import Array, Run

if TYPE_CHECKING:
    from flowmx.ops.nn.normalization.batch_norm import BatchNorm


def _x(index: int) -> Expr:
    """Return the placeholder of an element of the images."""
    return placeholder(f"x{index}")


def _v(index: int) -> Expr:
    """Return the placeholder of an element of the vectors."""
    return placeholder(f"v{index}")


def _t(index: int) -> Expr:
    """Return the placeholder of a total."""
    return placeholder(f"t{index}")


_count = placeholder("count")


@cache
def _statistics(data: DType, small: DType) -> Sums:
    """Return the sums for the statistics.

    Vectors: the pivot, the moving mean and variance. Outputs: the mean, 1/std, and the new moving mean and variance.
    """
    from_pivot = _x(0) - _v(0)
    shift = _t(0) / _count
    mean, var = _v(0) + shift, maximum(_t(1) / _count - shift * shift, 0.0)
    momentum = parameter("momentum")
    moving = [_v(index) * momentum + (1.0 - momentum) * new for index, new in ((1, mean), (2, var))]
    outputs = [mean, 1.0 / sqrt(var + parameter("eps")), *moving]
    return Sums([from_pivot, from_pivot * from_pivot], outputs, [data], [data, small, small], [small] * 4)


@cache
def _normalizing_loop(data: DType, small: DType, fixed_gamma: bool, relu: bool) -> Loop:
    """Return the loop that normalizes; inputs: data, mean, 1/std, gamma and beta."""
    x, mean, inverse, gamma, beta = map(placeholder, range(5))
    out = (x - mean) * (inverse if fixed_gamma else inverse * gamma) + beta
    return Loop([where(out < 0.0, 0.0, out) if relu else out], [data, small, small, small, small, data])


@cache
def _sums(data: DType, small: DType, fixed_gamma: bool) -> Sums:
    """Return the sums for the gradients.

    Images: head and data. Vectors: mean and 1/std. Outputs: the sums, then the gradients of gamma and beta.
    """
    product_sum, head_sum = _t(0), _t(1)
    gamma_grad: Expr = product_sum * _v(1) * 0.0 if fixed_gamma else product_sum * _v(1)
    return Sums(
        [_x(0) * (_x(1) - _v(0)), _x(0)],
        [product_sum, head_sum, gamma_grad, head_sum],
        [data] * 2,
        [small] * 2,
        [small] * 4,
    )


@cache
def _gradient(data: DType, small: DType, fixed_gamma: bool) -> Loop:
    """Return the loop of the data's gradient; inputs: head, data, mean, 1/std, gamma, both sums, flag and 1/count."""
    head, x, mean, inverse, gamma, product_sum, head_sum, flag = map(placeholder, range(8))
    share = flag * parameter("share")
    centered_grad = head - head_sum * share - (x - mean) * (inverse * inverse * product_sum * share)
    grad = centered_grad * (inverse if fixed_gamma else inverse * gamma)
    return Loop([grad], [data, data, *[small] * 6, data])


def _channel_view(op: BatchNorm, *arrays: Array) -> ChannelView | None:
    """Return the view of images of the same shape as (before, channels, after); None if layouts differ or have gaps."""
    shape = arrays[0].shape
    axis = op.axis % len(shape)
    before, channels, after = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    if all(has_layout(each, "C") for each in arrays):
        return ChannelView(before, channels, after, after == 1)
    if axis == 1 and all(has_layout(each, "channels last") for each in arrays):
        return ChannelView(before, channels, after, True)
    return None


def _spread(vector: Array, op: BatchNorm, rank: int) -> Array:
    """Reshape a vector to lie along the channels' axis."""
    shape = [1] * rank
    shape[op.axis % rank] = -1
    return vector.reshape(shape)


def _fits(data: Array, vectors: Sequence[Array]) -> bool:
    return data.size > 0 and all(each.flags.c_contiguous and each.dtype == vectors[0].dtype for each in vectors)


def forward(op: BatchNorm, run: Run, inputs: Sequence[Array], outputs: Sequence[Array], relu: bool) -> bool:
    """Compute BatchNorm; return False, without effect, if the kernels cannot."""
    data, gamma, beta, moving_mean, moving_var = inputs
    out, mean, inverse, flag = outputs
    view = _channel_view(op, data, out)
    small = [gamma, beta, moving_mean, moving_var, mean, inverse]
    if view is None or not _fits(data, small):
        return False
    loop = _normalizing_loop(data.dtype, gamma.dtype, op.fix_gamma, relu)
    batch = run.train and not op.use_global_stats
    if not loop.is_exact or not _prepare(op, run, view, batch, inputs, outputs):
        return False
    flag.fill(batch)
    vectors = [_spread(each, op, data.ndim) for each in (mean, inverse, gamma, beta)]
    return loop.run(run.xp, [], [data, *vectors, out])


def _prepare(
    op: BatchNorm, run: Run, view: ChannelView, batch: bool, inputs: Sequence[Array], outputs: Sequence[Array]
) -> bool:
    """Compute the mean and 1/std to use; in training, update the moving statistics."""
    data, _, _, moving_mean, moving_var = inputs
    _, mean, inverse, _ = outputs
    if not batch:
        run.xp.copyto(mean, moving_mean)
        run.xp.add(moving_var, moving_var.dtype.type(op.eps), out=inverse)
        run.xp.sqrt(inverse, out=inverse)
        run.xp.reciprocal(inverse, out=inverse)
        return True
    sums = _statistics(data.dtype, mean.dtype)
    axis = op.axis % data.ndim
    first = data[tuple([slice(None) if index == axis else 0 for index in range(data.ndim)])]
    pivot = run.xp.ascontiguousarray(first)
    numbers = [_number(each, op) for each in sums.uniforms]
    return sums.run(
        run.xp, view, numbers, [data], [pivot, moving_mean, moving_var], [mean, inverse, moving_mean, moving_var]
    )


def _number(expr: Expr, op: BatchNorm) -> float:
    """Return the value of momentum, 1 - momentum or eps."""
    if expr.kind == "parameter":
        return float(getattr(op, expr.value))
    return 1.0 - float(op.momentum)


def backward(op: BatchNorm, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    """Compute BatchNorm's gradients; return False, without effect, if the kernels cannot."""
    head, data, gamma, mean, inverse, flag = inputs
    out, gamma_grad, beta_grad = outputs
    view = _channel_view(op, head, data, out)
    if view is None or not _fits(data, [gamma, mean, inverse, gamma_grad, beta_grad]) or head.dtype != data.dtype:
        return False
    sums, loop = _sums(data.dtype, gamma.dtype, op.fix_gamma), _gradient(data.dtype, gamma.dtype, op.fix_gamma)
    product_sum, head_sum = (run.xp.empty(gamma.shape, gamma.dtype) for _ in range(2))
    totals = [product_sum, head_sum, gamma_grad, beta_grad]
    if not loop.is_exact or not sums.run(run.xp, view, [], [head, data], [mean, inverse], totals):
        return False
    vectors = [_spread(each, op, data.ndim) for each in (mean, inverse, gamma, product_sum, head_sum)]
    flag = flag.astype(gamma.dtype, copy=False).reshape((1,) * data.ndim)
    return loop.run(run.xp, [1.0 / view.elements], [head, data, *vectors, flag, out])


def _kernel(relu: bool) -> Any:
    def compute(op: BatchNorm, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        if not forward(op, run, inputs, outputs, relu):
            run_fallback(op, run, inputs, outputs)

    return compute


kernel("gpu", "BatchNorm")(_kernel(relu=False))
kernel("gpu", "_relu_BatchNorm")(_kernel(relu=True))


@kernel("gpu", "_backward_BatchNorm")
def _backward(op: BatchNorm, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    if not backward(op, run, inputs, outputs):
        run_fallback(op, run, inputs, outputs)
