"""Speculative decoding by prompt lookup: guesses of the next tokens from the sequence itself.

Method: Saxena, Prompt Lookup Decoding, 2023. Texts that repeat parts of their prompt, such as summaries and changed
code, have many correct guesses. The next step verifies them, so that the tokens are those of a generation without
guesses.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["PromptLookup"]

_WINDOW = 4096
"""The number of last tokens in which a repetition is searched."""


class PromptLookup:
    """A search for the tokens that followed the last occurrence of the latest tokens.

    Args:
        count: the maximum number of guesses.
        longest: the length of the longest repetition to search.

    Raises:
        ValueError: a number is not positive.
    """

    def __init__(self, count: int = 4, longest: int = 3) -> None:
        if count < 1 or longest < 1:
            raise ValueError(f"the number of drafts is {count} and the length {longest}, expected 1 or more of both")
        self._count, self._longest = count, longest

    def drafts(self, tokens: Sequence[int]) -> list[int]:
        """Return guesses of the tokens that follow; none if the latest tokens have not occurred before."""
        recent = list(tokens[-_WINDOW:])
        for length in range(min(self._longest, len(recent) - 1), 0, -1):
            end = recent[-length:]
            for start in range(len(recent) - length - 1, -1, -1):
                if recent[start : start + length] == end:
                    return recent[start + length : start + length + self._count]
        return []
