"""The functions of ``mx.np`` and its submodules, created from the table at first access."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, cast

import numpy as np

from flowmx.ndarray.core import BaseArray
from flowmx.numpy import calls, conversion, table
from flowmx.numpy.operator import stand_in
from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.semantics import semantics

__all__ = ["make_blocking", "make_call", "make_host"]


def _numpy(name: str) -> Any:
    """Return a NumPy function by name.

    Raises:
        AttributeError: the installed NumPy does not have it.
    """
    try:
        return reduce(getattr, table.NUMPY1_NAMES.get(name, name).split("."), np)
    except AttributeError:
        newer = "; it was added in NumPy 2" if name in table.NUMPY2_NAMES else ""
        raise AttributeError(
            f"mx.np.{name} needs a NumPy function that NumPy {np.__version__} does not have{newer}"
        ) from None


def _describe(function: Any, original: Any, name: str, note: str) -> Callable[..., Any]:
    """Set a function's name, its docstring, and the signature of NumPy's function."""
    function.__name__ = function.__qualname__ = name.rpartition(".")[2]
    function.__module__ = ".".join(("flowmx.numpy", *name.split(".")[:-1]))
    try:
        function.__signature__ = inspect.signature(original)
    except (TypeError, ValueError):
        pass
    function.__doc__ = f"As :obj:`numpy.{name}`. {note}"
    return cast("Callable[..., Any]", function)


def make_call(name: str) -> Callable[..., Any]:
    """Create the function of ``mx.np`` that runs a NumPy function as an operation of the engine."""
    target = table.ALIASES.get(name, name)
    original = _numpy(target)
    count = getattr(original, "nin", 0)
    calls_by_form = calls.Calls(target)
    if table.ufunc(target) is None or original.signature is not None or original.nout != 1:

        def function(*args: Any, **kwargs: object) -> Any:
            return calls_by_form(args, kwargs)

    else:
        floats, others = calls.registered_or_call(target), calls.both_modes(target)
        cls, float_dtypes = conversion.array_class(), conversion.FLOATS

        def function(*args: Any, **kwargs: object) -> Any:
            # Fast path for a call with arrays alone.
            if kwargs or len(args) != count or args[0].__class__ is not cls or args[-1].__class__ is not cls:
                return calls_by_form(args, kwargs)
            dtype = args[0].element_type
            if dtype is args[-1].element_type and (dtype is FLOAT32 or dtype in float_dtypes):
                return floats(*args)
            return others[semantics.get().dtype](*args)

    return _describe(
        function,
        original,
        name,
        "" if target not in table.NOT_DIFFERENTIABLE else "It has no gradient: the backward pass raises an error.",
    )


def make_blocking(name: str) -> Callable[..., Any]:
    """Create the function of ``mx.np`` that runs a NumPy function as an operation of the engine and waits for it."""
    original = _numpy(name)

    def function(*args: object, **kwargs: object) -> Any:
        return calls.call_waiting(name, args, kwargs)

    return _describe(
        function,
        original,
        name,
        "It waits for its arguments, because the shape or type of the result depends on their content.",
    )


def make_host(name: str) -> Callable[..., Any]:
    """Create the function of ``mx.np`` that needs only shapes and dtypes, and returns immediately."""
    original = _numpy(name)

    def placeholder(value: object) -> Any:
        if isinstance(value, BaseArray):
            return stand_in(value.dims, value.element_type)
        return type(value)([placeholder(item) for item in value]) if isinstance(value, (list, tuple)) else value

    def function(*args: object, **kwargs: object) -> Any:
        return original(
            *[placeholder(arg) for arg in args], **{key: placeholder(value) for key, value in kwargs.items()}
        )

    return _describe(function, original, name, "It reads only shapes and dtypes.")


def finder(package: str, kinds: Mapping[str, tuple[frozenset[str], Callable[[str], Any]]]) -> Callable[[str], Any]:
    """Create the ``__getattr__`` of a module of ``mx.np`` from the names of each kind and their factories."""

    def find(name: str) -> Any:
        for names, make in kinds.values():
            if name in names:
                return make(name)
        for module, functions in table.DEFINED_IN.items():
            if package == "flowmx.numpy" and name in functions:
                return getattr(importlib.import_module(f"flowmx.numpy.{module}"), name)
        raise AttributeError(_unknown(package, name, kinds), name=name)  # without an object, Python suggests no name

    return find


_FORMER_ALIASES = {"bool": "bool", "complex": "complex64", "float": "float32", "int": "int32", "object": "float32"}
"""Aliases of Python's types that NumPy 1.24 removed, and dtypes."""


def _unknown(package: str, name: str, kinds: Mapping[str, tuple[frozenset[str], Any]]) -> str:
    from flowmx.suggestions import did_you_mean

    if name in _FORMER_ALIASES:
        return f"module {package!r} has no attribute {name!r}: use {name}, or {_FORMER_ALIASES[name]!r}"
    choices = [choice for names, _ in kinds.values() for choice in names]
    return f"module {package!r} has no attribute {name!r}{did_you_mean(name, choices)}"
