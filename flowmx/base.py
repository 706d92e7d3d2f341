"""``mx.base``: the errors and the tuples of types that MXNet's scripts take from there."""

from __future__ import annotations

import numpy as np

from flowmx.errors import MXNetError, NotImplementedForSymbol

__all__ = [
    "MXNetError", "NotImplementedForSymbol", "integer_types", "mx_real_t", "numeric_types", "string_types",
]  # fmt: skip

integer_types = (int, np.integer)
numeric_types = (float, int, np.generic)
string_types = (str,)
mx_real_t = np.float32
"""The dtype of arrays that are made without saying which."""
