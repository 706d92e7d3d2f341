"""BatchNorm and its gradient: sums over each channel, then one pass over the images.

The variance is taken of the distances from each channel's first element, which is near enough to the mean that nothing
cancels. What the host does not know, whether the batch's statistics were used, stays on the GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

from flowmx.ops.formulas.expressions import Expr, maximum, parameter, placeholder, sqrt, where
from flowmx.ops.kernels.cuda.channels import Seen, Sums
from flowmx.ops.kernels.cuda.elementwise import Loop
from flowmx.ops.kernels.cuda.layouts import lies, plainly
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Operator, Run, kernel


def _x(at: int) -> Expr:
    """An element of the images."""
    return placeholder(f"x{at}")


def _v(at: int) -> Expr:
    """An element of the vectors."""
    return placeholder(f"v{at}")


def _t(at: int) -> Expr:
    """A total."""
    return placeholder(f"t{at}")


_count = placeholder("count")


@cache
def _statistics(data: DType, small: DType) -> Sums:
    """Vectors: the pivot, the moving mean and variance. Makes: the mean, 1/std, and both moving ones."""
    from_pivot = _x(0) - _v(0)
    shift = _t(0) / _count
    mean, var = _v(0) + shift, maximum(_t(1) / _count - shift * shift, 0.0)
    momentum = parameter("momentum")
    moving = [_v(at) * momentum + (1.0 - momentum) * new for at, new in ((1, mean), (2, var))]
    made = [mean, 1.0 / sqrt(var + parameter("eps")), *moving]
    return Sums([from_pivot, from_pivot * from_pivot], made, [data], [data, small, small], [small] * 4)


@cache
def _normalised(data: DType, small: DType, fixed: bool, relu: bool) -> Loop:
    """The loop that normalises, of data, mean, 1/std, gamma and beta."""
    x, mean, inverse, gamma, beta = map(placeholder, range(5))
    out = (x - mean) * (inverse if fixed else inverse * gamma) + beta
    return Loop([where(out < 0.0, 0.0, out) if relu else out], [data, small, small, small, small, data])


@cache
def _sums(data: DType, small: DType, fixed: bool) -> Sums:
    """Images: head and data. Vectors: mean and 1/std. Makes: the sums themselves, then both gradients."""
    along, across = _t(0), _t(1)
    gamma_grad: Expr = along * _v(1) * 0.0 if fixed else along * _v(1)
    return Sums(
        [_x(0) * (_x(1) - _v(0)), _x(0)], [along, across, gamma_grad, across], [data] * 2, [small] * 2, [small] * 4
    )


@cache
def _gradient(data: DType, small: DType, fixed: bool) -> Loop:
    """The loop of the data's gradient, of head, data, mean, 1/std, gamma, both sums, the flag and 1/count."""
    head, x, mean, inverse, gamma, along, across, flag = map(placeholder, range(8))
    share = flag * parameter("share")
    moved = head - across * share - (x - mean) * (inverse * inverse * along * share)
    made = moved * (inverse if fixed else inverse * gamma)
    return Loop([made], [data, data, *[small] * 6, data])


def _seen(op: Any, *arrays: Array) -> Seen | None:
    """The view of images of one shape as (before, channels, after); None where layouts differ or have gaps."""
    shape = arrays[0].shape
    axis = op.axis % len(shape)
    before, channels, after = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    if all(lies(each, "C") for each in arrays):
        return Seen(before, channels, after, after == 1)
    if axis == 1 and all(lies(each, "channels last") for each in arrays):
        return Seen(before, channels, after, True)
    return None


def _spread(vector: Array, op: Any, rank: int) -> Array:
    """A vector along the channels' axis."""
    shape = [1] * rank
    shape[op.axis % rank] = -1
    return vector.reshape(shape)


def _fits(data: Array, vectors: Sequence[Array]) -> bool:
    return data.size > 0 and all(each.flags.c_contiguous and each.dtype == vectors[0].dtype for each in vectors)


def forward(op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array], relu: bool) -> bool:
    """Compute BatchNorm; False, and nothing is done, where the kernels cannot."""
    data, gamma, beta, moving_mean, moving_var = inputs
    out, mean, inverse, flag = outputs
    seen = _seen(op, data, out)
    small = [gamma, beta, moving_mean, moving_var, mean, inverse]
    if seen is None or not _fits(data, small):
        return False
    loop = _normalised(data.dtype, gamma.dtype, op.fix_gamma, relu)
    batch = run.train and not op.use_global_stats
    if not loop.is_exact or not _prepare(op, run, seen, batch, inputs, outputs):
        return False
    flag.fill(batch)
    vectors = [_spread(each, op, data.ndim) for each in (mean, inverse, gamma, beta)]
    return loop.run(run.xp, [], [data, *vectors, out])


def _prepare(op: Any, run: Run, seen: Seen, batch: bool, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    """The mean and 1/std that are used; in training the moving ones follow."""
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
    first = data[tuple([slice(None) if at == axis else 0 for at in range(data.ndim)])]
    pivot = run.xp.ascontiguousarray(first)
    numbers = [_number(each, op) for each in sums.uniforms]
    return sums.run(
        run.xp, seen, numbers, [data], [pivot, moving_mean, moving_var], [mean, inverse, moving_mean, moving_var]
    )


def _number(expr: Expr, op: Any) -> float:
    """The value of momentum, of 1 - momentum, or of eps."""
    if expr.kind == "parameter":
        return float(getattr(op, expr.value))
    return 1.0 - float(op.momentum)


def backward(op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    """Compute BatchNorm's gradients; False, and nothing is done, where the kernels cannot."""
    head, data, gamma, mean, inverse, flag = inputs
    out, gamma_grad, beta_grad = outputs
    seen = _seen(op, head, data, out)
    if seen is None or not _fits(data, [gamma, mean, inverse, gamma_grad, beta_grad]) or head.dtype != data.dtype:
        return False
    sums, loop = _sums(data.dtype, gamma.dtype, op.fix_gamma), _gradient(data.dtype, gamma.dtype, op.fix_gamma)
    along, across = (run.xp.empty(gamma.shape, gamma.dtype) for _ in range(2))
    totals = [along, across, gamma_grad, beta_grad]
    if not loop.is_exact or not sums.run(run.xp, seen, [], [head, data], [mean, inverse], totals):
        return False
    vectors = [_spread(each, op, data.ndim) for each in (mean, inverse, gamma, along, across)]
    flag = flag.astype(gamma.dtype, copy=False).reshape((1,) * data.ndim)
    return loop.run(run.xp, [1.0 / seen.elements], [head, data, *vectors, flag, out])


def _kernel(relu: bool) -> Any:
    def compute(op: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        if not forward(op, run, inputs, outputs, relu):
            plainly(op, run, inputs, outputs)

    return compute


kernel("gpu", "BatchNorm")(_kernel(relu=False))
kernel("gpu", "_relu_BatchNorm")(_kernel(relu=True))


@kernel("gpu", "_backward_BatchNorm")
def _backward(op: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    if not backward(op, run, inputs, outputs):
        plainly(op, run, inputs, outputs)
