"""Tests for NaN and infinities, which read each element of an array once."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowmx.ops.registry.dtypes import NAMES, is_floating
from flowmx.ops.registry.operators import Array

_EXPONENTS = {"float16": 0x7C00, "bfloat16": 0x7F80}
"""The bits of the exponent, which are all set in what is not finite; NumPy's own test of 16 bits takes ten times."""

_NO_SIGN = 0x7FFF


def all_finite(xp: Any, array: Array) -> bool:
    """Tell whether no element is NaN or infinite; True for integer arrays."""
    if not is_floating(array.dtype):
        return True
    exponent = _EXPONENTS.get(NAMES[array.dtype])
    if exponent is None or array.size == 0:
        return bool(xp.isfinite(array).all())
    bits = array.view(np.uint16)
    return int((bits & _NO_SIGN).max()) < exponent


def count(xp: Any, array: Array) -> tuple[int, int]:
    """Count the elements that are NaN, and those that are infinite."""
    wide = array.astype(np.float32) if array.dtype.itemsize == 2 else array
    return int(xp.isnan(wide).sum()), int(xp.isinf(wide).sum())
