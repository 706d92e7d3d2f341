"""``mx.np`` by the letter of the array API standard: what ``__array_namespace__`` answers.

It is ``mx.np``, but that whole numbers that were given no dtype stay whole, where MXNet makes them float32, and that
singular vectors are complete by default.
"""

from __future__ import annotations

import builtins as _builtins  # names of mx.np are put beside: all is one of them
from types import ModuleType as _ModuleType
from typing import Any

import flowmx.numpy as _np
from flowmx.numpy import linalg as _linalg

__all__ = ["arange", "full", "linalg"]


class _Linalg(_ModuleType):
    """``linalg`` of the standard."""

    def svd(self, x: Any, /, *, full_matrices: bool = True) -> Any:
        """The singular value decomposition, with complete singular vectors by default."""
        return _linalg.svd(x, full_matrices)

    def __getattr__(self, name: str) -> Any:
        return getattr(_linalg, name)

    def __dir__(self) -> list[str]:
        return dir(_linalg)


linalg = _Linalg("flowmx.numpy.linalg", _linalg.__doc__)


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """An array that holds one value everywhere, in the dtype of the value if no other is given."""
    if dtype is None and isinstance(fill_value, _builtins.int):
        dtype = "bool" if isinstance(fill_value, _builtins.bool) else "int64"
    return _np.full(shape, fill_value, dtype, device=device)


def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> Any:
    """Numbers from ``start`` (or 0) to ``stop``, which is not among them; int64 where all that is given is whole."""
    if dtype is None and _builtins.all(each is None or isinstance(each, int) for each in (start, stop, step)):
        dtype = "int64"
    return _np.arange(start, stop, step, dtype, device=device)


def __getattr__(name: str) -> Any:
    found = globals()[name] = getattr(_np, name)
    return found


def __dir__() -> list[str]:
    return dir(_np)
