"""Private helpers of ``mxnet.symbol`` that packages import."""

from __future__ import annotations

from flowmx.compat.arrays import (
    _DTYPE_MX_TO_NP,
    _DTYPE_NP_TO_MX,
    _GRAD_REQ_MAP,
    _STORAGE_TYPE_ID_TO_STR,
    _STORAGE_TYPE_STR_TO_ID,
    CachedOp,
)  # fmt: skip
from flowmx.symbol import Symbol

__all__ = [
    "_DTYPE_MX_TO_NP",
    "_DTYPE_NP_TO_MX",
    "_GRAD_REQ_MAP",
    "_STORAGE_TYPE_ID_TO_STR",
    "_STORAGE_TYPE_STR_TO_ID",
    "CachedOp",
    "SymbolBase",
    "_symbol_cls",
]  # fmt: skip

_symbol_cls = SymbolBase = Symbol
