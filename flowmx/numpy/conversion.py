"""Conversion of arguments to arrays and dtypes, and of results to arrays of ``mx.np``."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from flowmx import devices
from flowmx.late_binding import late
from flowmx.ndarray import core
from flowmx.ndarray.core import BaseArray
from flowmx.ops.registry.dtypes import BY_NAME, DType, as_dtype
from flowmx.semantics import default_float, semantics

__all__ = [
    "FLOATS",
    "array_class",
    "arrays_of",
    "default_complex",
    "from_host",
    "parse_dtype",
    "to_np",
    "to_np_nested",
    "wrap",
]

FLOATS = frozenset(np.dtype(scalar) for scalar in (np.float16, np.float32, np.float64))
"""The dtypes for which operators of the registry replace NumPy's functions."""
_COMPLEX = {np.dtype(np.complex64), np.dtype(np.complex128)}
_DTYPES = frozenset((*BY_NAME.values(), *_COMPLEX))


@cache
def array_class() -> type[Any]:
    """Return the class of the arrays of ``mx.np``."""
    array_type: type[Any] = late("numpy.arrays").ndarray
    return array_type


def to_np(results: object) -> Any:
    """Convert results of the engine to arrays of ``mx.np``, in place. They already are if the first input is one."""
    cls = array_class()
    for result in results if isinstance(results, (list, tuple)) else (results,):
        if result.__class__ is not cls:
            result.__class__ = cls
    return results


def to_np_nested(value: object) -> Any:
    """Convert new arrays of ``mx.nd``, also in lists, tuples and dicts, to arrays of ``mx.np``."""
    if isinstance(value, BaseArray):
        return to_np(value)
    if isinstance(value, (list, tuple)):
        return type(value)([to_np_nested(item) for item in value])
    return {key: to_np_nested(item) for key, item in value.items()} if isinstance(value, dict) else value


def parse_dtype(value: Any) -> DType | None:
    """Return the dtype for a name, type or number, including complex dtypes; None stays None.

    Raises:
        TypeInferenceError: unknown dtype.
    """
    if value is None or (value.__class__ is str and value in BY_NAME):
        return None if value is None else BY_NAME[value]
    if isinstance(value, np.dtype) and value in _DTYPES:
        return value
    if (
        (isinstance(value, str) and value in ("complex64", "complex128"))
        or value.__class__ is np.dtype
        or isinstance(value, type)
    ):
        try:
            dtype: DType = np.dtype(value)
        except TypeError:
            return as_dtype(value)
        if dtype in _COMPLEX:
            return dtype
    return as_dtype(value)


def default_complex() -> DType:
    """Return the default dtype of complex numbers."""
    return np.dtype(np.complex128 if semantics.get().dtype else np.complex64)


def wrap(content: Any, context: devices.Context | None = None) -> BaseArray:
    """Wrap a host array that has no other user as an array of ``mx.np``."""
    from flowmx.ndarray.copies import copy_into
    from flowmx.ndarray.creation import on_context

    device = on_context(context)
    content = np.ascontiguousarray(content).reshape(np.shape(content))
    array = core.allocate(device, content.shape, content.dtype, None, array_class())
    if not device.is_asynchronous:
        array.storage.array = content
        return array
    copy_into(core.allocate(devices.get(devices.cpu()), content.shape, content.dtype, content), array)
    return array


def from_host(value: object, context: devices.Context | None = None) -> Any:
    """Create an array from numbers, lists of numbers, or a NumPy array, with the default dtypes of ``mx.np``.

    Raises:
        TypeError: the value is not numeric.
    """
    content = np.array(value)
    if not isinstance(value, (np.ndarray, np.generic)):
        if content.dtype == np.float64:
            content = content.astype(default_float())
        elif content.dtype == np.complex128:
            content = content.astype(default_complex())
    if content.dtype not in BY_NAME.values() and content.dtype not in _COMPLEX:
        raise TypeError(
            f"expected numbers, or lists of numbers of equal lengths, got {type(value).__name__} {value!r}"[:300]
        )
    return wrap(content, context)


def arrays_of(value: object) -> list[BaseArray]:
    """Return all arrays in an argument, also in lists, tuples and dicts."""
    if isinstance(value, BaseArray):
        return [value]
    if isinstance(value, (list, tuple)):
        return [array for item in value for array in arrays_of(item)]
    if isinstance(value, dict):
        return [array for item in value.values() for array in arrays_of(item)]
    return []
