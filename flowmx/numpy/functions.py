"""The functions of ``mx.np`` and its modules, made from the table when they are first asked for."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np

from flowmx.ndarray.core import BaseArray
from flowmx.numpy import calls, conversion, table
from flowmx.numpy.operator import stand_in
from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.semantics import semantics

__all__ = ["call_of", "host_of", "waiting_of"]


def _numpy(name: str) -> Any:
    """A function of NumPy's.

    Raises:
        AttributeError: this NumPy has none of that name.
    """
    try:
        return reduce(getattr, table.FORMER.get(name, name).split("."), np)
    except AttributeError:
        newer = " before NumPy 2" if name in table.NEWER else ""
        raise AttributeError(f"mx.np.{name} is a function of NumPy's, which {np.__version__} lacks{newer}") from None


def _dress(made: Any, original: Any, name: str, how: str) -> Callable[..., Any]:
    """Give a function NumPy's signature, and a docstring of its own."""
    made.__name__ = made.__qualname__ = name.rpartition(".")[2]
    made.__module__ = ".".join(("flowmx.numpy", *name.split(".")[:-1]))
    try:
        made.__signature__ = inspect.signature(original)
    except (TypeError, ValueError):
        pass
    made.__doc__ = f"As :obj:`numpy.{name}`. {how}"
    function: Callable[..., Any] = made
    return function


def call_of(name: str) -> Callable[..., Any]:
    """A function that runs NumPy's as an operation of the engine."""
    served = table.RENAMED.get(name, name)
    original = _numpy(name) if name not in table.RENAMED else _numpy(served)
    count = getattr(original, "nin", 0)
    calls_of = calls.Calls(served)
    if table.ufunc(served) is None or original.signature is not None or original.nout != 1:

        def function(*args: Any, **kwargs: Any) -> Any:
            return calls_of(args, kwargs)

    else:
        floats, others = calls.registered_or_call(served), calls.both_modes(served)
        cls, known = conversion.array_class(), conversion.FLOATS

        def function(*args: Any, **kwargs: Any) -> Any:
            # The usual call, arrays alone, without sorting its arguments.
            if kwargs or len(args) != count or args[0].__class__ is not cls or args[-1].__class__ is not cls:
                return calls_of(args, kwargs)
            dtype = args[0]._dtype
            if dtype is args[-1]._dtype and (dtype is FLOAT32 or dtype in known):
                return floats(*args)
            return others[semantics.get().dtype](*args)

    return _dress(
        function,
        original,
        name,
        "" if served not in table.REFUSED else "It has no gradient: backward passes refuse it.",
    )


def waiting_of(name: str) -> Callable[..., Any]:
    """A function that runs NumPy's as an operation of the engine, and waits for it."""
    original = _numpy(name)

    def function(*args: Any, **kwargs: Any) -> Any:
        return calls.call_waiting(name, args, kwargs)

    return _dress(function, original, name, "It waits for its arguments, since the result's shape or type needs them.")


def host_of(name: str) -> Callable[..., Any]:
    """A function that answers from shapes and dtypes, at once."""
    original = _numpy(name)

    def stood(value: Any) -> Any:
        if isinstance(value, BaseArray):
            return stand_in(value._shape, value._dtype)
        return type(value)([stood(each) for each in value]) if isinstance(value, (list, tuple)) else value

    def function(*args: Any, **kwargs: Any) -> Any:
        return original(*[stood(each) for each in args], **{key: stood(value) for key, value in kwargs.items()})

    return _dress(function, original, name, "It looks at shapes and dtypes alone.")


def finder(package: str, kinds: Mapping[str, tuple[frozenset[str], Callable[[str], Any]]]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module of ``mx.np``, by the names of each kind and the makers of their functions."""

    def find(name: str) -> Any:
        for names, make in kinds.values():
            if name in names:
                return make(name)
        for module, written in table.WRITTEN.items():
            if package == "flowmx.numpy" and name in written:
                return getattr(importlib.import_module(f"flowmx.numpy.{module}"), name)
        raise AttributeError(_unknown(package, name, kinds))

    return find


def _unknown(package: str, name: str, kinds: Mapping[str, tuple[frozenset[str], Any]]) -> str:
    from flowmx.suggestions import did_you_mean

    known = [each for names, _ in kinds.values() for each in names]
    return f"module {package!r} has no attribute {name!r}{did_you_mean(name, known)}"
