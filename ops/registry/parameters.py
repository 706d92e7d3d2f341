"""Typed parameters of operators: conversion from Python values and to and from the strings of MXNet's JSON.

A parameter is a class attribute of its operator; its annotation is the type::

    num_hidden: int = required("Number of hidden nodes.", low=1)
    kernel: Shape = ()
    act_type: Literal["relu", "sigmoid"] = required("The function.")
"""

from __future__ import annotations

import ast
import re
import sys
import types
import typing
from typing import Any, Literal, NamedTuple

import numpy as np

from flowmx import forks
from flowmx.errors import ParameterError
from flowmx.ops.registry.dtypes import DType, as_dtype, dtype_hint, name_of

Shape = tuple[int, ...]
MISSING: Any = type("MISSING", (), {"__repr__": lambda self: "MISSING"})()
"""The default of a required parameter."""
_MAX_TEXT = 1 << 14
"""Maximum length in characters of a text for Python's parser, which takes 500 bytes per character."""
_MAX_VALUE_TEXT = 200
"""Maximum length in characters of an invalid value in a message."""
_parsing = forks.lock()
"""Held around Python's parser: until 3.13 it may raise SystemError if two threads use it at once."""


class Declaration(NamedTuple):
    """The declaration of a parameter in an operator's class body."""

    default: Any
    doc: str = ""
    low: float | None = None
    high: float | None = None


def required(doc: str = "", low: float | None = None, high: float | None = None) -> Any:
    """Declare a required parameter."""
    return Declaration(MISSING, doc, low, high)


def option(default: Any, doc: str = "", low: float | None = None, high: float | None = None) -> Any:
    """Declare a parameter with a default."""
    return Declaration(default, doc, low, high)


class Parameter(NamedTuple):
    """One parameter of an operator: its type, default, range and documentation."""

    name: str
    kind: Any
    optional: bool
    default: Any
    doc: str
    low: float | None
    high: float | None

    @property
    def required(self) -> bool:
        """Whether the parameter has no default."""
        return self.default is MISSING

    @property
    def choices(self) -> tuple[object, ...]:
        """The allowed values of an enumerated parameter, otherwise empty."""
        return typing.get_args(self.kind) if typing.get_origin(self.kind) is Literal else ()

    def describe(self) -> str:
        """Return the parameter's type and range as text, for messages and documentation."""
        if self.choices:
            text = "one of " + ", ".join(repr(choice) for choice in self.choices)
        else:
            text = _WORDS.get(self.kind, str(self.kind))
        if self.low is not None and self.high is not None:
            text += f" from {self.low} to {self.high}"
        elif self.low is not None:
            text += f" of at least {self.low}"
        elif self.high is not None:
            text += f" of at most {self.high}"
        return text + (" or None" if self.optional else "")

    def convert(self, value: Any, operator: str) -> Any:
        """Convert a Python value or MXNet's string to the parameter's type.

        Raises:
            ParameterError: the value is invalid; the message names operator and parameter.
        """
        if type(value) is float is self.kind and self.low is None and self.high is None:
            return value
        if self.optional and (value is None or (isinstance(value, str) and value in ("None", ""))):
            return None
        try:
            converted = self.choice(value) if self.choices else _CONVERT[self.kind](value)
            if self.low is not None and not _is_at_least(converted, self.low):
                raise ValueError
            if self.high is not None and not converted <= self.high:
                raise ValueError
        except (ValueError, TypeError, SyntaxError, KeyError, OverflowError):
            raise ParameterError(
                f"{operator}: parameter {self.name} is {_shorten(value)}, expected {self.describe()}"
                + (dtype_hint(value) if self.kind is DType else "")
            ) from None
        return converted

    def choice(self, value: Any) -> Any:
        """Return the choice that equals a value, or has the same text."""
        for choice in self.choices:
            if value == choice or str(value) == str(choice):
                return choice
        raise ValueError(value)

    def render(self, value: Any) -> str:
        """Return the value as text in MXNet's JSON."""
        if isinstance(value, np.dtype):
            return name_of(value)
        return str(value)


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_VALUE_TEXT else f"{text[:_MAX_VALUE_TEXT]}... ({len(text)} characters)"


def _is_at_least(value: Any, low: float) -> bool:
    return all(item >= low for item in value) if isinstance(value, tuple) else bool(value >= low)


def _to_int(value: Any) -> int:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        return int(value == "True") if value in ("True", "False") else int(value.rstrip("lL"))
    number = int(value)
    if number != value:
        raise ValueError(value)
    return number


def _to_bool(value: Any) -> bool:
    if isinstance(value, str):
        return {"true": True, "1": True, "false": False, "0": False}[value.lower()]
    if isinstance(value, (bool, int, np.bool_)):
        return bool(value)
    raise TypeError(value)


def _to_float(value: Any) -> float:
    if isinstance(value, str) and value in ("True", "False"):
        return float(value == "True")
    return float(value)


def _to_str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


_LONG = re.compile(r"(?<=\d)L(?=\s*[,)\]]|\s*$)")
"""The suffix of an integer of Python 2, outside words."""


def literal(text: str) -> Any:
    """Evaluate a Python literal: numbers, strings and tuples. Integers may end with L, as in files of Python 2.

    Raises:
        ValueError, SyntaxError: the text is not a literal, or is too long.
    """
    if len(text) > _MAX_TEXT:
        raise ValueError(f"the text has {len(text)} characters, expected at most {_MAX_TEXT}")
    try:
        with _parsing:
            return ast.literal_eval(_LONG.sub("", text) if "L" in text else text)
    except (MemoryError, RecursionError):
        raise ValueError("the text nests too deeply") from None


def _literal(value: Any) -> Any:
    return literal(value.strip().replace("L", "")) if isinstance(value, str) else value


def _to_shape(value: Any) -> Shape:
    value = _literal(value)
    if isinstance(value, (int, np.integer)):
        return (int(value),)
    return tuple(_to_int(item) for item in value)


def _to_partial_shape(value: Any) -> tuple[int | None, ...]:
    value = _literal(value)
    if value is None or isinstance(value, (int, np.integer)):
        return (None if value is None else int(value),)
    return tuple(None if item is None else _to_int(item) for item in value)


def _to_floats(value: Any) -> tuple[float, ...]:
    value = _literal(value)
    if isinstance(value, (int, float)):
        return (float(value),)
    return tuple(float(item) for item in value)


_CONVERT: dict[Any, Any] = {
    int: _to_int,
    float: _to_float,
    bool: _to_bool,
    str: _to_str,
    Shape: _to_shape,
    tuple[int | None, ...]: _to_partial_shape,
    tuple[float, ...]: _to_floats,
    DType: as_dtype,
}
_WORDS: dict[Any, str] = {
    int: "an int",
    float: "a float",
    bool: "a bool",
    str: "a str",
    Shape: "a tuple of ints",
    tuple[int | None, ...]: "a tuple of ints or Nones",
    tuple[float, ...]: "a tuple of floats",
    DType: "a dtype",
}


_annotations: dict[tuple[str, str], Any] = {}


def _annotation(cls: type, name: str) -> Any:
    """Return the type of a field's declaration (``get_type_hints`` would evaluate all other fields too)."""
    pairs = ((base, base.__annotations__) for base in cls.__mro__)
    owner, annotations = next(pair for pair in pairs if name in pair[1])
    text = annotations[name]
    if not isinstance(text, str):
        return text
    key = (owner.__module__, text)
    if key not in _annotations:
        _annotations[key] = eval(text, vars(sys.modules[owner.__module__]))  # flowmx's source, not the user's
    return _annotations[key]


def declare(cls: type) -> dict[str, Parameter]:
    """Return an operator class's parameters, in the order declared, and set the defaults as class attributes.

    Parameters of declared bases come first. ``dataclass`` would do the same, but takes ten times longer, which matters
    for hundreds of operators at every import.
    """
    table: dict[str, Parameter] = {}
    for base in reversed(cls.__mro__[1:]):
        table |= base.__dict__.get("parameters", {})
    for name, text in cls.__annotations__.items():
        if not str(text).startswith(("ClassVar", "typing.ClassVar")):
            table[name] = _parameter(cls, name)
    return table


def _parameter(cls: type, name: str) -> Parameter:
    kind, optional = _annotation(cls, name), False
    if typing.get_origin(kind) in (types.UnionType, typing.Union) and type(None) in typing.get_args(kind):
        kinds = [arg for arg in typing.get_args(kind) if arg is not type(None)]
        kind, optional = kinds[0], True
    if typing.get_origin(kind) is not Literal and kind not in _CONVERT:
        raise TypeError(f"{cls.__name__}.{name} has the type {kind}, expected one of {list(_CONVERT)}")
    declaration = cls.__dict__.get(name, MISSING)
    if not isinstance(declaration, Declaration):
        declaration = Declaration(declaration)
    if declaration.default is not MISSING:
        setattr(cls, name, declaration.default)
    elif name in cls.__dict__:
        delattr(cls, name)
    return Parameter(name, kind, optional, declaration.default, declaration.doc, declaration.low, declaration.high)
