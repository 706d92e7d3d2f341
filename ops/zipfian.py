"""Candidates for sampled softmax: classes drawn by rank, the frequent ones first."""

from __future__ import annotations

import math
from typing import Any


def candidates(F: Any, true_classes: Any, count: int, range_max: int, **where: Any) -> tuple[Any, Any, Any]:
    """Draw classes c below ``range_max`` with P(c) = log((c + 2)/(c + 1)) / log(range_max + 1).

    Args:
        F: offers every operator as a function, of arrays or of symbols.
        true_classes: other classes whose expected counts are wanted.
        count: how many classes to draw.
        range_max: how many classes there are.
        **where: further arguments of the random operator.

    Returns:
        the classes (count,), int64; how often each true class is expected among them; and each drawn one.
    """
    width = math.log(range_max + 1)
    draws = F.op("_random_uniform", low=0.0, high=width, shape=(count,), dtype="float64", **where)
    drawn = F.op("_mod_scalar", F.Cast(F.exp(draws) - 1.0, dtype="int64"), scalar=range_max)

    def expected(classes: Any) -> Any:
        ranks = F.Cast(classes, dtype="float64")
        return F.log((ranks + 2.0) / (ranks + 1.0)) * (count / width)

    return drawn, expected(true_classes), expected(drawn)
