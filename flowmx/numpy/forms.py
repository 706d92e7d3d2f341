"""Calls as text: the arguments of a NumPy function, with slots in place of arrays.

The parameters of an operator must be strings and numbers, so that it can be interned and saved. An encoded form is
JSON. Values that JSON does not have (slots, tuples, slices, dtypes, complex numbers) are objects with one key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

import numpy as np

from flowmx.ops.registry.dtypes import DType, dtype_named, element

__all__ = ["Form", "Slot", "encode"]

_INT64: DType = np.dtype(np.int64)


class Slot(NamedTuple):
    """The placeholder of an array in the arguments."""

    number: int


def encode(args: Sequence[object], kwargs: Mapping[str, object]) -> str:
    """Encode as text a call in which slots stand for the arrays.

    Raises:
        TypeError: an argument cannot be encoded.
    """
    return json.dumps([[_encode(arg) for arg in args], {name: _encode(value) for name, value in kwargs.items()}])


def _encode(value: object) -> Any:
    if isinstance(value, Slot):
        return {"array": value.number}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.dtype):
        return {"dtype": value.name}
    if isinstance(value, list):
        return [_encode(item) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_encode(item) for item in value]}
    if isinstance(value, slice):
        return {"slice": [_encode(bound) for bound in (value.start, value.stop, value.step)]}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if value is Ellipsis:
        return {"ellipsis": True}
    raise TypeError(f"unsupported argument {value!r}, expected arrays, numbers and strings")


_DECODE: dict[str, Callable[[Any], Any]] = {
    "array": Slot,
    "dtype": dtype_named,
    "tuple": lambda items: tuple(_decode(item) for item in items),
    "slice": lambda items: slice(*items),
    "complex": lambda parts: complex(*parts),
    "ellipsis": lambda _: Ellipsis,
}


def _decode(value: object) -> Any:
    if isinstance(value, dict):
        ((kind, content),) = value.items()
        return _DECODE[kind](content)
    return [_decode(item) for item in value] if isinstance(value, list) else value


class Form:
    """The decoded arguments of a call.

    Attributes:
        args, kwargs: the arguments, with slots.
        flat: whether all arguments are positional slots.
    """

    def __init__(self, text: str) -> None:
        args, kwargs = json.loads(text)
        self.args: list[Any] = [_decode(arg) for arg in args]
        self.kwargs: dict[str, Any] = {name: _decode(value) for name, value in kwargs.items()}
        self.flat = not kwargs and all(isinstance(arg, Slot) for arg in self.args)

    def convert_numbers(self, dtypes: Sequence[DType], places: Sequence[int | str], floats: bool = False) -> Form:
        """Return the call with its numbers converted to the dtype of its arrays, if that is an integer dtype.

        Args:
            dtypes: the dtypes of the arrays.
            places: the arguments to convert, by position or name.
            floats: convert floating-point numbers, too.
        """
        if any(dtype.kind not in "iub" for dtype in dtypes):
            return self
        dtype = np.result_type(*dtypes)
        dtype = _INT64 if dtype.kind == "b" else dtype
        kinds = (int, float) if floats else (int,)
        form = copy(self)
        form.args, form.kwargs = list(self.args), dict(self.kwargs)
        for arguments, index in _places(form, places):
            if arguments[index].__class__ in kinds:
                arguments[index] = element(arguments[index], dtype)
        return form

    def fill(self, arrays: Sequence[object]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments with arrays in the slots."""
        if self.flat:
            return list(arrays), self.kwargs
        return [_fill(arg, arrays) for arg in self.args], {k: _fill(v, arrays) for k, v in self.kwargs.items()}


def _places(form: Form, places: Sequence[int | str]) -> Iterator[tuple[Any, Any]]:
    """For each place that the call has an argument for, yield its list or dict and the key in it."""
    for place in places:
        if isinstance(place, int) and place < len(form.args):
            yield form.args, place
        elif place in form.kwargs:
            yield form.kwargs, place


def _fill(value: object, arrays: Sequence[object]) -> Any:
    if isinstance(value, Slot):
        return arrays[value.number]
    if isinstance(value, (list, tuple)):
        return type(value)([_fill(item, arrays) for item in value])
    return value
