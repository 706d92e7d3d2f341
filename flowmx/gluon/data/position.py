"""The position in an epoch. It is a separate object, so that the loader keeps it when a loop ends early."""

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
        sampler: the state of the sampler before the epoch; None if the sampler has no state.
        consumed: the number of batches that the loop had consumed, for a resumed epoch.
    """

    epoch: int
    seed: int
    sampler: Any
    consumed: int

    def state(self, consumed: int, rest: list[list[Any]] | None) -> dict[str, Any]:
        """Return the position after `consumed` batches, as plain data.

        Args:
            consumed: the number of batches since the start of the epoch.
            rest: the samples of the remaining batches; None if they follow from the sampler's state.
        """
        return {"epoch": self.epoch, "seed": self.seed, "sampler": self.sampler, "given": consumed, "rest": rest}


class Position:
    """The current position in an epoch.

    Args:
        start: the starting point.
        batches: the samples of each batch from there on.

    Attributes:
        consumed: the number of batches that the loop has consumed.
        finished: True once the epoch has ended.
    """

    def __init__(self, start: EpochStart, batches: Iterator[list[Any]]) -> None:
        self.start = start
        self.consumed = start.consumed
        self.finished = False
        self._batches = batches
        self._in_flight: deque[list[Any]] = deque()

    def take(self) -> tuple[int, list[Any]] | None:
        """Return the number and the samples of the next batch to make; None at the end."""
        samples = next(self._batches, None)
        if samples is None:
            return None
        self._in_flight.append(samples)
        return self.consumed + len(self._in_flight) - 1, samples

    def advance(self) -> None:
        """Count the next batch as consumed."""
        self._in_flight.popleft()
        self.consumed += 1

    def state(self) -> dict[str, Any]:
        """Return the position as plain data. It lists the remaining samples if the sampler has no state."""
        rest = None
        if self.start.sampler is None:
            remaining = list(self._batches)
            self._batches = iter(remaining)
            rest = [list(batch) for batch in itertools.chain(self._in_flight, remaining)]
        return self.start.state(self.consumed, rest)
