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
"""Returns an array of the requested number of random numbers."""


def gen_buckets_probs_with_ppf(
    ppf: Callable[[float], float], nbuckets: int
) -> tuple[list[tuple[float, float]], list[float]]:
    """Return ranges of equal probability, and the probabilities, from a distribution's quantile function.

    Raises:
        ValueError: ``nbuckets`` is less than 1.
    """
    if nbuckets < 1:
        raise ValueError(f"gen_buckets_probs_with_ppf: nbuckets is {nbuckets}, expected at least 1")
    ends = [ppf(i / nbuckets) for i in range(nbuckets + 1)]
    return list(pairwise(ends)), [1.0 / nbuckets] * nbuckets


def mean_check(generator: Generator, mu: float, sigma: float, nsamples: int = 1000000) -> bool:
    """Return whether the mean of a sample is within three standard errors of ``mu``."""
    mean = on_host(generator(nsamples)).mean(dtype=np.float64)
    return bool(abs(mean - mu) < 3 * sigma / np.sqrt(nsamples))


def var_check(generator: Generator, sigma: float, nsamples: int = 1000000) -> bool:
    """Return whether the variance of a normal sample is within three standard errors of ``sigma**2``."""
    variance = on_host(generator(nsamples)).var(ddof=1, dtype=np.float64)
    return bool(abs(variance - sigma**2) < 3 * np.sqrt(2 * sigma**4 / (nsamples - 1)))


def chi_square_check(
    generator: Generator, buckets: Sequence[object], probs: Sequence[float], nsamples: int = 1000000
) -> tuple[float, Numbers, Numbers]:
    """Compare the frequencies of random numbers in buckets with their expected frequencies.

    Args:
        generator: returns an array of random numbers.
        buckets: ranges, as pairs in increasing order, or values.
        probs: probabilities of the buckets.
        nsamples: number of samples.

    Returns:
        the p-value of the chi-square test, the counts, and the expected counts.

    Raises:
        ValueError: the numbers of probabilities and buckets differ.
    """
    if len(buckets) != len(probs):
        raise ValueError(f"chi_square_check: {len(probs)} probs for {len(buckets)} buckets")
    counts = _counts(on_host(generator(nsamples)).ravel(), buckets)
    expected = np.asarray(probs, np.float64) * nsamples
    inside = counts.sum()
    if inside != nsamples:  # count the numbers outside all buckets as another bucket
        counts = np.append(counts, nsamples - inside)
        expected = np.append(expected, max(nsamples - expected.sum(), 1e-6))
    expected *= nsamples / expected.sum()
    distance = float(((counts - expected) ** 2 / expected).sum())
    return _gamma_tail((len(counts) - 1) / 2, distance / 2), counts[: len(buckets)], expected[: len(buckets)]


def _gamma_tail(shape: float, x: float) -> float:
    """Return the upper tail probability of a gamma distribution: one minus its series."""
    if x <= 0:
        return 1.0
    if x > 20 * shape + 200:  # the tail is smaller than the smallest positive double
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
    generator: Generator, buckets: Sequence[object], probs: Sequence[float], nsamples: int = 1000000, nrepeat: int = 5,
    success_rate: float = 0.2, alpha: float = 0.05,
) -> list[float]:  # fmt: skip
    """Repeat :func:`chi_square_check` and return the p-values.

    Args:
        generator: returns an array of random numbers.
        buckets: ranges, as pairs in increasing order, or values.
        probs: probabilities of the buckets.
        nsamples: number of samples per repetition.
        nrepeat: number of repetitions.
        success_rate: required fraction of repetitions with a p-value above ``alpha``.
        alpha: threshold of the p-values.

    Raises:
        AssertionError: too few p-values are above ``alpha``.
    """
    results = [chi_square_check(generator, buckets, probs, nsamples) for _ in range(nrepeat)]
    values = [value for value, _, _ in results]
    if sum(value > alpha for value in values) < nrepeat * success_rate:
        _, counts, expected = results[-1]
        raise AssertionError(
            f"the distribution differs: the p-values are {values}, expected at least {success_rate:.0%} above {alpha}; "
            f"the last counts are {counts.tolist()}, expected {expected.round(1).tolist()} for {buckets}"
        )
    return values
