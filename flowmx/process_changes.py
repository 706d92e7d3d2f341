"""Temporary changes of process-wide state, such as a pause of the garbage collector.

The thread that makes a change undoes it. The child of a fork has only the forking thread, so it undoes the changes of
all other threads when it starts.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident

from flowmx import process_hooks

__all__ = ["collector_paused", "temporary_change"]

_changes: dict[object, tuple[int, Callable[[], object]]] = {}
"""The threads of changes, and the functions that undo them."""
_pauses: dict[object, int] = {}
"""The threads of pauses of the collector."""
_is_paused = False


@contextmanager
def temporary_change(change: Callable[[], object], undo: Callable[[], object]) -> Iterator[None]:
    """Change process-wide state in a ``with`` block, and undo the change at its end."""
    key = object()
    _changes[key] = get_ident(), undo
    try:
        change()
        yield
    finally:
        del _changes[key]
        undo()


@contextmanager
def collector_paused() -> Iterator[None]:
    """Disable garbage collection in a ``with`` block; the last block that ends enables it again."""
    global _is_paused
    key = object()
    try:
        _pauses[key] = get_ident()
        if gc.isenabled():
            gc.disable()
            _is_paused = True
        yield
    finally:
        _pauses.pop(key, None)
        _resume()


def _resume() -> None:
    global _is_paused
    if not _pauses and _is_paused:
        _is_paused = False  # first, because another thread may pause it immediately
        gc.enable()


def _in_child() -> None:
    this_thread = get_ident()
    for key, (thread, undo) in list(_changes.items()):
        if thread != this_thread:
            del _changes[key]
            undo()
    for key, thread in list(_pauses.items()):
        if thread != this_thread:
            del _pauses[key]
    _resume()


process_hooks.at_fork(after_in_child=_in_child)
