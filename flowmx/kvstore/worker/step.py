"""A worker's place in its step, as the keys show that it pushes. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

__all__ = ["Step"]


class Step:
    """The step under way: it ends where a key of it is pushed again."""

    def __init__(self) -> None:
        self._pushed: set[Hashable] = set()
        self._whole = 0

    def is_partial(self, keys: int) -> bool:
        """Tell whether keys have been pushed, but fewer than in the step before; in the first, than there are keys."""
        return 0 < len(self._pushed) < (self._whole or keys)

    def begins(self, keys: Iterable[Hashable]) -> bool:
        """Tell whether pushing these keys begins a new step."""
        return not self._pushed.isdisjoint(keys)

    def push(self, keys: Iterable[Hashable]) -> None:
        """Note that keys are pushed."""
        if self.begins(keys):
            self._whole = len(self._pushed)
            self._pushed.clear()
        self._pushed.update(keys)
