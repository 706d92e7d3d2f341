"""`IntervalSampler`: every n-th sample."""

from __future__ import annotations

from collections.abc import Iterator

from flowmx.gluon.data.sampler import SequentialSampler

__all__ = ["IntervalSampler"]


class IntervalSampler(SequentialSampler):
    """Every ``interval``-th number from 0 to ``length``, then the same from 1, from 2 and so on.

    Args:
        length: the number of indices.
        interval: the step from one number to the next.
        rollover: visit the skipped numbers afterwards; otherwise drop them (``len`` still counts them, as in MXNet).

    Raises:
        ValueError: the interval exceeds ``length``.

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
        return (index for start in starts for index in range(start, self._length, self._interval))
