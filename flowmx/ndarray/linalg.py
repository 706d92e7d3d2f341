"""``mx.nd.linalg``: the operators ``_linalg_*`` as functions on arrays."""

from __future__ import annotations

from typing import Any

from flowmx.ndarray import functions
from flowmx.ops.registry.operators import registered


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(functions, f"_linalg_{name}")


def __dir__() -> list[str]:
    return sorted(name.removeprefix("_linalg_") for name in registered() if name.startswith("_linalg_"))
