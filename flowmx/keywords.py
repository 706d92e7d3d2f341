"""Checks of keyword arguments: the errors list the arguments, and name those that other libraries call differently."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, NoReturn

from flowmx import process_hooks
from flowmx.foreign_names import argument_advice
from flowmx.suggestions import did_you_mean

__all__ = ["ChecksKeywords", "refuse_unknown"]


def refuse_unknown(cls: type[object], names: Iterable[str]) -> None:
    """Raise TypeError for unknown keyword arguments of a class.

    Args:
        cls: the class.
        names: the names of the unknown arguments.
    """
    if names := list(names):
        _refuse(cls, names, _keywords(base.__dict__.get("__init__") for base in cls.__mro__))


class ChecksKeywords:
    """A class whose objects are created only with keyword arguments that its constructor has.

    Unlike Python's own error, the error lists the arguments, and names the equivalent of another library's argument.
    """

    __slots__ = ()

    if not TYPE_CHECKING:

        def __new__(cls, *args, **kwargs):
            if kwargs and isinstance(cls.__init__, FunctionType):
                _check_keywords(cls, cls.__init__, len(args), kwargs)
            new = super().__new__
            return new(cls) if new is object.__new__ else new(cls, *args, **kwargs)


def _check_keywords(cls: type[object], init: FunctionType, count: int, kwargs: Mapping[str, object]) -> None:
    """Raise TypeError if a constructor has not all of the keyword arguments.

    Arguments that it passes on are checked by the base class, unless a positional argument is missing.
    """
    code = init.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        required = names[count + 1 : code.co_argcount - len(init.__defaults__ or ())]
        if kwargs.keys() >= set(required):
            return
        names = ("self", *_keywords(base.__dict__.get("__init__") for base in cls.__mro__))
    if not kwargs.keys() <= set(names):
        _refuse(cls, [name for name in kwargs if name not in names], names[1:])


def _refuse(cls: type[object], names: Sequence[str], expected: Sequence[str]) -> NoReturn:
    process_hooks.fold_uncaught()
    hint = argument_advice(names, expected) or did_you_mean(names[0], expected).removeprefix("; ")
    shown = ", ".join(map(repr, names))
    raise TypeError(
        f"{cls.__name__} has no argument {shown}, expected some of {', '.join(expected)}{hint and '; '}{hint}"
    )


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _keywords(functions: Iterable[Callable[..., object] | None]) -> list[str]:
    """Return the argument names of methods, except ``self`` and variadic arguments."""
    names: dict[str, None] = {}
    for function in functions:
        if inspect.isfunction(function):
            _, *parameters = inspect.signature(function).parameters.values()
            names.update(dict.fromkeys(parameter.name for parameter in parameters if parameter.kind in _NAMED))
    return list(names)
