"""The position in an epoch, kept apart from the loop, so that a loader knows it of a loop that was broken off."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple


class EpochStart(NamedTuple):
    """The starting point of an epoch.

    Attributes:
        epoch: its number.
        seed: the seed of its batches' random numbers.
        sampler: the state of the sampler before it; None where that has none.
        given: batches that were given before, where it is resumed.
    """

    epoch: int
    seed: int
    sampler: Any
    given: int


class Position:
    """The current position in an epoch.

    Args:
        start: where it begins.
        batches: the samples of each batch from there on.

    Attributes:
        given: batches that the loop has got.
        finished: True once the epoch has ended.
    """

    def __init__(self, start: EpochStart, batches: Iterator[list[Any]]) -> None:
        self.start = start
        self.given = start.given
        self.finished = False
        self._batches = batches
        self._in_flight: deque[list[Any]] = deque()

    def take(self) -> tuple[int, list[Any]] | None:
        """The number and the samples of the next batch to make; None where there is none."""
        samples = next(self._batches, None)
        if samples is None:
            return None
        self._in_flight.append(samples)
        return self.given + len(self._in_flight) - 1, samples

    def advance(self) -> None:
        """Count the next batch as given to the loop."""
        self._in_flight.popleft()
        self.given += 1

    def state(self) -> dict[str, Any]:
        """The position as plain data; where the sampler has no state, with the rest of the epoch's samples."""
        rest = None
        if self.start.sampler is None:
            left = list(self._batches)
            self._batches = iter(left)
            rest = [list(batch) for batch in itertools.chain(self._in_flight, left)]
        return {**self.start._asdict(), "given": self.given, "rest": rest}
