"""Python's garbage collector, paused while a graph is compiled.

A compiler makes very many objects that stay. The collector looks through all of them again and again and finds
nothing, which takes as long as the compiling itself.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
        if not gc.get_freeze_count():
            # Everything is old now, as after a collection: without one, and so without looking through all of it.
            gc.freeze()
            gc.unfreeze()
        gc.enable()
