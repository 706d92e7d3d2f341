"""Reference counts of an array's memory.

:func:`sys.getrefcount` counts the references of the frames that ask, too, and how many those are differs between
versions of CPython. What it says of memory that nobody else has is therefore asked once, in code of the same form.
"""

from __future__ import annotations

import sys


class _Holder:
    """Something with an array in an attribute, as a storage has one."""

    def __init__(self) -> None:
        self.array: object | None = object()


def _count_held(holder: _Holder) -> int:
    return sys.getrefcount(holder.array)


def _count_taken(holder: _Holder) -> int:
    array, holder.array = holder.array, None
    return sys.getrefcount(array)


HELD = _count_held(_Holder())
"""The count ``sys.getrefcount(holder.array)`` where there is no other reference."""
TAKEN = _count_taken(_Holder())
"""The count ``sys.getrefcount(array)`` after ``array, holder.array = holder.array, None``, without other references."""
