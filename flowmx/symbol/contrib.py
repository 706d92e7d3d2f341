"""``mx.sym.contrib``: the operators ``_contrib_*`` as functions on symbols."""

from __future__ import annotations

from typing import Any

from flowmx.ops.registry import registered
from flowmx.symbol import functions
from flowmx.symbol.control_flow import cond, foreach, while_loop

__all__ = ["cond", "foreach", "while_loop"]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(functions, f"_contrib_{name}")


def __dir__() -> list[str]:
    return sorted(
        {*__all__, *(name.removeprefix("_contrib_") for name in registered() if name.startswith("_contrib_"))}
    )
