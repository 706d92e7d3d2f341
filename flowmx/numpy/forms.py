"""Calls as text: the arguments of a NumPy function, with slots where arrays stand.

An operator's parameters must be texts and numbers, so that it can be interned and written to a file. A form is JSON in
which what JSON does not have is an object of one key: a slot, a tuple, a slice, a dtype, a complex number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowmx.ops.registry.dtypes import dtype_named

__all__ = ["Form", "Slot", "encode"]


class Slot(NamedTuple):
    """The place of an array among the arguments."""

    number: int


def encode(args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    """The text of a call whose arrays are slots.

    Raises:
        TypeError: an argument is something that no text stands for.
    """
    return json.dumps([[_encoded(each) for each in args], {name: _encoded(each) for name, each in kwargs.items()}])


def _encoded(value: Any) -> Any:
    if isinstance(value, Slot):
        return {"array": value.number}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.dtype):
        return {"dtype": value.name}
    if isinstance(value, list):
        return [_encoded(each) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [_encoded(each) for each in value]}
    if isinstance(value, slice):
        return {"slice": [_encoded(each) for each in (value.start, value.stop, value.step)]}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if value is Ellipsis:
        return {"ellipsis": True}
    raise TypeError(f"an argument is {value!r}, which an operation can not keep; expected arrays, numbers and texts")


_DECODE: dict[str, Callable[[Any], Any]] = {
    "array": Slot,
    "dtype": dtype_named,
    "tuple": lambda items: tuple(_decoded(each) for each in items),
    "slice": lambda items: slice(*items),
    "complex": lambda parts: complex(*parts),
    "ellipsis": lambda _: Ellipsis,
}


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        ((kind, content),) = value.items()
        return _DECODE[kind](content)
    return [_decoded(each) for each in value] if isinstance(value, list) else value


class Form:
    """The arguments of a call, to be filled with arrays.

    Attributes:
        args, kwargs: the arguments, with slots.
        flat: for each positional argument that is a slot, its number; None where an argument is no plain slot.
    """

    def __init__(self, text: str) -> None:
        args, kwargs = json.loads(text)
        self.args: list[Any] = [_decoded(each) for each in args]
        self.kwargs: dict[str, Any] = {name: _decoded(each) for name, each in kwargs.items()}
        self.flat = not kwargs and all(isinstance(each, Slot) for each in self.args)

    def fill(self, arrays: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments, with arrays in the slots."""
        if self.flat:
            return list(arrays), self.kwargs
        return [_filled(each, arrays) for each in self.args], {k: _filled(v, arrays) for k, v in self.kwargs.items()}


def _filled(value: Any, arrays: Sequence[Any]) -> Any:
    if isinstance(value, Slot):
        return arrays[value.number]
    if isinstance(value, (list, tuple)):
        return type(value)([_filled(each, arrays) for each in value])
    return value
