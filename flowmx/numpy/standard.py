"""``mx.np`` by the letter of the array API standard: what ``__array_namespace__`` answers.

It is ``mx.np``, but that whole numbers that were given no dtype stay whole, where MXNet makes them float32.
"""

from __future__ import annotations

import builtins as _builtins  # names of mx.np are put beside: all is one of them
from typing import Any

import flowmx.numpy as _np

__all__ = ["arange"]


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
