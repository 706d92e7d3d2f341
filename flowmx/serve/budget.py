"""Computing time that several predictors share: the engine's time is divided by their weights, and no model starves.

Batches are the unit. When a slot is free, the waiting predictor that has used the least time, divided by its weight,
computes its next batch. A predictor that was idle starts at the current level: idle time gives no credit. This is
start-time fair queueing (Goyal, Vin and Cheng, 1996).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from flowmx import forks, settings

__all__ = ["Budget", "FairShares", "Share"]


class Share:
    """The share of one predictor.

    Args:
        weight: its part of the time, relative to the weights of others.

    Attributes:
        used: seconds that it has used, divided by its weight.
        waiting: number of its threads that wait for a slot.
        running: number of its batches that are being computed.
        typical: duration of its latest batch in seconds.
    """

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.used = self.typical = 0.0
        self.waiting = self.running = 0


class FairShares:
    """The order in which shares get slots. This class uses neither threads nor a clock.

    Args:
        slots: number of batches that are computed at a time.
    """

    def __init__(self, slots: int) -> None:
        self.free = slots
        self._level = 0.0
        self._waiting: dict[Share, None] = {}

    def join(self, share: Share) -> None:
        """Add a thread of a share to those that wait for a slot."""
        if not share.waiting and not share.running:
            share.used = max(share.used, self._level)
        share.waiting += 1
        self._waiting[share] = None

    def next(self) -> Share | None:
        """Return the share that gets the next free slot, or None."""
        if not self.free or not self._waiting:
            return None
        return min(self._waiting, key=lambda share: share.used)

    def begin(self, share: Share) -> None:
        """Give a slot to a share, and charge the expected duration of the batch."""
        share.waiting -= 1
        if not share.waiting:
            del self._waiting[share]
        self.free -= 1
        share.running += 1
        self._level = max(self._level, share.used)
        share.used += share.typical / share.weight

    def end(self, share: Share, seconds: float) -> None:
        """Take back a slot, and charge the duration of the batch instead of the expected one."""
        self.free += 1
        share.running -= 1
        share.used += (seconds - share.typical) / share.weight
        share.typical = seconds


class Budget:
    """Computing time for several predictors.

    Args:
        slots: number of batches that are computed at a time (default: ``FLOWMX_CPU_WORKER_NTHREADS``, as many as the
            engine computes in parallel).

    Raises:
        ValueError: ``slots`` is below 1.

    Example:
        >>> budget = mx.serve.Budget()
        >>> search = mx.serve.Predictor("search/", budget=budget, weight=3)
        >>> report = mx.serve.Predictor("report/", budget=budget)
    """

    def __init__(self, slots: int | None = None) -> None:
        self.slots = settings.get().cpu_worker_nthreads if slots is None else slots
        if self.slots < 1:
            raise ValueError(f"slots is {slots}, expected at least 1 batch at a time")
        self._clear()
        forks.in_child(self, Budget._clear)

    def _clear(self) -> None:
        self._changed = threading.Condition()
        self._shares = FairShares(self.slots)

    def share(self, weight: float = 1.0) -> Share:
        """Return the share of a predictor.

        Raises:
            ValueError: the weight is not a number above 0.
        """
        if not (_is_number(weight) and 0 < weight < math.inf):
            raise ValueError(f"weight is {weight!r}, expected a number above 0, such as 2 for twice the time of others")
        return Share(weight)

    @contextmanager
    def turn(self, share: Share) -> Iterator[None]:
        """Wait for a slot, and hold it within the context."""
        changed, shares = self._changed, self._shares
        with changed:
            shares.join(share)
            changed.wait_for(lambda: shares.next() is share)
            shares.begin(share)
            changed.notify_all()
        start = time.perf_counter()
        try:
            yield
        finally:
            with changed:
                shares.end(share, time.perf_counter() - start)
                changed.notify_all()


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float))
