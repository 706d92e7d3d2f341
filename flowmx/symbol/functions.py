"""The functions ``mx.sym.*``, derived from the operator registry."""

from __future__ import annotations

from collections.abc import Callable

from flowmx.ops.registry import calling
from flowmx.ops.registry.namespaces import operator_attributes
from flowmx.ops.registry.operators import lookup
from flowmx.symbol.symbol import Symbol, call

_EXTRA = ("name", "attr")


def function_for(name: str) -> Callable[..., Symbol]:
    """Return the symbol function of an operator."""
    cls = lookup(name)

    def function(*args: object, **kwargs: object) -> Symbol:
        return call(name, args, kwargs)

    calling.set_signature(function, cls, name, "flowmx.symbol", _EXTRA)
    return function


def op(name: str, /, *args: object, **kwargs: object) -> Symbol:
    """Apply the operator with this name."""
    return call(name, args, kwargs)


__getattr__, __dir__ = operator_attributes(function_for)
