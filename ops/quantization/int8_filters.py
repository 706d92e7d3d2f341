"""Weights of quantized layers as int8 filters."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flowmx.ops.quantization.ranges import INT8, scale_of
from flowmx.ops.registry.operators import Array
from flowmx.ops.registry.tensors import ArrayNamespace

_HALF_OF_INT32 = np.float32(2147483647) / 2


class Filters(NamedTuple):
    """An int8 weight with its scales.

    Attributes:
        weight: the weight, int8.
        scales: quantization steps per unit: one per output, or one for all.
        size: the largest absolute weight.
        bias: the bias in quantization steps of the sums, integers in float32, or None.
    """

    weight: Array
    scales: Array
    size: np.float32
    bias: Array | None


def quantize_filters(
    xp: ArrayNamespace, weight: Array, bias: Array | None, data_scale: np.float32, by_channel: bool
) -> Filters:
    """Quantize a weight and a bias to int8 filters."""
    rows = weight.reshape(len(weight), -1)
    sizes = xp.maximum(rows.max(axis=1), -rows.min(axis=1)) if rows.size else xp.zeros(len(weight), np.float32)
    size = np.float32(sizes.max())
    if by_channel:
        scales = xp.where(sizes > 0, np.float32(127.5) / xp.where(sizes > 0, sizes, 1), np.float32(2147483647))
        if bias is not None:  # the bias, in steps of the sums, must fit into an int32
            limit = _HALF_OF_INT32 / xp.maximum(xp.abs(bias), np.float32(1e-20)) / data_scale
            scales = xp.minimum(scales, limit)
    else:
        scales = xp.full((1,), scale_of(INT8, size), np.float32)
    scales = scales.astype(np.float32)
    steps = rows * scales[:, None]
    xp.clip(xp.rint(steps, out=steps), -128, 127, out=steps)
    if bias is not None:
        bias = xp.rint(bias * (scales * data_scale))
    return Filters(steps.reshape(weight.shape).astype(np.int8), scales, size, bias)


def round_half_away(xp: ArrayNamespace, values: Array) -> Array:
    """Round to the nearest integers, ties away from zero."""
    return xp.trunc(values + xp.copysign(np.float32(0.5), values))
