"""The reference counts of memory that nothing else refers to, so that it may be reused.

:func:`sys.getrefcount` also counts the references of the calling frames, which differ between versions of CPython. The
count for memory without other references is therefore measured once, by code of the same form.
"""

from __future__ import annotations

import sys


class _Holder:
    """An object with an array in an attribute, like a storage."""

    def __init__(self) -> None:
        self.array: object | None = object()


def _count_held(holder: _Holder) -> int:
    return sys.getrefcount(holder.array)


def _count_taken(holder: _Holder) -> int:
    array, holder.array = holder.array, None
    return sys.getrefcount(array)


REFERENCES_OF_ATTRIBUTE = _count_held(_Holder())
"""``sys.getrefcount(holder.array)`` without other references."""
REFERENCES_OF_LOCAL = _count_taken(_Holder())
"""``sys.getrefcount(array)`` after ``array, holder.array = holder.array, None``, without other references."""
