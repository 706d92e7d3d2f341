"""Arrays, numbers and dtypes as callers of ``mx.np`` give them, and results as its arrays."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from flowmx import devices
from flowmx.ndarray import core
from flowmx.ndarray.core import BaseArray
from flowmx.ops.registry.dtypes import BY_NAME, DType, as_dtype
from flowmx.semantics import default_float, semantics

__all__ = [
    "FLOATS",
    "array_class",
    "arrays_of",
    "default_complex",
    "dressed",
    "face",
    "from_host",
    "given_dtype",
    "wrap",
]

FLOATS = frozenset(np.dtype(each) for each in (np.float16, np.float32, np.float64))
"""The dtypes for which operators of the registry stand in for NumPy's functions."""
_COMPLEX = {np.dtype(np.complex64), np.dtype(np.complex128)}
_DTYPES = frozenset((*BY_NAME.values(), *_COMPLEX))


@cache
def array_class() -> type[Any]:
    """The class of the arrays of ``mx.np``."""
    from flowmx.numpy.arrays import ndarray

    return ndarray


def face(found: Any) -> Any:
    """Results of the engine as arrays of ``mx.np``, which they are already where the first input was one."""
    cls = array_class()
    for each in found if isinstance(found, (list, tuple)) else (found,):
        if each.__class__ is not cls:
            each.__class__ = cls
    return found


def dressed(found: Any) -> Any:
    """New arrays of ``mx.nd`` as arrays of ``mx.np``, wherever lists, tuples and dicts hold them."""
    if isinstance(found, BaseArray):
        return face(found)
    if isinstance(found, (list, tuple)):
        return type(found)([dressed(each) for each in found])
    return {key: dressed(each) for key, each in found.items()} if isinstance(found, dict) else found


def given_dtype(value: Any) -> DType | None:
    """A dtype as a caller gives it: by name, type or number; None stays None. Complex ones are dtypes too.

    Raises:
        TypeInferenceError: there is no such dtype.
    """
    if value is None or (value.__class__ is str and value in BY_NAME):
        return None if value is None else BY_NAME[value]
    if isinstance(value, np.dtype) and value in _DTYPES:
        return value
    if value in ("complex64", "complex128") or value.__class__ is np.dtype or isinstance(value, type):
        try:
            made: DType = np.dtype(value)
        except TypeError:
            return as_dtype(value)
        if made in _COMPLEX:
            return made
    return as_dtype(value)


def default_complex() -> DType:
    """The dtype of complex numbers that were given none."""
    return np.dtype(np.complex128 if semantics.get().dtype else np.complex64)


def wrap(content: Any, context: devices.Context | None = None) -> Any:
    """An array of ``mx.np`` that holds an array of the host's, which nobody else uses."""
    from flowmx.ndarray.array import copy_into, on_context

    device = on_context(context)
    content = np.ascontiguousarray(content).reshape(np.shape(content))
    made = core.allocate(device, content.shape, content.dtype, None, array_class())
    if not device.is_asynchronous:
        made._storage.array = content
        return made
    copy_into(core.allocate(devices.get(devices.cpu()), content.shape, content.dtype, content), made)
    return made


def from_host(value: Any, context: devices.Context | None = None) -> Any:
    """An array of numbers, lists of them, or a NumPy array, in the dtype that they have by ``mx.np``'s rules.

    Raises:
        TypeError: they are no numbers.
    """
    made = np.array(value)
    if not isinstance(value, (np.ndarray, np.generic)):
        if made.dtype == np.float64:
            made = made.astype(default_float())
        elif made.dtype == np.complex128:
            made = made.astype(default_complex())
    if made.dtype not in BY_NAME.values() and made.dtype not in _COMPLEX:
        raise TypeError(
            f"expected numbers, or lists of them all of one length, got {type(value).__name__} {value!r}"[:300]
        )
    return wrap(made, context)


def arrays_of(value: Any) -> list[BaseArray]:
    """All arrays of ours in an argument, or in lists of them."""
    if isinstance(value, BaseArray):
        return [value]
    if isinstance(value, (list, tuple)):
        return [found for each in value for found in arrays_of(each)]
    if isinstance(value, dict):
        return [found for each in value.values() for found in arrays_of(each)]
    return []
