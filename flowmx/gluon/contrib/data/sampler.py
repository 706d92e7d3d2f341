"""`IntervalSampler`: every so many samples."""

from __future__ import annotations

from collections.abc import Iterator

from flowmx.gluon.data.sampler import SequentialSampler

__all__ = ["IntervalSampler"]


class IntervalSampler(SequentialSampler):
    """Every ``interval``-th number from 0 to ``length``, then those after them, until all were there.

    Args:
        length: the number of indices.
        interval: the step from one to the next.
        rollover: go back for those that were skipped; otherwise they are left out (and yet count for its length, as
            they do in MXNet).

    Raises:
        ValueError: the interval is longer than all.

    Example:
        >>> list(IntervalSampler(13, interval=3))
        [0, 3, 6, 9, 12, 1, 4, 7, 10, 2, 5, 8, 11]
    """

    def __init__(self, length: int, interval: int, rollover: bool = True) -> None:
        if not 1 <= interval <= length:
            raise ValueError(f"IntervalSampler: interval is {interval}, expected 1 to length, which is {length}")
        super().__init__(length)
        self._interval = interval
        self._rollover = rollover

    def __iter__(self) -> Iterator[int]:
        starts = range(self._interval if self._rollover else 1)
        return (each for start in starts for each in range(start, self._length, self._interval))
