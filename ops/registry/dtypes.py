"""Element types of arrays, by MXNet's names and numbers."""

from __future__ import annotations

import re
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from flowmx.devices.arrays import DType as DType
from flowmx.errors import TypeInferenceError

try:
    import ml_dtypes
except ImportError:  # without bfloat16, everything else works
    _BFLOAT16: list[tuple[str, int, Any]] = []
else:
    _BFLOAT16 = [("bfloat16", 12, ml_dtypes.bfloat16)]

_TABLE: list[tuple[str, int, Any]] = [
    ("float32", 0, np.float32), ("float64", 1, np.float64), ("float16", 2, np.float16), ("uint8", 3, np.uint8),
    ("int32", 4, np.int32), ("int8", 5, np.int8), ("int64", 6, np.int64), ("bool", 7, np.bool_),
    ("int16", 8, np.int16), ("uint16", 9, np.uint16), ("uint32", 10, np.uint32), ("uint64", 11, np.uint64),
    *_BFLOAT16,
]  # fmt: skip

DTypeLike = npt.DTypeLike | None
"""An element type: a name, a type of Python or NumPy, a dtype, or an array with one; None for the default."""
FLOAT32: DType = np.dtype(np.float32)
BY_NAME: dict[str, DType] = {name: np.dtype(kind) for name, _, kind in _TABLE}
NAMES: dict[DType, str] = {dtype: name for name, dtype in BY_NAME.items()}
FLAGS: dict[DType, int] = {np.dtype(kind): flag for _, flag, kind in _TABLE}
BY_FLAG: dict[int, DType] = {flag: np.dtype(kind) for _, flag, kind in _TABLE}

_cache: dict[object, DType] = {}


def as_dtype(value: DTypeLike) -> DType:
    """Return the dtype for a name, a type of Python or NumPy, a dtype, or an array (None: float32).

    Raises:
        TypeInferenceError: the element type is unknown.
    """
    try:
        cached = _cache.get(value)
    except TypeError:
        cached = None
    if cached is not None:
        return cached
    dtype = _lookup(value)
    if len(_cache) < 256 and isinstance(value, (str, type, np.dtype)):
        _cache[value] = dtype
    return dtype


def dtype_numbered(number: int) -> DType:
    """Return the dtype of MXNet's number, as files have it.

    Raises:
        TypeInferenceError: there is no such number.
    """
    if number not in BY_FLAG:
        raise TypeInferenceError(f"the number of a dtype is {number}, expected one of {', '.join(map(str, BY_FLAG))}")
    return BY_FLAG[number]


_PLAIN = re.compile(r"[<>|=]?(?:[?bBhHiIlLqQnNpPefdg]|[biuf][0-9]{1,2})|[a-z_]{3,16}[0-9]{0,3}")


def dtype_named(text: str) -> DType:
    """Return NumPy's dtype for a plain name or code, such as ``float32``, ``<f4`` or ``d``.

    NumPy also parses lists of fields, shapes and repeats, with Python's parser and unbounded memory. The text may come
    from a file or a client, so only plain names are accepted.

    Raises:
        TypeError: the text is not a plain name, or NumPy has no such dtype.
    """
    if not _PLAIN.fullmatch(text):
        raise TypeError(f"{text[:80]!r} is not the name of a dtype, expected one such as 'float32'")
    return np.dtype(text)


def _lookup(value: DTypeLike) -> DType:
    if value is None:
        return FLOAT32
    if isinstance(value, str) and value in BY_NAME:
        return BY_NAME[value]
    of_array = None if isinstance(value, (str, type, np.dtype)) else getattr(value, "dtype", None)
    if of_array is not None:  # as NumPy and MXNet accept it
        return as_dtype(of_array)
    try:
        dtype: DType | None = dtype_named(value) if isinstance(value, str) else np.dtype(cast("Any", value))
    except (TypeError, ValueError):  # ValueError: an invalid dtype of fields
        dtype = None
    if dtype is not None and dtype.names == ("bfloat16",) and "bfloat16" in BY_NAME:  # how MXNet's scripts spell it
        return BY_NAME["bfloat16"]
    if dtype is None or dtype not in NAMES:
        hint = dtype_hint(value)
        raise TypeInferenceError(f"dtype is {_shorten(value)}, expected one of {', '.join(BY_NAME)}{hint}")
    return dtype


_ELSEWHERE = {"half": "float16", "float": "float32", "double": "float64", "long": "int64", "int": "int32",
              "short": "int16", "boolean": "bool"}  # fmt: skip
"""Dtypes by names of other libraries."""


def dtype_hint(value: object) -> str:
    """Return the end of the message for an invalid dtype, such as ``"; use 'float32'"``, or ""."""
    if isinstance(value, (bool, int, float)):
        dtype = BY_FLAG.get(value) if type(value) is int else None
        if dtype is None:
            return "; a number is no dtype: is it meant for a different argument?"
        return f"; a number is no dtype, and {value} is that of {NAMES[dtype]} in MXNet's files: use {NAMES[dtype]!r}"
    if value == "bfloat16":
        return "; bfloat16 needs the package ml_dtypes"
    library, _, name = str(value).strip("<>'").rpartition(".")
    if not library and str(value).startswith("<dtype: "):  # TensorFlow's
        name = str(value)[len("<dtype: ") :].strip("'>")
    name = _ELSEWHERE.get(name, name)
    return f"; use {name!r}" if name in BY_NAME else ""


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def name_of(dtype: DType) -> str:
    """Return MXNet's name of a dtype, such as ``float32``."""
    return NAMES[dtype]


def is_floating(dtype: DType) -> bool:
    """Return whether a dtype is float16, bfloat16, float32 or float64."""
    return dtype.kind == "f" or NAMES.get(dtype) == "bfloat16"


# -- numbers as elements -----------------------------------------------------------------------------------

_RANGES: dict[DType, tuple[int, int]] = {
    dtype: (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)) for dtype in NAMES if dtype.kind in "iu"
}


def holds(dtype: DType, value: object) -> bool:
    """Return whether a number is an int in the range of an integer dtype."""
    low, high = _RANGES[dtype]
    return isinstance(value, (int, np.integer)) and low <= int(value) <= high


def element(value: object, dtype: DType) -> Any:
    """Return a number as an element of a dtype, converted as C converts a double, with every version of NumPy.

    Integer dtypes truncate and wrap: in uint8, -1 becomes 255 and 300.7 becomes 44. NaN, infinities, and numbers of
    more than 32 bits (64 for int64, uint32 and uint64), convert as the smallest number of that many bits.

    Raises:
        OverflowError: an int is too large for a double.
    """
    if dtype not in _RANGES or holds(dtype, value):
        with np.errstate(over="ignore"):
            return dtype.type(value)
    with np.errstate(invalid="ignore"):
        return _as_double(value).astype(dtype)


def _as_double(value: Any) -> np.float64:
    try:
        return np.float64(value)
    except OverflowError:
        bits = value.bit_length()
        raise OverflowError(f"the number has {bits} bits, expected an int below 2**1024, as a double holds") from None


def elements(source: object, dtype: DType) -> np.ndarray[Any, DType]:
    """Return a new array with the numbers of nested lists or an array; integer dtypes wrap.

    Raises:
        ValueError, TypeError: the source has elements that are not numbers, or rows of different lengths.
        ValueError, OverflowError: the dtype is an integer, and a number is NaN, infinite or has more than 64 bits.
    """
    if dtype.kind in "iu" and not isinstance(source, np.ndarray):
        if _REFUSES:  # most lists fit
            try:
                return np.array(source, dtype=dtype, order="C")
            except OverflowError:
                pass
        source = _as_int64(source)
    if dtype.itemsize > 2:
        return np.array(source, dtype=dtype, order="C")
    with np.errstate(over="ignore"):  # float16 overflows to infinity above 65504
        return np.array(source, dtype=dtype, order="C")


_REFUSES = int(np.__version__.partition(".")[0]) >= 2
"""Whether NumPy raises for integers outside a dtype; earlier versions wrap and warn."""


def _as_int64(source: object) -> Any:
    """Return the integers of nested lists as an int64 array if they fit into 64 bits, else the lists."""
    numbers = np.asarray(source)
    if numbers.dtype.kind in "iu":
        return numbers
    if numbers.dtype.kind == "f" and bool((abs(numbers) < 2.0**63).all()):
        return numbers.astype(np.int64)
    return source
