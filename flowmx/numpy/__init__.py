"""``mx.np``: NumPy on the engine. Each name is served as ``table.py`` says, and made when it is first asked for."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as _numpy

from flowmx.numpy import table as _table
from flowmx.numpy.arrays import ndarray  # noqa: F401
from flowmx.numpy.functions import call_of, finder, host_of, waiting_of

__array_api_version__ = "2024.12"

_MODULES = ("_internal", "fft", "linalg", "random")


def _constant(name: str) -> Any:
    return _table.CONSTANTS[name]


def _dtype(name: str) -> Any:
    return _numpy.bool_ if name in ("bool", "bool_") else getattr(_numpy, name)


def _module(name: str) -> Any:
    return importlib.import_module(f"flowmx.numpy.{name}")


_KINDS = {
    "calls": (frozenset(_table.CALLS | {*_table.RENAMED}), call_of),
    "waiting": (_table.WAITING, waiting_of),
    "host": (_table.HOST, host_of),
    "constants": (frozenset(_table.CONSTANTS), _constant),
    "dtypes": (_table.DTYPES, _dtype),
    "modules": (frozenset(_MODULES), _module),
}
_find = finder(__name__, _KINDS)


def __getattr__(name: str) -> Any:
    found = globals()[name] = _find(name)
    return found


__all__ = sorted(
    {
        "ndarray",
        *(each for names in _table.WRITTEN.values() for each in names),
        *(each for names, _ in _KINDS.values() for each in names),
    }
)


def __dir__() -> list[str]:
    return __all__
