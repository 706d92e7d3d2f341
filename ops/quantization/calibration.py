"""The threshold of a histogram by entropy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowmx.errors import ShapeError
from flowmx.ops.quantization.ranges import RANGE, Inferred, InferredTypes, known_types, operator
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, described, option

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
        if hist is not None and edges is not None and (len(hist) != 1 or edges != (hist[0] + 1,)):
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
        before = np.concatenate([[0], np.cumsum(counts, dtype=np.float64)]).astype(np.float32)
        found = [
            _divergence(counts, middle - each, middle + each + 1, levels, before) for each in range(half, middle + 1)
        ]
        best = int(np.argmin(found))
        outputs[0][...] = edges[middle + half + best + 1]
        outputs[1][...] = found[best]


def _on_host(array: Any) -> Any:
    return array.get() if hasattr(array, "get") else array
