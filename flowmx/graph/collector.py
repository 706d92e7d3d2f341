"""Python's garbage collector, paused while a graph is compiled.

A compiler makes very many objects that stay. The collector looks through all of them again and again and finds
nothing, which takes as long as the compiling itself.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_MANY = 10_000
"""New objects from which on a collection is worth avoiding."""

_users: list[int] = []
"""The number of objects that the user had frozen when that was first seen.

To count them takes long where they are many, so that nobody asks again: what is frozen is most often frozen for good.
"""


@contextmanager
def paused() -> Iterator[None]:
    """Pause it for the time of a block or, as a decorator, of a function; nothing where it is off already."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if gc.get_count()[0] > _MANY and not _users and not _user_has_frozen():
            # Everything is old now, as after a collection: without one, and so without looking through all of it.
            gc.freeze()
            gc.unfreeze()
        gc.enable()


def _user_has_frozen() -> bool:
    if count := gc.get_freeze_count():
        _users.append(count)
    return count > 0
