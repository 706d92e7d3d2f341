"""Typed parameters of operators: from Python values, from the strings of MXNet's JSON, and back.

A parameter is a class attribute of its operator, its annotation is the type::

    num_hidden: int = required("Number of hidden nodes.", low=1)
    kernel: Shape = ()
    act_type: Literal["relu", "sigmoid"] = required("The function.")
"""

from __future__ import annotations

import ast
import inspect
import sys
import threading
import types
import typing
from typing import Any, Literal, NamedTuple

import numpy as np

from flowmx.errors import ParameterError
from flowmx.ops.registry.dtypes import DType, as_dtype, name_of

Shape = tuple[int, ...]
MISSING: Any = type("MISSING", (), {"__repr__": lambda self: "MISSING"})()
"""In place of a default where there is none."""
_LONGEST = 1 << 14
"""Characters of a text that Python's parser is given: it takes 500 bytes for each."""
_SHOWN = 200
"""Characters of a wrong value that a message shows."""
_parsing = threading.RLock()
"""Held around Python's parser, which until 3.13 may raise SystemError where two threads are in it."""


class Declared(NamedTuple):
    """The declaration of a parameter in an operator's class body."""

    default: Any
    doc: str = ""
    low: float | None = None
    high: float | None = None


def required(doc: str = "", low: float | None = None, high: float | None = None) -> Any:
    """A parameter that must be given."""
    return Declared(MISSING, doc, low, high)


def option(default: Any, doc: str = "", low: float | None = None, high: float | None = None) -> Any:
    """A parameter with a default."""
    return Declared(default, doc, low, high)


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
        """True when it has no default."""
        return self.default is MISSING

    @property
    def choices(self) -> tuple[Any, ...]:
        """The allowed values of an enumerated parameter, else empty."""
        return typing.get_args(self.kind) if typing.get_origin(self.kind) is Literal else ()

    def describe(self) -> str:
        """The parameter's type and range as text, for messages and documentation."""
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
        """The value in its own type, from a Python value or MXNet's string.

        Raises:
            ParameterError: it does not fit; the message names operator and parameter.
        """
        if self.optional and (value is None or value == "None" or value == ""):
            return None
        try:
            converted = self.choice(value) if self.choices else _CONVERT[self.kind](value)
            if self.low is not None and not _at_least(converted, self.low):
                raise ValueError
            if self.high is not None and not converted <= self.high:
                raise ValueError
        except (ValueError, TypeError, SyntaxError, KeyError, OverflowError):
            raise ParameterError(
                f"{operator}: parameter {self.name} is {_short(value)}, expected {self.describe()}"
            ) from None
        return converted

    def choice(self, value: Any) -> Any:
        """The one of the choices that a value stands for."""
        for allowed in self.choices:
            if value == allowed or str(value) == str(allowed):
                return allowed
        raise ValueError(value)

    def render(self, value: Any) -> str:
        """The value as MXNet's JSON writes it."""
        if isinstance(value, np.dtype):
            return name_of(value)
        return str(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


def _at_least(value: Any, low: float) -> bool:
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


def literal(text: str) -> Any:
    """The numbers, texts and tuples that a text of Python stands for.

    Raises:
        ValueError, SyntaxError: it is no such text, or a longer one than is read.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"the text has {len(text)} characters, expected at most {_LONGEST}")
    try:
        with _parsing:
            return ast.literal_eval(text)
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
    """The type that a field was declared with (``get_type_hints`` would evaluate all the others too)."""
    own = ((each, inspect.get_annotations(each)) for each in cls.__mro__)
    declared, annotations = next(pair for pair in own if name in pair[1])
    text = annotations[name]
    if not isinstance(text, str):
        return text
    key = (declared.__module__, text)
    if key not in _annotations:
        _annotations[key] = eval(text, vars(sys.modules[declared.__module__]))  # our own source, not a user's
    return _annotations[key]


def declare(cls: type) -> dict[str, Parameter]:
    """The table of an operator class's parameters, in the order declared; sets the defaults as class attributes.

    Those of a base count where the base was declared too. (What ``dataclass`` would do, at a tenth of its time,
    which matters for hundreds of operators at every import.)
    """
    table: dict[str, Parameter] = {}
    for base in reversed(cls.__mro__[1:]):
        table |= base.__dict__.get("parameters", {})
    for name, text in inspect.get_annotations(cls).items():
        if not str(text).startswith(("ClassVar", "typing.ClassVar")):
            table[name] = _parameter(cls, name)
    return table


def _parameter(cls: type, name: str) -> Parameter:
    kind, optional = _annotation(cls, name), False
    if typing.get_origin(kind) in (types.UnionType, typing.Union) and type(None) in typing.get_args(kind):
        rest = [arg for arg in typing.get_args(kind) if arg is not type(None)]
        kind, optional = rest[0], True
    if typing.get_origin(kind) is not Literal and kind not in _CONVERT:
        raise TypeError(f"{cls.__name__}.{name} has the type {kind}, expected one of {list(_CONVERT)}")
    declared = cls.__dict__.get(name, MISSING)
    if not isinstance(declared, Declared):
        declared = Declared(declared)
    if declared.default is not MISSING:
        setattr(cls, name, declared.default)
    elif name in cls.__dict__:
        delattr(cls, name)
    return Parameter(name, kind, optional, declared.default, declared.doc, declared.low, declared.high)
