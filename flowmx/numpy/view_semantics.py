"""Parts of arrays that are views in NumPy: copies here, as in MXNet, or views under ``mx.util.np_views()``.

``x[:, 0]``, ``x.T`` and the results of the functions in :data:`SHARING` (``binding.py``) are new arrays in MXNet, so
writing into them does not change ``x``. Code written for NumPy may expect that it does. Such a copy records the array
that it was copied from (:func:`origin_of`). Writing into it while that array is alive warns (:func:`warn_lost_write`).
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping
from opcode import opname
from types import FrameType
from typing import Any

import numpy as np

from flowmx.engine.origin import warn_user
from flowmx.errors import LostWriteWarning
from flowmx.ndarray import views
from flowmx.ndarray.core import BaseArray, Storage
from flowmx.numpy.binding import SHARING
from flowmx.numpy.operator import as_list, function_of

__all__ = ["SHARING", "mark_copies", "origin_of", "view_of", "warn_lost_in_place", "warn_lost_write"]

_Chain = tuple[weakref.ref[Any], Any] | None
"""The storage that was copied, and the chain of that storage."""
_warned: set[tuple[str, int]] = set()


def origin_of(storage: Storage) -> Any:
    """Return the value of :attr:`Storage.copied_from` for a copy of a storage."""
    before: _Chain = storage.copied_from
    while before is not None and before[0]() is None:  # the array was freed
        before = before[1]
    return weakref.ref(storage), before


def mark_copies(results: object, array: BaseArray) -> None:
    """Record that results are copies that would be views of an array in NumPy."""
    chain = origin_of(array.storage)
    for result in results if isinstance(results, (list, tuple)) else (results,):
        result.storage.copied_from = chain


def warn_lost_write(array: BaseArray) -> None:
    """Warn, once per line, if writing into this array would change another array in NumPy."""
    chain: _Chain = array.storage.copied_from
    while chain is not None and chain[0]() is None:  # a copy of a copy
        chain = chain[1]
    if chain is None:
        return
    warn_user(
        "this writes into a copy: non-contiguous parts and transposes of mx.np arrays are copies, as in MXNet, and not "
        "views, as in NumPy, so the original array does not change; write x[key] = value, use mx.util.np_views() for "
        "NumPy's views, or call copy() if a copy is intended",
        _warned,
        LostWriteWarning,
    )


def warn_lost_in_place(array: BaseArray) -> None:
    """As :func:`warn_lost_write`, for a method such as ``__iadd__`` that a line of user code calls."""
    if array.storage.copied_from is not None and not _is_stored_back(sys._getframe(2)):
        warn_lost_write(array)


def _is_stored_back(frame: FrameType) -> bool:
    """Return whether a frame runs a statement such as ``x[key] += y``, which then stores the result into ``x``."""
    code = frame.f_code.co_code
    for index in range(frame.f_lasti + 2, len(code), 2):
        name = opname[code[index]]
        if name not in ("CACHE", "SWAP", "EXTENDED_ARG"):
            return name in ("STORE_SUBSCR", "STORE_SLICE")
    return False


def view_of(function: str, args: tuple[Any, ...], kwargs: Mapping[str, object]) -> Any:
    """Return the views that a function in :data:`SHARING` returns in NumPy, or None if it copies or raises.

    NumPy computes their offsets and strides: it is called on an array of the same layout in unused memory.
    """
    array, rest = args[0], [arg.tolist() if isinstance(arg, BaseArray) else arg for arg in args[1:]]
    storage = array.storage
    memory: Any = np.empty(storage.shape, storage.dtype).view(np.uint8) if storage.shape else np.empty(1, storage.dtype)
    offset, strides = array.strided_view or (0, views.contiguous_strides(array.dims, array.element_type.itemsize))
    try:
        stand_in: Any = np.ndarray(array.dims, array.element_type, memory, offset, strides)
        parts = function_of(np, function)(stand_in, *rest, **kwargs)
    except (ValueError, TypeError, IndexError):
        return None
    begin = memory.ctypes.data
    results = []
    for part in as_list(parts):
        if part.dtype != array.element_type or not np.may_share_memory(part, memory):
            return None
        results.append(views.make_view(array, part.ctypes.data - begin, part.shape, part.strides))
    return type(parts)(results) if isinstance(parts, (list, tuple)) else results[0]
