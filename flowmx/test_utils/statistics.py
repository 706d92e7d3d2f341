"""Statistical tests of random numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from flowmx.test_utils.tolerance import Numbers, on_host

__all__ = ["chi_square_check", "gen_buckets_probs_with_ppf", "mean_check", "var_check", "verify_generator"]

Generator = Callable[[int], Any]
"""Makes so many random numbers."""


def gen_buckets_probs_with_ppf(
    ppf: Callable[[float], float], nbuckets: int
) -> tuple[list[tuple[float, float]], list[float]]:
    """Ranges of equal probability, and these probabilities, from a distribution's quantile function.

    Raises:
        ValueError: no range at all.
    """
    if nbuckets < 1:
        raise ValueError(f"gen_buckets_probs_with_ppf: nbuckets is {nbuckets}, expected at least 1")
    ends = [ppf(i / nbuckets) for i in range(nbuckets + 1)]
    return list(pairwise(ends)), [1.0 / nbuckets] * nbuckets


def mean_check(generator: Generator, mu: float, sigma: float, nsamples: int = 1000000) -> bool:
    """Tell whether the mean of a sample is within three standard errors of ``mu``."""
    found = on_host(generator(nsamples)).mean(dtype=np.float64)
    return bool(abs(found - mu) < 3 * sigma / np.sqrt(nsamples))


def var_check(generator: Generator, sigma: float, nsamples: int = 1000000) -> bool:
    """Tell whether the variance of a normal sample is within three standard errors of ``sigma**2``."""
    found = on_host(generator(nsamples)).var(ddof=1, dtype=np.float64)
    return bool(abs(found - sigma**2) < 3 * np.sqrt(2 * sigma**4 / (nsamples - 1)))


def chi_square_check(
    generator: Generator, buckets: Sequence[Any], probs: Sequence[float], nsamples: int = 1000000
) -> tuple[float, Numbers, Numbers]:
    """Compare how often numbers fall into ranges, or are of certain values, with how often they should.

    Args:
        generator: makes so many random numbers.
        buckets: ranges, as pairs in growing order, or values.
        probs: the probability of each.
        nsamples: the number of samples.

    Returns:
        the p-value of the chi-square test, the counts, and the expected ones.

    Raises:
        ValueError: there are not as many probabilities as buckets.
    """
    if len(buckets) != len(probs):
        raise ValueError(f"chi_square_check: {len(probs)} probs for {len(buckets)} buckets")
    counts = _counts(on_host(generator(nsamples)).ravel(), buckets)
    expected = np.asarray(probs, np.float64) * nsamples
    inside = counts.sum()
    if inside != nsamples:  # what falls into no bucket counts, as a bucket of its own
        counts = np.append(counts, nsamples - inside)
        expected = np.append(expected, max(nsamples - expected.sum(), 1e-6))
    expected *= nsamples / expected.sum()
    distance = float(((counts - expected) ** 2 / expected).sum())
    return _above((len(counts) - 1) / 2, distance / 2), counts[: len(buckets)], expected[: len(buckets)]


def _above(shape: float, x: float) -> float:
    """The share of a gamma distribution that lies above a value: one minus its series."""
    if x <= 0:
        return 1.0
    if x > 20 * shape + 200:  # less than any double that is not 0 is left
        return 0.0
    term = total = 1 / shape
    n = shape
    while term > total * 1e-17:
        n += 1
        term *= x / n
        total += term
    return max(1 - total * math.exp(shape * math.log(x) - x - math.lgamma(shape)), 0.0)


def _counts(samples: Numbers, buckets: Sequence[Any]) -> Numbers:
    if isinstance(buckets[0], list | tuple):
        return np.array([((samples >= low) & (samples < high)).sum() for low, high in buckets])
    return np.array([(samples == value).sum() for value in buckets])


def verify_generator(
    generator: Generator, buckets: Sequence[Any], probs: Sequence[float], nsamples: int = 1000000, nrepeat: int = 5,
    success_rate: float = 0.2, alpha: float = 0.05,
) -> list[float]:  # fmt: skip
    """Repeat :func:`chi_square_check`; returns the p-values.

    Args:
        generator: makes so many random numbers.
        buckets: ranges, as pairs in growing order, or values.
        probs: the probability of each.
        nsamples: the number of samples in each repetition.
        nrepeat: the number of repetitions.
        success_rate: the share of these that must have a p-value above ``alpha``.
        alpha: see there.

    Raises:
        AssertionError: fewer have.
    """
    found = [chi_square_check(generator, buckets, probs, nsamples) for _ in range(nrepeat)]
    values = [value for value, _, _ in found]
    if sum(value > alpha for value in values) < nrepeat * success_rate:
        _, counts, expected = found[-1]
        raise AssertionError(
            f"the numbers are not distributed so: the p-values are {values}, and at least {success_rate:.0%} must be "
            f"above {alpha}; the last counts {counts.tolist()}, expected {expected.round(1).tolist()} for {buckets}"
        )
    return values
