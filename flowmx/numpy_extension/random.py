"""``mx.npx.random``: random functions that NumPy does not have."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowmx import random as _classic
from flowmx.numpy import conversion
from flowmx.numpy import random as _random

__all__ = ["bernoulli", "normal_n", "seed", "uniform_n"]


def seed(seed: int, ctx: Any = "all") -> None:
    """Seed the generators of all devices, or of one."""
    _classic.seed(seed, ctx)


def bernoulli(
    prob: object = None,
    logit: object = None,
    size: object = None,
    dtype: object = None,
    ctx: object = None,
    out: object = None,
) -> Any:
    """Draw ones with the probability ``prob`` or the log-odds ``logit``, else zeros.

    Raises:
        ValueError: not exactly one of ``prob`` and ``logit`` was passed.
    """
    if (prob is None) == (logit is None):
        raise ValueError("bernoulli: expected exactly one of prob and logit")
    kind = conversion.parse_dtype(dtype) or np.dtype(np.float32)
    if prob is None:
        return _random._draw("bernoulli_logit", (logit,), size, kind, ctx, out)
    return _random._draw("bernoulli", (prob,), size, kind, ctx, out)


def uniform_n(
    low: object = 0.0, high: object = 1.0, batch_shape: object = None, dtype: object = None, ctx: object = None
) -> Any:
    """Draw uniform numbers: ``batch_shape`` numbers for each element of the parameters. The batch axes come first."""
    return _batch("uniform", low, high, batch_shape, dtype, ctx)


def normal_n(
    loc: object = 0.0, scale: object = 1.0, batch_shape: object = None, dtype: object = None, ctx: object = None
) -> Any:
    """Draw normal numbers: ``batch_shape`` numbers for each element of the parameters. The batch axes come first."""
    return _batch("normal", loc, scale, batch_shape, dtype, ctx)


def _batch(name: str, one: object, other: object, batch_shape: Any, dtype: object, ctx: object) -> Any:
    event = np.broadcast_shapes(*(getattr(parameter, "shape", ()) for parameter in (one, other)))
    batch = () if batch_shape is None else (batch_shape,) if isinstance(batch_shape, int) else tuple(batch_shape)
    return getattr(_random, name)(one, other, (*batch, *event) or None, dtype, ctx)
