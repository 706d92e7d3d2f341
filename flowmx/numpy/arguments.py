"""Conversion of the arguments that MXNet accepts to those that NumPy accepts."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from flowmx.ndarray.core import BaseArray
from flowmx.numpy import table
from flowmx.numpy.conversion import arrays_of, parse_dtype, wrap
from flowmx.numpy.operator import function_of

__all__ = [
    "INDEXED", "NUMBERS", "SECOND_NAMES", "Arguments", "move_to_positions", "names_of", "normalize", "position_of_out",
    "with_order",
]  # fmt: skip

SECOND_NAMES = {"interpolation": "method"}
"""Keywords of NumPy 1 that MXNet has, and their current names in NumPy."""
NUMBERS = (bool, int, float, np.generic)


class Arguments(NamedTuple):
    """The arguments of a call for NumPy, and its ``out`` array and ``where`` mask."""

    args: Sequence[Any]
    kwargs: dict[str, Any]
    out: Any
    where: Any


def normalize(function: str, args: Sequence[object], kwargs: dict[str, Any]) -> Arguments:
    """Convert the arguments of a call to those that NumPy accepts.

    Raises:
        NotImplementedError: an unsupported memory order.
        TypeInferenceError: an unknown dtype.
    """
    kwargs = {SECOND_NAMES.get(name, name): value for name, value in kwargs.items()}
    if kwargs.pop("order", None) not in (None, "C", "K", "A"):
        raise NotImplementedError(f"{function}: arrays are stored in C order only, so order must be 'C'")
    kwargs.pop("ctx", None)
    args, out = _pop_out(function, args, kwargs)
    where = _mask(kwargs.pop("where", None)) if table.ufunc(function) is not None else None
    if kwargs.get("axis").__class__ is list:  # MXNet allows it
        kwargs["axis"] = tuple(kwargs["axis"])
    if "dtype" in kwargs:
        dtype = parse_dtype(kwargs.pop("dtype"))
        if dtype is not None:
            kwargs["dtype"] = dtype
    if "where" in kwargs:
        kwargs["where"] = _mask(kwargs["where"])
    for change in _CHANGES.get(function, ()):
        args, kwargs = change(args, kwargs)
    return Arguments(args, kwargs, out, where)


def _pop_out(function: str, args: Sequence[object], kwargs: dict[str, Any]) -> tuple[Sequence[Any], Any]:
    """Remove ``out`` from the arguments. Return the positional arguments and ``out``."""
    out = kwargs.pop("out", None)
    ufunc = table.ufunc(function)
    if ufunc is not None and len(args) > ufunc.nin:
        return args[: ufunc.nin], args[ufunc.nin]
    if ufunc is None and (index := position_of_out(function)) < len(args):
        return [*args[:index], None, *args[index + 1 :]] if len(args) > index + 1 else args[:index], args[index]
    if function == "nan_to_num" and (kwargs.pop("copy", True) and (len(args) < 2 or args[1])) is False:
        return args, None if isinstance(args[0], NUMBERS) else args[0]
    return args, out


_Change = Callable[[Sequence[Any], dict[str, Any]], tuple[Sequence[Any], dict[str, Any]]]


def with_order(args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[Sequence[Any], dict[str, Any]]:
    """Convert the order of a norm, which may be a string in MXNet."""

    def number(value: object) -> Any:
        return {"inf": np.inf, "-inf": -np.inf}.get(value, value) if value.__class__ is str else value

    return [number(arg) for arg in args], {name: number(value) for name, value in kwargs.items()}


def _with_axes(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    """Convert a list of axes as second argument to a tuple."""
    is_list = len(args) > 1 and args[1].__class__ is list
    return [args[0], tuple(args[1]), *args[2:]] if is_list else args, kwargs


def _with_positions(args: Sequence[object], kwargs: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    """Convert floating-point positions as second argument, which MXNet allows, to integers."""
    if len(args) > 1 and isinstance(args[1], BaseArray) and args[1].element_type.kind == "f":
        args = [args[0], args[1].astype("int64"), *args[2:]]
    return args, kwargs


def _with_content(args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[Sequence[Any], dict[str, Any]]:
    """Read all arguments except the first, because the shape of the result depends on their content."""
    return [*args[:1], *map(_read_integers, args[1:])], {name: _read_integers(value) for name, value in kwargs.items()}


def _with_condition(args: Sequence[object], kwargs: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    """Convert the condition before two values to a boolean mask."""
    return [_mask(args[0]), *args[1:]] if len(args) == 3 else args, kwargs


def _changes() -> dict[str, list[_Change]]:
    rows: list[tuple[Iterable[str], _Change]] = [
        (["linalg.norm"], with_order),
        (table.names("all any max mean min prod squeeze std sum transpose var"), _with_axes),
        ([*INDEXED, "delete"], _with_positions),
        (table.SHAPE_ARGUMENTS, _with_content),
        (["where"], _with_condition),
    ]
    changes: dict[str, list[_Change]] = {}
    for functions, change in rows:
        for function in functions:
            changes.setdefault(function, []).append(change)
    return changes


INDEXED = ("take", "take_along_axis")
"""Functions whose second argument contains positions."""
_CHANGES = _changes()
"""The conversions of a function's arguments, in order."""


def _mask(where: object) -> Any:
    """Convert a mask of numbers to booleans."""
    if isinstance(where, (list, np.ndarray)):
        return wrap(np.asarray(where, bool))
    return where.astype("bool") if isinstance(where, BaseArray) and where.element_type.kind != "b" else where


def _read_integers(value: object) -> Any:
    """Wait for an array of integers or booleans and return its content; return other values unchanged."""
    if isinstance(value, BaseArray) and value.element_type.kind in "biu":
        return value.tolist()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biu":
        return value.tolist()
    return value


_SCALARS = (int, type(None), bool, str)


def move_to_positions(names: tuple[str, ...], args: tuple[object, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the positional arguments, with array keywords moved to their positions. It changes ``kwargs``."""
    index = len(args)
    if index and (index >= len(names) or kwargs.get(names[index]).__class__ in _SCALARS):
        return args
    positional = list(args)
    while len(positional) < len(names) and names[len(positional)] in kwargs:
        name = names[len(positional)]
        value = kwargs[name]
        if name == "out":  # the destination is not an argument
            break
        if positional and not arrays_of(value) and not isinstance(value, (list, np.ndarray)):
            break
        positional.append(kwargs.pop(name))
    return tuple(positional)


@cache
def position_of_out(function: str) -> int:
    """Return the position of ``out``, or ``sys.maxsize`` if it cannot be positional."""
    names = names_of(function)
    return names.index("out") if "out" in names else sys.maxsize


@cache
def names_of(name: str) -> tuple[str, ...]:
    """Return the names of a NumPy function's positional arguments."""
    function: Any = function_of(np, name)
    if isinstance(function, np.ufunc):
        return ("x",) if function.nin == 1 else tuple(f"x{index + 1}" for index in range(function.nin))
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    )
