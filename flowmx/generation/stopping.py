"""The end of a text: stop strings across the borders of tokens."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["StopStrings"]


class StopStrings:
    """A search for the first of some strings in a text that comes in pieces.

    A piece of text that may be the beginning of a stop string is held back until it is known whether it is.

    Args:
        strings: the strings, none of them empty.

    Attributes:
        is_reached: whether a stop string has been found.

    Raises:
        ValueError: a string is empty.
    """

    def __init__(self, strings: Sequence[str] = ()) -> None:
        if isinstance(strings, str):
            strings = [strings]
        if not all(strings):
            raise ValueError("stop has an empty string, expected texts that end the generation")
        self._strings = strings
        self._longest = max(map(len, strings), default=0)
        self._pending = ""
        self.is_reached = False

    def push(self, text: str) -> str:
        """Add a piece; return the text that is certainly before any stop string."""
        if not self._strings or self.is_reached:
            return "" if self.is_reached else text
        self._pending += text
        ends = [place for each in self._strings if (place := self._pending.find(each)) >= 0]
        if ends:
            self.is_reached = True
            certain, self._pending = self._pending[: min(ends)], ""
            return certain
        count = len(self._pending) - self._held()
        certain, self._pending = self._pending[:count], self._pending[count:]
        return certain

    def flush(self) -> str:
        """Return the text that was held back, at the end of the text."""
        certain, self._pending = self._pending, ""
        return certain

    def _held(self) -> int:
        """Return the length of the longest end of the text that is the beginning of a stop string."""
        for length in range(min(self._longest - 1, len(self._pending)), 0, -1):
            end = self._pending[-length:]
            if any(each.startswith(end) for each in self._strings):
                return length
        return 0
