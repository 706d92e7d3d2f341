"""Names of PyTorch's and Keras' interfaces, and their equivalents in flowmx, for the messages of AttributeErrors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from flowmx.foreign_names.arguments import argument_advice, call_advice
from flowmx.foreign_names.metrics import METRIC_OBJECTS
from flowmx.foreign_names.modules import MODULES
from flowmx.foreign_names.objects import ARRAYS, BLOCKS, MODULE_OBJECTS, PARAMETERS, TRAINERS

__all__ = [
    "ARRAYS", "BLOCKS", "METRIC_OBJECTS", "MODULES", "MODULE_OBJECTS", "PARAMETERS", "TRAINERS", "advice",
    "argument_advice", "call_advice", "raise_missing",
]  # fmt: skip


def advice(table: Mapping[str, str], name: str) -> str:
    """Return the end of a message, ``": use x.reshape(shape)"``, or "" for other names."""
    return f": use {table[name]}" if name in table else ""


def raise_missing(owner: object, name: str, table: Mapping[str, str]) -> NoReturn:
    """Raise the AttributeError of an attribute that an object lacks; for its ``__getattr__``.

    Raises:
        AttributeError: always; if a property of the class has failed with one, that of the property.
    """
    if hasattr(type(owner), name):
        object.__getattribute__(owner, name)  # a property, which raises its own error again
    text = f"{type(owner).__name__!r} object has no attribute {name!r}"
    if name in table:
        raise AttributeError(f"{text}{advice(table, name)}", name=name)
    raise AttributeError(text, name=name, obj=owner)
