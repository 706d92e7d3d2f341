"""``mx.nd``: arrays, and every operator as a function on them."""

from __future__ import annotations

from typing import Any

from flowmx.engine import waitall, waitall_async
from flowmx.ndarray import functions as op
from flowmx.ndarray.array import NDArray, array, empty, full

__all__ = ["NDArray", "array", "empty", "full", "op", "waitall", "waitall_async"]


def __getattr__(name: str) -> Any:
    return getattr(op, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(op)})
