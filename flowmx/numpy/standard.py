"""The array API namespace that ``__array_namespace__`` returns.

It is ``mx.np`` with two differences: integers without a dtype become int64 (float32 in MXNet), and ``linalg.svd``
returns full matrices by default.
"""

from __future__ import annotations

import builtins as _builtins  # this module also has the names of mx.np, such as all
from collections.abc import Sequence as _Sequence
from types import ModuleType as _ModuleType
from typing import Any

import numpy.typing as _npt

import flowmx.numpy as _np
from flowmx.numpy import linalg as _linalg

__all__ = ["arange", "full", "linalg"]


class _Linalg(_ModuleType):
    """``linalg`` of the array API standard."""

    def svd(self, x: _npt.ArrayLike, /, *, full_matrices: bool = True) -> Any:
        """Compute the singular value decomposition, with full matrices by default."""
        return _linalg.svd(x, full_matrices)

    def __getattr__(self, name: str) -> Any:
        return getattr(_linalg, name)

    def __dir__(self) -> list[str]:
        return dir(_linalg)


linalg = _Linalg("flowmx.numpy.linalg", _linalg.__doc__)


def full(shape: int | _Sequence[int], fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Create an array filled with one value, by default in the dtype of the value."""
    if dtype is None and isinstance(fill_value, _builtins.int):
        dtype = "bool" if isinstance(fill_value, _builtins.bool) else "int64"
    return _np.full(shape, fill_value, dtype, device=device)


def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> Any:
    """Return numbers from ``start`` (or 0) up to, excluding, ``stop``; int64 if all arguments are integers."""
    if dtype is None and _builtins.all(arg is None or isinstance(arg, int) for arg in (start, stop, step)):
        dtype = "int64"
    return _np.arange(start, stop, step, dtype, device=device)


def __getattr__(name: str) -> Any:
    value = globals()[name] = getattr(_np, name)
    return value


def __dir__() -> list[str]:
    return dir(_np)
