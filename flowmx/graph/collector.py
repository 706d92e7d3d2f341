"""Pause Python's garbage collector while a graph is compiled.

A compiler creates very many objects that stay alive. The collector would scan all of them again and again without
freeing any, which takes as long as compiling.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from flowmx.process_changes import collector_paused, temporary_change

_MANY = 10_000
"""The number of new objects that makes a collection worth avoiding."""

_users: list[int] = []
"""The number of objects that the user had frozen when the first were detected.

Counting is slow when there are many, and frozen objects usually stay frozen, so they are counted once.
"""


@contextmanager
def paused() -> Iterator[None]:
    """Pause the collector during a block or, as a decorator, a function. Do nothing if it is already disabled."""
    if not gc.isenabled():
        yield
        return
    with collector_paused():
        try:
            yield
        finally:
            if gc.get_count()[0] > _MANY and not _users and not _user_has_frozen():
                # Make every object old, as a collection would, without the scan.
                with temporary_change(gc.freeze, gc.unfreeze):
                    pass


def _user_has_frozen() -> bool:
    if count := gc.get_freeze_count():
        _users.append(count)
    return count > 0
