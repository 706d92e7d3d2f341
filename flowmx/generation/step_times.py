"""The times of steps by the number of their tokens, and how many tokens fit into a time. It reads no clock."""

from __future__ import annotations

from flowmx.generation.step_forms import padded

__all__ = ["StepTimes"]

_MAX_RATIO = 4.0
"""A step with a prompt takes at most this many times as long as one without."""
_SHORT = 0.02
"""Seconds that any step may take: a reader does not notice them."""
_MIN_TOKENS = 16
"""The minimum number of tokens of prompts in a step."""
_CHANGE = 1.25
"""The factor by which one measurement changes a time at most, so that a pause of the process does not count."""


class StepTimes:
    """The times of steps, as far as they have been measured."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def record(self, tokens: int, seconds: float) -> None:
        """Record a step.

        Args:
            tokens: the number of its tokens.
            seconds: its time.
        """
        tokens = padded(tokens)
        before = self._seconds.get(tokens, seconds)
        self._seconds[tokens] = min(max(seconds, before / _CHANGE), before * _CHANGE)

    def estimate(self, tokens: int) -> float:
        """Return the estimated time of a step in seconds; 0 if none was measured.

        The time grows with the tokens, but more slowly: that of fewer tokens, in proportion, is an upper bound.
        """
        bounds = [seconds * max(1.0, tokens / count) for count, seconds in self._seconds.items()]
        return min(bounds, default=0.0)

    def prompt_tokens(self, others: int, most: int) -> int:
        """Return how many tokens of prompts may join a step, so that the others do not wait for too long.

        Args:
            others: the number of other tokens in the step.
            most: the maximum.
        """
        if not others:
            return most
        seconds = max(_SHORT, _MAX_RATIO * self.estimate(padded(others)))
        count, tokens = min(_MIN_TOKENS, most), padded(others + 1)
        while count < most and self.estimate(tokens) <= seconds:
            count, tokens = max(count, min(most, tokens - others)), padded(tokens + 1)
        return count
