"""``mx.sym``: symbolic expressions, and every operator as a function on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowmx.symbol import functions as op
from flowmx.symbol.symbol import Group, Symbol, Variable, load, load_json

var = Variable
fromjson = load_json

__all__ = ["Group", "Symbol", "Variable", "fromjson", "load", "load_json", "op", "var"]


if TYPE_CHECKING:
    from flowmx.symbol.functions import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        found = globals()[name] = getattr(op, name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(op)})
