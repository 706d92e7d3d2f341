"""Tracking of a worker's training steps by the keys that it pushes. This module does no I/O."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

__all__ = ["StepTracker"]


class StepTracker:
    """The current step: it ends when one of its keys is pushed again."""

    def __init__(self) -> None:
        self._pushed: set[Hashable] = set()
        self._previous_size = 0

    def is_partial(self, keys: int) -> bool:
        """Return whether some keys have been pushed, but fewer than in the previous step (at first: than `keys`)."""
        return 0 < len(self._pushed) < (self._previous_size or keys)

    def begins(self, keys: Iterable[Hashable]) -> bool:
        """Return whether pushing these keys begins a new step."""
        return not self._pushed.isdisjoint(keys)

    def push(self, keys: Iterable[Hashable]) -> None:
        """Record pushes of keys."""
        if self.begins(keys):
            self._previous_size = len(self._pushed)
            self._pushed.clear()
        self._pushed.update(keys)
