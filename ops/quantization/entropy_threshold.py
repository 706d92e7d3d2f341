"""The threshold of a histogram by entropy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowmx.errors import ShapeError
from flowmx.ops.quantization.ranges import RANGE, Inferred, InferredTypes, known_types, operator
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, described, merge, option

_EPS = np.float32(0.0001)


def _smooth(counts: Array) -> Array | None:
    """The distribution with a little of its weight where it is 0; None where that can not be."""
    filled = counts != 0
    count = int(np.count_nonzero(filled))
    if not count:
        return None
    taken = _EPS * np.float32(counts.size - count) / np.float32(count)
    return None if taken >= 1 else counts + (_EPS - (taken + _EPS) * filled)


def _total(values: Array) -> np.float32:
    """The sum in order, as MXNet adds: thresholds are often nearly as good as others, which rounding then decides."""
    total: np.float32 = np.cumsum(values, dtype=np.float32)[-1]
    return total


def _merged(values: Array, levels: int, each: int) -> Array:
    """The sums of so many neighbours each; what is left over goes to the last."""
    sums = values[: levels * each].reshape(levels, each).sum(axis=1)
    sums[-1] += values[levels * each :].sum()
    return sums


def _divergence(counts: Array, first: int, stop: int, levels: int, before: Array) -> float:
    """The Kullback-Leibler divergence of a histogram cut off at both ends from the same in few levels.

    Args:
        counts: the histogram.
        first: the first bin that is kept.
        stop: the bin after the last one.
        levels: the number of levels.
        before: of each bin, the number of values before it.
    """
    inner = counts[first:stop].copy()
    inner[0] = 0
    cut = inner.copy()
    cut[0] = before[first + 1]
    cut[-1] += before[-1] - before[stop]
    merged = inner.size // levels
    sums, norms = (_merged(each, levels, merged) for each in (inner, (inner != 0).astype(np.float32)))
    means = np.divide(sums, norms, out=np.zeros(levels, np.float32), where=norms > 0)
    coarse = np.empty_like(cut)
    coarse[: levels * merged].reshape(levels, merged)[...] = means[:, None]
    coarse[levels * merged :] = means[-1]
    coarse[cut == 0] = 0
    p, q = _smooth(cut), _smooth(coarse)
    if p is None or q is None:
        return np.inf
    p /= _total(p)
    q /= _total(q)
    return float(_total(p * np.log(p / q)))


_TERMS = 12
"""Terms of the series for p·log(p) around a count."""
_CONVERGES = 0.3
"""The most that may be taken from a count of 1 so that these are enough."""
_MARGIN = 2e-4
"""Divergences that differ by less may change places where they are computed in float32."""


def _estimates(counts: Array, levels: int) -> Array:
    """The divergences of all thresholds in float64, from sums over ranges of bins.

    Those that can not be told so are -inf. The counts must be 0 or at least 1.
    """
    middle = counts.size // 2
    widths = np.arange(levels // 2, middle + 1)
    firsts, stops, sizes = middle - widths, middle + widths + 1, 2 * widths + 1
    filled = counts > 0
    logs = np.log(np.where(filled, counts, 1))
    whole, number = _sums_before(counts), _sums_before(filled)
    left, right = whole[firsts + 1], whole[-1] - whole[stops]
    end = np.where(stops - 1 > firsts, counts[stops - 1], 0)
    ends = left, end + right
    new = [left > 0, (end == 0) & (right > 0)]  # bins that are filled by what is cut off alone
    means, kept, bins = (np.zeros((len(widths), levels)) for _ in range(3))
    for each in np.unique(sizes // levels):
        rows = np.flatnonzero(sizes // levels == each)
        for made, before, first in ((kept, whole, counts), (bins, number, filled)):
            made[rows] = _by_level(before, firsts[rows], stops[rows], levels, each)
            made[rows, 0] -= first[firsts[rows]]
    np.divide(kept, bins, out=means, where=bins > 0)
    kept[:, 0] += left
    kept[:, -1] += right
    for level, more in zip((0, -1), new, strict=True):
        bins[:, level] += more
    is_empty = means == 0
    count = bins.sum(axis=1)
    count_q = (bins * ~is_empty).sum(axis=1)
    with np.errstate(all="ignore"):
        taken, taken_q = (float(_EPS) * (sizes - each) / each for each in (count, count_q))
        inner = [_sums_before(np.where(filled, each, 0)) for each in (counts * logs, logs + 1)]
        inner += [_sums_before(np.where(filled, np.exp(-power * logs), 0)) for power in range(1, _TERMS)]
        sums = [each[stops - 1] - each[firsts + 1] for each in inner]
        own = sums[0] - taken * sums[1]
        for power, each in enumerate(sums[2:], 2):
            own += taken**power / (power * (power - 1)) * each
        for each in ends:
            rest = each - taken
            own += np.where(each > 0, rest * np.log(rest), 0)
        kept -= taken[:, None] * bins
        means = np.where(is_empty, float(_EPS), means - taken_q[:, None])
        cross = (kept * np.log(means)).sum(axis=1)
        spread = (means * bins * ~is_empty).sum(axis=1) + taken_q * count_q
        found = (own - cross) / whole[-1] + np.log(spread / whole[-1])
    found[(taken >= _CONVERGES) | ~np.isfinite(found)] = -np.inf
    return found


def _sums_before(values: Array) -> Array:
    return np.concatenate([[0], np.cumsum(values, dtype=np.float64)])


def _by_level(before: Array, firsts: Array, stops: Array, levels: int, each: int) -> Array:
    """The sums of so many bins a level, and of what is left over in the last, for windows that grow by one a side."""
    step = before.strides[0]
    made = np.empty((len(firsts), levels))
    shown = np.lib.stride_tricks.as_strided(
        before[firsts[0] :], (len(firsts), levels), (-step, each * step), writeable=False
    )  # fmt: skip
    np.subtract(shown[:, 1:], shown[:, :-1], out=made[:, :-1])
    made[:, -1] = before[stops] - shown[:, -1]
    return made


def _best(counts: Array, levels: int) -> tuple[int, float]:
    """The least divergence, and which of the thresholds has it."""
    middle, half = counts.size // 2, levels // 2
    before = _sums_before(counts).astype(np.float32)

    def exactly(which: int) -> float:
        each = half + which
        return _divergence(counts, middle - each, middle + each + 1, levels, before)

    wide = counts.astype(np.float64)
    if np.all((wide == 0) | (wide >= 1)) and np.isfinite(wide).all() and wide.any():
        likely = _estimates(wide, levels)
        order = np.argsort(likely, kind="stable")
    else:
        likely = np.full(middle - half + 1, -np.inf)
        order = np.arange(len(likely))
    found: dict[int, float] = {}
    for which in order.tolist():
        # Estimates of those left are no less: none of them can be the best one.
        if found and likely[which] > min(found.values()) + _MARGIN:
            break
        found[which] = exactly(which)
    ordered = sorted(found)
    best = ordered[int(np.argmin([found[which] for which in ordered]))]
    return best, found[best]


@operator("_contrib_calibrate_entropy")
class CalibrateEntropy(Operator, no_gradient=True):
    """The threshold beyond which to cut a histogram off, so that few levels tell the most of it.

    From Migacz, "8-bit Inference with TensorRT", 2017. The histogram's middle is 0.
    """

    arguments = ("hist", "hist_edges")
    output_names = ("threshold", "divergence")
    input_docs = described(
        hist="(bins,), float32; the number of values in each bin", hist_edges="(bins + 1,), float32; where bins begin"
    )
    output_doc = "(1,), float32: the threshold, and the Kullback-Leibler divergence there"
    num_quantized_bins: int = option(255, "The number of levels.", low=1)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        hist, edges = shapes
        wanted = None if hist is None else tuple([-1 if bins == -1 else bins + 1 for bins in hist])
        if len(hist or (-1,)) != 1 or merge(edges, wanted) is False:
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


def _on_host(array: Any) -> Any:
    return array.get() if hasattr(array, "get") else array
