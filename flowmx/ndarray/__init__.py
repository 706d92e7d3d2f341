"""``mx.nd``: arrays, and every operator as a function on them."""

from __future__ import annotations

from typing import Any

from flowmx.engine import waitall, waitall_async
from flowmx.ndarray import arithmetic, contrib, creation, linalg, random
from flowmx.ndarray import functions as op
from flowmx.ndarray.arithmetic import *  # noqa: F403
from flowmx.ndarray.array import NDArray, array, empty, full
from flowmx.ndarray.creation import *  # noqa: F403

__all__ = [
    "NDArray", "array", "contrib", "empty", "full", "linalg", "op", "random", "waitall", "waitall_async",
]  # fmt: skip
__all__ += arithmetic.__all__ + creation.__all__


def __getattr__(name: str) -> Any:
    return getattr(op, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(op)})
