"""Parts of arrays that NumPy shares memory with: copies here, as in MXNet, or views, where the task wants NumPy's.

``x[:, 0]``, ``x.T`` and what the functions of :data:`SHARING` (``binding.py``) give are new arrays in MXNet, so that
writing into them leaves ``x`` as it is. Code for NumPy may count on the contrary. Such a copy remembers whose it is
(:func:`whose`), and who writes into it while that is still there is warned (:func:`written`). Under
``mx.util.np_views()`` they are views.
"""

from __future__ import annotations

import sys
import weakref
from opcode import opname
from types import FrameType
from typing import Any

import numpy as np

from flowmx.engine.origin import warn_user
from flowmx.errors import LostWriteWarning
from flowmx.ndarray import views
from flowmx.ndarray.core import BaseArray, Storage
from flowmx.numpy.binding import SHARING
from flowmx.numpy.operator import function_of, results_of

__all__ = ["SHARING", "remember", "view_of", "whose", "written", "written_in_place"]

_Chain = tuple[weakref.ref[Any], Any] | None
"""The storage that a copy was made of, and that one's chain."""
_seen: set[tuple[str, int]] = set()


def whose(storage: Storage) -> Any:
    """The memory that a copy of a storage is a part of, for :attr:`Storage.copied_from`."""
    before: _Chain = storage.copied_from
    while before is not None and before[0]() is None:  # nobody can read that any more
        before = before[1]
    return weakref.ref(storage), before


def remember(made: Any, array: BaseArray) -> None:
    """Note that results are copies where NumPy has views of an array."""
    chain = whose(array._storage)
    for each in made if isinstance(made, (list, tuple)) else (made,):
        each._storage.copied_from = chain


def written(array: BaseArray) -> None:
    """Warn, once a line, where what is written into an array would have reached another one in NumPy."""
    chain: _Chain = array._storage.copied_from
    while chain is not None and chain[0]() is None:  # a copy of a copy writes for the first one, too
        chain = chain[1]
    if chain is None:
        return
    warn_user(
        "this writes into a copy: parts of mx.np arrays that do not lie together, and transposes, are copies, as in "
        "MXNet, where NumPy has views, so the array that this is a part of stays as it was; write x[key] = value, or "
        "run this with mx.util.np_views() where NumPy's views are meant, or copy() the part where a copy is meant",
        _seen,
        LostWriteWarning,
    )


def written_in_place(array: BaseArray) -> None:
    """As :func:`written`, for a method such as ``__iadd__`` that a line of the user's calls."""
    if array._storage.copied_from is not None and not _is_stored_back(sys._getframe(2)):
        written(array)


def _is_stored_back(frame: FrameType) -> bool:
    """Tell whether a frame is in a statement such as ``x[key] += y``, which writes the result into ``x`` next."""
    code = frame.f_code.co_code
    for at in range(frame.f_lasti + 2, len(code), 2):
        name = opname[code[at]]
        if name not in ("CACHE", "SWAP", "EXTENDED_ARG"):
            return name in ("STORE_SUBSCR", "STORE_SLICE")
    return False


def view_of(function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The views that a function of :data:`SHARING` gives in NumPy; None where it would copy, or refuse.

    NumPy tells where they lie: it is called on an array of the same layout in memory that nobody writes or reads.
    """
    array, rest = args[0], [each.tolist() if isinstance(each, BaseArray) else each for each in args[1:]]  # type: ignore[attr-defined]
    storage = array._storage
    memory: Any = np.empty(storage.shape, storage.dtype).view(np.uint8) if storage.shape else np.empty(1, storage.dtype)
    offset, strides = array._view or (0, views.contiguous_strides(array._shape, array._dtype.itemsize))
    try:
        stand_in: Any = np.ndarray(array._shape, array._dtype, memory, offset, strides)
        found = function_of(np, function)(stand_in, *rest, **kwargs)
    except (ValueError, TypeError, IndexError):
        return None
    begin = memory.ctypes.data
    made = []
    for each in results_of(found):
        if each.dtype != array._dtype or not np.may_share_memory(each, memory):
            return None
        made.append(views.make_view(array, each.ctypes.data - begin, each.shape, each.strides))
    return type(found)(made) if isinstance(found, (list, tuple)) else made[0]
