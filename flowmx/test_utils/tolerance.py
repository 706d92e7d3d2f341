"""Tolerances of comparisons by dtype, with MXNet's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowmx.ndarray.array import NDArray
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array

__all__ = [
    "default_atols", "default_dtype", "default_numeric_eps", "default_rtols", "effective_dtype", "get_atol", "get_etol",
    "get_rtol", "get_tolerance", "get_tols",
]  # fmt: skip

Numbers = Array
Tolerance = float | Mapping[Any, float] | None

_EXACT = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
_RELATIVE = {"float16": 1e-2, "bfloat16": 1e-1, "float32": 1e-4, "float64": 1e-5}
_ABSOLUTE = {"float16": 1e-1, "bfloat16": 1e-1, "float32": 1e-3, "float64": 1e-20}
_STEPS = {"float16": 2.0**-6, "float32": 2.0**-9, "float64": 2.0**-14}


def _table(values: Mapping[str, float]) -> dict[DType, float]:
    from ml_dtypes import bfloat16  # registers the name in NumPy

    dtypes = {name: np.dtype(bfloat16 if name == "bfloat16" else name) for name in (*values, *_EXACT)}
    return {dtype: values.get(name, 0.0) for name, dtype in dtypes.items()}


def default_rtols() -> dict[DType, float]:
    """Return the relative tolerances by dtype."""
    return _table(_RELATIVE)


def default_atols() -> dict[DType, float]:
    """Return the absolute tolerances by dtype."""
    return _table(_ABSOLUTE)


def default_numeric_eps() -> dict[DType, float]:
    """Return the steps of finite differences by dtype: powers of two, which are added without rounding."""
    return {np.dtype(name): step for name, step in _STEPS.items()}


def default_dtype() -> type[np.float32]:
    """Return the default dtype of arrays in tests."""
    return np.float32


def effective_dtype(dat: object) -> DType:
    """Return the dtype that determines the tolerance of an array."""
    return np.dtype(dat.dtype) if hasattr(dat, "dtype") else np.asarray(dat).dtype


def get_tolerance(dat: object, tol: Tolerance, default_tol: Mapping[DType, float]) -> float:
    """Return a number unchanged; otherwise look up the array's dtype in ``tol`` or the default table."""
    if isinstance(tol, int | float):
        return tol
    dtype = effective_dtype(dat)
    tolerances = {np.dtype(key): value for key, value in (tol or {}).items()}
    return tolerances.get(dtype, default_tol.get(dtype, 0.0))


def get_tols(x: object, y: object, rtol: Tolerance, atol: Tolerance) -> tuple[float, float]:
    """Return the relative and absolute tolerances for two arrays, the larger of each pair."""
    relative = max(get_tolerance(value, rtol, default_rtols()) for value in (x, y))
    return relative, max(get_tolerance(value, atol, default_atols()) for value in (x, y))


def get_rtol(rtol: float | None = None, dtype: Any = np.float64) -> float:
    """Return ``rtol``, or the relative tolerance of a dtype."""
    return default_rtols()[np.dtype(dtype)] if rtol is None else rtol


def get_atol(atol: float | None = None, dtype: Any = np.float64) -> float:
    """Return ``atol``, or the absolute tolerance of a dtype."""
    return default_atols()[np.dtype(dtype)] if atol is None else atol


def get_etol(etol: float | None = None) -> float:
    """Return ``etol``, the allowed fraction of wrong elements, or 0."""
    return 0.0 if etol is None else etol


def on_host(value: object) -> Numbers:
    """Return an array or a number as a NumPy array."""
    return value.asnumpy() if isinstance(value, NDArray) else np.asarray(value)
