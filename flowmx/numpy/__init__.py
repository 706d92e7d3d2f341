"""``mx.np``: NumPy on the engine. ``table.py`` lists its names; each function is created at first access."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as _numpy

from flowmx.numpy import table as _table
from flowmx.numpy.arrays import ndarray  # noqa: F401
from flowmx.numpy.functions import finder, make_blocking, make_call, make_host

__array_api_version__ = "2024.12"

_MODULES = ("_internal", "fft", "linalg", "random")


def _constant(name: str) -> Any:
    return _table.CONSTANTS[name]


def _dtype(name: str) -> Any:
    return _numpy.bool_ if name in ("bool", "bool_") else getattr(_numpy, name)


def _module(name: str) -> Any:
    return importlib.import_module(f"flowmx.numpy.{name}")


_KINDS = {
    "calls": (frozenset(_table.CALLS | {*_table.ALIASES}), make_call),
    "waiting": (_table.BLOCKING, make_blocking),
    "host": (_table.METADATA, make_host),
    "constants": (frozenset(_table.CONSTANTS), _constant),
    "dtypes": (_table.DTYPES, _dtype),
    "modules": (frozenset(_MODULES), _module),
}
_find = finder(__name__, _KINDS)


def __getattr__(name: str) -> Any:
    value = globals()[name] = _find(name)
    return value


__all__ = sorted(
    {
        "ndarray",
        *(name for names in _table.DEFINED_IN.values() for name in names),
        *(name for names, _ in _KINDS.values() for name in names),
    }
    - _table.ABSENT
)


def __dir__() -> list[str]:
    return __all__
