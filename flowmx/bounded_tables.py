"""Random eviction from caches of bounded size.

A cache that is cleared when it is full, or that drops its oldest entry, never hits if a program cycles through slightly
more keys than fit. Random eviction keeps most of the entries.
"""

from __future__ import annotations

from random import Random
from typing import Any, TypeVar

__all__ = ["make_room"]

V = TypeVar("V")
_random = Random()  # separate from the module's generator, which belongs to the user
_FRACTION = 8
"""One entry in eight is dropped."""


def make_room(table: dict[Any, V], capacity: int) -> list[V]:
    """Drop a random eighth of the entries if a table is full; return the dropped values.

    Args:
        table: the table; other threads may read and write it meanwhile.
        capacity: the number of entries of a full table.
    """
    if len(table) < capacity:
        return []
    keys = list(table)
    dropped: list[V] = []
    for key in _random.sample(keys, -(-len(keys) // _FRACTION)):
        try:
            dropped.append(table.pop(key))
        except KeyError:  # another thread has dropped it
            continue
    return dropped
