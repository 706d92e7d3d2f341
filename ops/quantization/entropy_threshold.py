"""The calibration threshold of a histogram by entropy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowmx.errors import ShapeError
from flowmx.ops.quantization.ranges import RANGE, Inferred, InferredTypes, known_types, operator
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, describe, merge, option

_EPS = np.float32(0.0001)


def _smooth(counts: Array) -> Array | None:
    """Move a little weight to empty bins of a distribution; return None if the weight does not suffice."""
    is_filled = counts != 0
    count = int(np.count_nonzero(is_filled))
    if not count:
        return None
    reduction = _EPS * np.float32(counts.size - count) / np.float32(count)
    return None if reduction >= 1 else counts + (_EPS - (reduction + _EPS) * is_filled)


def _total(values: Array) -> np.float32:
    """Return the sum in order, as in MXNet: rounding decides between thresholds that are almost equally good."""
    total: np.float32 = np.cumsum(values, dtype=np.float32)[-1]
    return total


def _merge_bins(values: Array, levels: int, width: int) -> Array:
    """Return the sums of ``width`` neighboring bins; the last level also gets the remaining bins."""
    sums: Array = values[: levels * width].reshape(levels, width).sum(axis=1)
    sums[-1] += values[levels * width :].sum()
    return sums


def _divergence(counts: Array, first: int, stop: int, levels: int, before: Array) -> float:
    """Return the Kullback-Leibler divergence of a clipped histogram from its quantization to a few levels.

    Args:
        counts: the histogram.
        first: the first bin inside the thresholds.
        stop: the bin after the last one.
        levels: the number of levels.
        before: the number of values before each bin.
    """
    inner = counts[first:stop].copy()
    inner[0] = 0
    clipped = inner.copy()
    clipped[0] = before[first + 1]
    clipped[-1] += before[-1] - before[stop]
    width = inner.size // levels
    sums, norms = (_merge_bins(bins, levels, width) for bins in (inner, (inner != 0).astype(np.float32)))
    means = np.divide(sums, norms, out=np.zeros(levels, np.float32), where=norms > 0)
    coarse = np.empty_like(clipped)
    coarse[: levels * width].reshape(levels, width)[...] = means[:, None]
    coarse[levels * width :] = means[-1]
    coarse[clipped == 0] = 0
    p, q = _smooth(clipped), _smooth(coarse)
    if p is None or q is None:
        return np.inf
    p /= _total(p)
    q /= _total(q)
    return float(_total(p * np.log(p / q)))


_TERMS = 12
"""Terms of the series of p·log(p) around a count."""
_CONVERGENCE_LIMIT = 0.3
"""The largest reduction of a count of 1 for which these terms suffice."""
_MARGIN = 2e-4
"""Divergences that differ by less may be ordered differently when computed in float32."""


def _estimates(counts: Array, levels: int) -> Array:
    """Estimate the divergences of all thresholds in float64, from sums over ranges of bins.

    Divergences that cannot be estimated are -inf. The counts must be 0 or at least 1.
    """
    middle = counts.size // 2
    widths = np.arange(levels // 2, middle + 1)
    firsts, stops, sizes = middle - widths, middle + widths + 1, 2 * widths + 1
    is_filled = counts > 0
    logs = np.log(np.where(is_filled, counts, 1))
    values_before, bins_before = _sums_before(counts), _sums_before(is_filled)
    clipped_left, clipped_right = values_before[firsts + 1], values_before[-1] - values_before[stops]
    end = np.where(stops - 1 > firsts, counts[stops - 1], 0)
    ends = clipped_left, end + clipped_right
    new = [clipped_left > 0, (end == 0) & (clipped_right > 0)]  # bins that contain only clipped values
    means, inside, bins = (np.zeros((len(widths), levels)) for _ in range(3))
    for width in np.unique(sizes // levels):
        rows = np.flatnonzero(sizes // levels == width)
        for target, before, first in ((inside, values_before, counts), (bins, bins_before, is_filled)):
            target[rows] = _sums_by_level(before, firsts[rows], stops[rows], levels, width)
            target[rows, 0] -= first[firsts[rows]]
    np.divide(inside, bins, out=means, where=bins > 0)
    inside[:, 0] += clipped_left
    inside[:, -1] += clipped_right
    for level, extra in zip((0, -1), new, strict=True):
        bins[:, level] += extra
    is_empty = means == 0
    count = bins.sum(axis=1)
    count_q = (bins * ~is_empty).sum(axis=1)
    with np.errstate(all="ignore"):
        reduction, reduction_q = (float(_EPS) * (sizes - n) / n for n in (count, count_q))
        inner = [_sums_before(np.where(is_filled, values, 0)) for values in (counts * logs, logs + 1)]
        inner += [_sums_before(np.where(is_filled, np.exp(-power * logs), 0)) for power in range(1, _TERMS)]
        sums = [values[stops - 1] - values[firsts + 1] for values in inner]
        entropy = sums[0] - reduction * sums[1]
        for power, term in enumerate(sums[2:], 2):
            entropy += reduction**power / (power * (power - 1)) * term
        for weight in ends:
            remainder = weight - reduction
            entropy += np.where(weight > 0, remainder * np.log(remainder), 0)
        inside -= reduction[:, None] * bins
        means = np.where(is_empty, float(_EPS), means - reduction_q[:, None])
        cross = (inside * np.log(means)).sum(axis=1)
        total = (means * bins * ~is_empty).sum(axis=1) + reduction_q * count_q
        divergences: Array = (entropy - cross) / values_before[-1] + np.log(total / values_before[-1])
    divergences[(reduction >= _CONVERGENCE_LIMIT) | ~np.isfinite(divergences)] = -np.inf
    return divergences


def _sums_before(values: Array) -> Array:
    return np.concatenate([[0], np.cumsum(values, dtype=np.float64)])


def _sums_by_level(before: Array, firsts: Array, stops: Array, levels: int, width: int) -> Array:
    """Return the sums of ``width`` bins per level, for windows that grow by one bin on each side.

    The last level also gets the remaining bins.
    """
    step = before.strides[0]
    sums = np.empty((len(firsts), levels))
    edges = np.lib.stride_tricks.as_strided(
        before[firsts[0] :], (len(firsts), levels), (-step, width * step), writeable=False
    )  # fmt: skip
    np.subtract(edges[:, 1:], edges[:, :-1], out=sums[:, :-1])
    sums[:, -1] = before[stops] - edges[:, -1]
    return sums


def _best(counts: Array, levels: int) -> tuple[int, float]:
    """Return the index of the threshold with the smallest divergence, and that divergence."""
    middle, half = counts.size // 2, levels // 2
    before = _sums_before(counts).astype(np.float32)

    def exactly(which: int) -> float:
        width = half + which
        return _divergence(counts, middle - width, middle + width + 1, levels, before)

    float_counts = counts.astype(np.float64)
    if np.all((float_counts == 0) | (float_counts >= 1)) and np.isfinite(float_counts).all() and float_counts.any():
        estimates = _estimates(float_counts, levels)
        order = np.argsort(estimates, kind="stable")
    else:
        estimates = np.full(middle - half + 1, -np.inf)
        order = np.arange(len(estimates))
    divergences: dict[int, float] = {}
    for which in order.tolist():
        # The remaining estimates are not smaller, so none of them can be the best.
        if divergences and estimates[which] > min(divergences.values()) + _MARGIN:
            break
        divergences[which] = exactly(which)
    ordered = sorted(divergences)
    best = ordered[int(np.argmin([divergences[which] for which in ordered]))]
    return best, divergences[best]


@operator("_contrib_calibrate_entropy")
class CalibrateEntropy(Operator, no_gradient=True):
    """The threshold at which to clip a histogram so that a few levels preserve most information.

    From Migacz, "8-bit Inference with TensorRT", 2017. The histogram's middle is 0.
    """

    arguments = ("hist", "hist_edges")
    output_names = ("threshold", "divergence")
    input_docs = describe(
        hist="(bins,), float32; values per bin",
        hist_edges="(bins + 1,), float32; the edges of the bins",
    )
    output_doc = "(1,), float32: the threshold, and its Kullback-Leibler divergence"
    num_quantized_bins: int = option(255, "The number of levels.", low=1)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        hist, edges = shapes
        edges_shape = None if hist is None else tuple([-1 if bins == -1 else bins + 1 for bins in hist])
        if len(hist or (-1,)) != 1 or merge(edges, edges_shape) is False:
            raise ShapeError(
                f"{self.name}: hist has shape {hist} and hist_edges {edges}, expected (bins,) and (bins + 1,)"
            )
        return shapes, [RANGE, RANGE]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return known_types(self, dtypes, [(FLOAT32,)] * 2), [FLOAT32, FLOAT32]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        counts, edges = map(_on_host, inputs)
        levels = self.num_quantized_bins
        middle, half = counts.size // 2, levels // 2
        if middle < half:
            raise ShapeError(
                f"{self.name}: hist has {counts.size} bins, expected at least num_quantized_bins, {levels}"
            )
        best, divergence = _best(counts, levels)
        outputs[0][...] = edges[middle + half + best + 1]
        outputs[1][...] = divergence


def _on_host(array: object) -> Any:
    return array.get() if hasattr(array, "get") else array
