"""Arguments of ``mx.np``'s functions, as MXNet takes them, in the form that NumPy takes."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from flowmx.ndarray.core import BaseArray
from flowmx.numpy import table
from flowmx.numpy.conversion import arrays_of, given_dtype, wrap
from flowmx.numpy.operator import function_of

__all__ = [
    "INDEXED", "NUMBERS", "SECOND_NAMES", "Arguments", "names_of", "normal", "place_of_out", "placed", "with_order",
]  # fmt: skip

SECOND_NAMES = {"interpolation": "method"}
"""Keywords of NumPy 1's that MXNet has, and what NumPy calls them now."""
NUMBERS = (bool, int, float, np.generic)


class Arguments(NamedTuple):
    """The arguments of a call for NumPy, and the array and the mask that say where its result goes."""

    args: Sequence[Any]
    kwargs: dict[str, Any]
    out: Any
    where: Any


def normal(function: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Arguments:
    """The arguments of a call as NumPy takes them.

    Raises:
        NotImplementedError: an order in memory that arrays do not have.
        TypeInferenceError: there is no such dtype.
    """
    kwargs = {SECOND_NAMES.get(name, name): value for name, value in kwargs.items()}
    if kwargs.pop("order", None) not in (None, "C", "K", "A"):
        raise NotImplementedError(f"{function}: arrays are kept in C order alone, so order must be 'C'")
    kwargs.pop("ctx", None)
    args, out = _without_out(function, args, kwargs)
    where = _mask(kwargs.pop("where", None)) if table.ufunc(function) is not None else None
    if kwargs.get("axis").__class__ is list:  # MXNet's may be
        kwargs["axis"] = tuple(kwargs["axis"])
    if "dtype" in kwargs:
        dtype = given_dtype(kwargs.pop("dtype"))
        if dtype is not None:
            kwargs["dtype"] = dtype
    if "where" in kwargs:
        kwargs["where"] = _mask(kwargs["where"])
    for change in _CHANGES.get(function, ()):
        args, kwargs = change(args, kwargs)
    return Arguments(args, kwargs, out, where)


def _without_out(function: str, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Sequence[Any], Any]:
    """The positional arguments without the array that is written, and that array; it is taken out of `kwargs`."""
    out = kwargs.pop("out", None)
    ufunc = table.ufunc(function)
    if ufunc is not None and len(args) > ufunc.nin:
        return args[: ufunc.nin], args[ufunc.nin]
    if ufunc is None and (at := place_of_out(function)) < len(args):
        return [*args[:at], None, *args[at + 1 :]] if len(args) > at + 1 else args[:at], args[at]
    if function == "nan_to_num" and (kwargs.pop("copy", True) and (len(args) < 2 or args[1])) is False:
        return args, None if isinstance(args[0], NUMBERS) else args[0]
    return args, out


_Change = Callable[[Sequence[Any], dict[str, Any]], tuple[Sequence[Any], dict[str, Any]]]


def with_order(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    """The order of a norm, which MXNet takes as text, too."""

    def number(value: Any) -> Any:
        return {"inf": np.inf, "-inf": -np.inf}.get(value, value) if value.__class__ is str else value

    return [number(each) for each in args], {name: number(value) for name, value in kwargs.items()}


def _with_axes(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    """Axes as the second argument, which may be a list."""
    listed = len(args) > 1 and args[1].__class__ is list
    return [args[0], tuple(args[1]), *args[2:]] if listed else args, kwargs


def _with_positions(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    """Positions as the second argument, which are floating numbers where MXNet's are."""
    if len(args) > 1 and isinstance(args[1], BaseArray) and args[1]._dtype.kind == "f":
        args = [args[0], args[1].astype("int64"), *args[2:]]  # type: ignore[attr-defined]
    return args, kwargs


def _with_content(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    """The content of all arguments but the first, on which the result's shape depends."""
    return [*args[:1], *map(_listed, args[1:])], {name: _listed(value) for name, value in kwargs.items()}


def _with_condition(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    """A condition of bools before two values."""
    return [_mask(args[0]), *args[1:]] if len(args) == 3 else args, kwargs


def _changes() -> dict[str, list[_Change]]:
    rows: list[tuple[Iterable[str], _Change]] = [
        (["linalg.norm"], with_order),
        (table.names("all any max mean min prod squeeze std sum transpose var"), _with_axes),
        ([*INDEXED, "delete"], _with_positions),
        (table.SHAPED, _with_content),
        (["where"], _with_condition),
    ]
    made: dict[str, list[_Change]] = {}
    for functions, change in rows:
        for function in functions:
            made.setdefault(function, []).append(change)
    return made


INDEXED = ("take", "take_along_axis")
"""Functions that take positions."""
_CHANGES = _changes()
"""Steps from MXNet's arguments of a function to NumPy's, in their order."""


def _mask(where: Any) -> Any:
    """A mask of truth values, where it was given as numbers."""
    if isinstance(where, (list, np.ndarray)):
        return wrap(np.asarray(where, bool))
    return where.astype("bool") if isinstance(where, BaseArray) and where._dtype.kind != "b" else where  # type: ignore[attr-defined]


def _listed(value: Any) -> Any:
    """The content of an array of whole numbers or truth values, which is waited for; anything else as it is."""
    if isinstance(value, BaseArray) and value._dtype.kind in "biu":
        return value.tolist()  # type: ignore[attr-defined]
    if isinstance(value, np.ndarray) and value.dtype.kind in "biu":
        return value.tolist()
    return value


_NO_ARRAYS = (int, type(None), bool, str)


def placed(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The positional arguments, with arrays that were given by name in their places."""
    at = len(args)
    if at and (at >= len(names) or kwargs.get(names[at]).__class__ in _NO_ARRAYS):
        return args
    given = list(args)
    while len(given) < len(names) and names[len(given)] in kwargs:
        name = names[len(given)]
        value = kwargs[name]
        if name == "out":  # which is written, and no argument
            break
        if given and not arrays_of(value) and not isinstance(value, (list, np.ndarray)):
            break
        given.append(kwargs.pop(name))
    return tuple(given)


@cache
def place_of_out(function: str) -> int:
    """The position at which ``out`` may be given; beyond all positions where there is none."""
    names = names_of(function)
    return names.index("out") if "out" in names else sys.maxsize


@cache
def names_of(name: str) -> tuple[str, ...]:
    """The names of a NumPy function's positional arguments, by which arrays may be given."""
    function: Any = function_of(np, name)
    if isinstance(function, np.ufunc):
        return ("x",) if function.nin == 1 else tuple(f"x{index + 1}" for index in range(function.nin))
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD))
