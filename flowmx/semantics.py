"""NumPy's semantics, on and off: the state behind ``mx.npx.set_np`` and its scopes (``mx.util``).

It belongs to a task, and so to a thread, as in MXNet.
"""

from __future__ import annotations

import importlib
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from flowmx.ops.registry.dtypes import FLOAT32, DType

__all__ = ["OFF", "Semantics", "default_float", "dress", "semantics"]


class Semantics(NamedTuple):
    """NumPy's semantics in a task.

    Attributes:
        shape: arrays without axes or elements are nothing special (here they never are).
        array: Gluon makes arrays of ``mx.np``.
        dtype: what is given no dtype follows NumPy: float64, and int64 of whole numbers.
        views: parts of arrays that do not lie together, and transposes, are views, as in NumPy.
    """

    shape: bool = False
    array: bool = False
    dtype: bool = False
    views: bool = False


OFF = Semantics()
semantics: ContextVar[Semantics] = ContextVar("flowmx_np", default=OFF)
_FLOAT64 = np.dtype(np.float64)


def default_float() -> DType:
    """The dtype of floating numbers that were given none."""
    return _FLOAT64 if semantics.get().dtype else FLOAT32


def dress(array: Any) -> Any:
    """A new array of ``mx.nd``, made one of ``mx.np`` where the task wants that; what holds arrays too."""
    if not semantics.get().array:
        return array
    return importlib.import_module("flowmx.numpy.conversion").dressed(array)  # a higher floor, and imported late
