"""Reinitialization after a fork, because the child has none of its parent's threads.

Owners of threads register with :func:`in_child`. Locks that threads may hold while another thread forks are created by
:func:`lock`. Hooks in the child must be fast and start no threads, because the child may be about to ``exec``.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from flowmx import process_hooks

__all__ = ["generation", "in_child", "lock"]

T = TypeVar("T")
_generation = 0
_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_restarts: dict[int, tuple[weakref.ref[object], Callable[[Any], None]]] = {}


class _Lock(type(threading.RLock())):  # type: ignore[misc]
    """A re-entrant lock; a copy or a pickle of its owner gets a new lock."""

    def __reduce__(self) -> tuple[Callable[[], threading.RLock], tuple[()]]:
        return lock, ()


def generation() -> int:
    """Return the number of forks between the process that first asked and this one."""
    process_hooks.ensure_installed()
    return _generation


def lock() -> threading.RLock:
    """Return a re-entrant lock that is released in the child of a fork if another thread held it."""
    new: threading.RLock = _Lock()
    _locks.add(new)
    return new


def in_child(owner: T, restart: Callable[[T], None]) -> None:
    """Call ``restart(owner)`` in the child of every fork while the owner is alive.

    Args:
        owner: a weakly referenceable object.
        restart: replaces locks and discards threads; it must not reference the owner.
    """
    process_hooks.ensure_installed()
    key = id(owner)
    _restarts[key] = weakref.ref(owner, lambda _: _restarts.pop(key, None)), restart


def _after_fork_in_child() -> None:
    global _generation
    _generation += 1
    for held_lock in list(_locks):
        if not held_lock._is_owned():  # the forking thread releases its locks itself
            held_lock._at_fork_reinit()
    for reference, restart in list(_restarts.values()):
        owner = reference()
        if owner is not None:
            restart(owner)


process_hooks.at_fork(after_in_child=_after_fork_in_child)
