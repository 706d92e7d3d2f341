"""The element types of arrays, by MXNet's names and numbers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from flowmx.errors import TypeInferenceError

try:
    import ml_dtypes
except ImportError:  # bfloat16 is then unknown; everything else works
    _BFLOAT16: list[tuple[str, int, Any]] = []
else:
    _BFLOAT16 = [("bfloat16", 12, ml_dtypes.bfloat16)]

_TABLE: list[tuple[str, int, Any]] = [
    ("float32", 0, np.float32), ("float64", 1, np.float64), ("float16", 2, np.float16), ("uint8", 3, np.uint8),
    ("int32", 4, np.int32), ("int8", 5, np.int8), ("int64", 6, np.int64), ("bool", 7, np.bool_),
    ("int16", 8, np.int16), ("uint16", 9, np.uint16), ("uint32", 10, np.uint32), ("uint64", 11, np.uint64),
    *_BFLOAT16,
]  # fmt: skip

DType = np.dtype[Any]
FLOAT32: DType = np.dtype(np.float32)
BY_NAME: dict[str, DType] = {name: np.dtype(kind) for name, _, kind in _TABLE}
NAMES: dict[DType, str] = {dtype: name for name, dtype in BY_NAME.items()}
FLAGS: dict[DType, int] = {np.dtype(kind): flag for _, flag, kind in _TABLE}
BY_FLAG: dict[int, DType] = {flag: np.dtype(kind) for _, flag, kind in _TABLE}

_cache: dict[Any, DType] = {}


def as_dtype(value: Any) -> DType:
    """The dtype that a name, a NumPy type, a dtype or MXNet's number stands for (None: float32).

    Raises:
        TypeInferenceError: there is no such element type.
    """
    try:
        known = _cache.get(value)
    except TypeError:
        known = None
    if known is not None:
        return known
    dtype = _lookup(value)
    if len(_cache) < 256:
        _cache[value] = dtype
    return dtype


_PLAIN = re.compile(r"[<>|=]?(?:[?bBhHiIlLqQnNpPefdg]|[biuf][0-9]{1,2})|[a-z_]{3,16}[0-9]{0,3}")


def dtype_named(text: str) -> DType:
    """The dtype that NumPy has for a plain name or code, such as ``float32``, ``<f4`` or ``d``.

    NumPy reads more into a text: lists of fields, shapes and repeats, by Python's own parser, with as much memory as
    they ask for. Texts come from files and clients, so none of that is let through.

    Raises:
        TypeError: it is no plain name, or NumPy has no such dtype.
    """
    if not _PLAIN.fullmatch(text):
        raise TypeError(f"{text[:80]!r} is no name of a dtype, expected one such as 'float32'")
    return np.dtype(text)


def _lookup(value: Any) -> DType:
    if value is None:
        return FLOAT32
    if isinstance(value, str) and value in BY_NAME:
        return BY_NAME[value]
    if isinstance(value, int) and not isinstance(value, bool) and value in BY_FLAG:
        return BY_FLAG[value]
    try:
        dtype: DType | None = dtype_named(value) if isinstance(value, str) else np.dtype(value)
    except (TypeError, ValueError):  # the latter of a dtype of fields that can not be
        dtype = None
    if dtype is not None and dtype.names == ("bfloat16",) and "bfloat16" in BY_NAME:  # as MXNet's scripts have it
        return BY_NAME["bfloat16"]
    if dtype is None or dtype not in NAMES:
        hint = "; bfloat16 needs the package ml_dtypes" if value == "bfloat16" else ""
        raise TypeInferenceError(f"dtype is {_short(value)}, expected one of {', '.join(BY_NAME)}{hint}")
    return dtype


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def name_of(dtype: DType) -> str:
    """MXNet's name of a dtype, such as ``float32``."""
    return NAMES[dtype]


def is_floating(dtype: DType) -> bool:
    """True for float16, bfloat16, float32 and float64."""
    return dtype.kind == "f" or NAMES.get(dtype) == "bfloat16"
