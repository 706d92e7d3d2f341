"""The functions ``mx.sym.*``, derived from the operator registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowmx.ops.registry import calling
from flowmx.ops.registry.namespaces import derived
from flowmx.ops.registry.operators import lookup
from flowmx.symbol.symbol import Symbol, call

_EXTRA = ("name", "attr")


def function_for(name: str) -> Callable[..., Symbol]:
    """The symbol function of an operator."""
    cls = lookup(name)

    def function(*args: Any, **kwargs: Any) -> Symbol:
        return call(name, args, kwargs)

    calling.dress(function, cls, name, "flowmx.symbol", _EXTRA)
    return function


def op(name: str, /, *args: Any, **kwargs: Any) -> Symbol:
    """Compose the operator of that name."""
    return call(name, args, kwargs)


__getattr__, __dir__ = derived(function_for)
