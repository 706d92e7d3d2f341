"""The switches of NumPy semantics behind ``mx.npx.set_np`` and its scopes (``mx.util``).

The state is local to tasks and threads, as in MXNet.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import numpy as np

from flowmx.late_binding import late
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.scopes import Frame

__all__ = ["OFF", "Semantics", "default_float", "semantics", "with_semantics"]


class Semantics(Frame):
    """The NumPy semantics of a task.

    Attributes:
        shape: whether zero-dimensional and empty arrays are supported (flowmx always supports them).
        array: whether Gluon creates ``mx.np`` arrays.
        dtype: whether default dtypes follow NumPy: float64, and int64 for integers.
        views: whether strided slices and transposes are views, as in NumPy.
    """

    fields = ("shape", "array", "dtype", "views")

    def __init__(self, shape: bool = False, array: bool = False, dtype: bool = False, views: bool = False) -> None:
        self.shape, self.array, self.dtype, self.views = shape, array, dtype, views

    def with_changes(self, **change: bool) -> Semantics:
        """Return a copy with some attributes changed."""
        return Semantics(**{name: getattr(self, name) for name in self.fields} | change)


OFF = Semantics()
semantics: ContextVar[Semantics] = ContextVar("flowmx_np", default=OFF)
_FLOAT64 = np.dtype(np.float64)


def default_float() -> DType:
    """Return the default dtype of floating-point arrays."""
    return _FLOAT64 if semantics.get().dtype else FLOAT32


def with_semantics(array: object) -> Any:
    """Convert a new ``mx.nd`` array (or a structure of arrays) to ``mx.np`` if the task uses NumPy semantics."""
    if not semantics.get().array:
        return array
    return late("numpy.conversion").to_np_nested(array)
