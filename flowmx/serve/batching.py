"""Choice of the rows of the next batch, and of its start time. Pure: no clock, no threads.

A batch is made when the engine is free for it, of what waits then. Rows wait for company only while the engine is
idle, more are expected within the latency budget, and there is room for them: so the budget costs nothing where
requests are rare, and nothing where the engine is busy anyway.

Batches have a few sizes, which are compiled beforehand. The size is the one that gets most rows done in a second,
which is seldom one with much padding: of 33 rows that wait, 32 go and not 64 places with 33 in them. Of sizes that are
about as good the smallest is taken, whose rows are answered first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from flowmx.serve.inputs import Rows, Shape

__all__ = ["Job", "Pace", "Piece", "Queue", "sizes_up_to"]

Key = tuple[Any, tuple[Shape, ...]]
"""Key that all rows of a batch share: the model that computes them, opaque here, and the shapes of a row."""

_AS_GOOD = 0.97
"""The part of the best rate that another size must reach."""
_FORGET = 0.1
"""Weight of the newest interval in the moving average of intervals between rows."""


class Job:
    """A request in the queue.

    Args:
        rows: its input.
        key: rows of one batch have the same.
        arrived: when, in seconds.
        answer: whom to tell; opaque here.
        trace: of which it is a part, if any; opaque here.

    Attributes:
        taken: rows that are in batches already.
        dropped: whether nobody waits for it any more.
        waiting_for: rows that have no result yet.
        results: outputs of pieces, by their first row: batches may end in another order than they began.
    """

    __slots__ = ("answer", "arrived", "dropped", "key", "results", "rows", "taken", "trace", "waiting_for")

    def __init__(self, rows: Rows, key: Key, arrived: float, answer: Any = None, trace: Any = None) -> None:
        self.rows, self.key, self.arrived, self.answer, self.trace = rows, key, arrived, answer, trace
        self.taken = 0
        self.dropped = False
        self.waiting_for = rows.rows
        self.results: dict[int, Any] = {}


class Piece(NamedTuple):
    """Rows of a job that are in one batch: from ``start`` to before ``stop``."""

    job: Job
    start: int
    stop: int


class Queue:
    """Jobs in the order that they came, with at most so many rows."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.rows = 0
        self._jobs: dict[Key, deque[Job]] = {}

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def has_room(self, rows: int) -> bool:
        """Tell whether so many more rows may wait; one request may always wait in an empty queue."""
        return not self.rows or self.rows + rows <= self.limit

    def put(self, job: Job) -> None:
        """Add a job."""
        self._jobs.setdefault(job.key, deque()).append(job)
        self.rows += job.rows.rows

    def first(self) -> Job:
        """The job that has waited longest."""
        return min((jobs[0] for jobs in self._jobs.values()), key=lambda job: job.arrived)

    def waiting(self, key: Key) -> int:
        """Number of waiting rows of a key."""
        return sum(job.rows.rows - job.taken for job in self._jobs.get(key, ()))

    def take(self, key: Key, most: int) -> list[Piece]:
        """Remove at most so many rows of a key, the oldest."""
        jobs, pieces = self._jobs[key], []
        while jobs and most:
            job = jobs[0]
            stop = min(job.rows.rows, job.taken + most)
            pieces.append(Piece(job, job.taken, stop))
            most -= stop - job.taken
            self.rows -= stop - job.taken
            job.taken = stop
            if stop == job.rows.rows:
                jobs.popleft()
        if not jobs:
            del self._jobs[key]
        return pieces

    def drop(self, job: Job) -> int:
        """Remove what of a job has not been taken; returns how many rows that is."""
        left = job.rows.rows - job.taken
        job.dropped = True
        if left:
            jobs = self._jobs[job.key]
            jobs.remove(job)
            if not jobs:
                del self._jobs[job.key]
            self.rows -= left
            job.taken = job.rows.rows
        return left

    def clear(self) -> list[Job]:
        """Remove all jobs, and return them."""
        found = [job for jobs in self._jobs.values() for job in jobs]
        for job in found:
            job.taken = job.rows.rows
        self._jobs, self.rows = {}, 0
        return found


class Pace:
    """Decides when a batch begins, and how large it is.

    Args:
        sizes: that batches may have, increasing.
        max_latency: seconds that a row may wait for company.
    """

    def __init__(self, sizes: Sequence[int], max_latency: float) -> None:
        self.sizes = tuple(sizes)
        self.max_latency = max_latency
        self.seconds: dict[int, float] = {size: float(size) for size in sizes}
        """Duration of a batch of each size, of which only the ratios matter."""
        self.rate = 0.0
        """Rows a second that batches get done."""
        self._interval = float("inf")
        self._latest = float("-inf")
        self._refused = 0.0
        self._refused_at = 0.0

    def arrived(self, now: float, rows: int) -> None:
        """Note that rows came."""
        interval = min(now - self._latest, 2 * self.max_latency) / rows  # a long pause is no more than a pause
        known = self._interval < float("inf")
        self._interval = self._interval + _FORGET * (interval - self._interval) if known else interval
        self._latest = now

    def done(self, rows: int, seconds: float) -> None:
        """Note that a batch was computed."""
        rate = rows / max(seconds, 1e-9)
        self.rate = self.rate + _FORGET * (rate - self.rate) if self.rate else rate

    def begin_at(self, waiting: int, oldest: float, now: float) -> float:
        """The time at which to begin a batch if no more rows come: now, or later.

        Args:
            waiting: rows that could be in it.
            oldest: when the first of them came.
            now: the time.
        """
        end = oldest + self.max_latency
        expected = now < end and self._interval < end - now and now - self._latest < self.max_latency
        return end if expected and waiting < self.sizes[-1] else now

    def size(self, waiting: int) -> int:
        """The size that gets most rows done in a second; of those that are about as good the smallest."""
        rates = {size: min(size, waiting) / self.seconds[size] for size in self.sizes}
        good = _AS_GOOD * max(rates.values())
        return min(size for size, rate in rates.items() if rate >= good)

    def refused(self, now: float, rows: int) -> None:
        """Note that rows were refused, which will come again; of earlier ones half are forgotten in a second."""
        self._refused = self._refused * 0.5 ** (now - self._refused_at) + rows
        self._refused_at = now

    def refused_within(self, seconds: float, now: float) -> bool:
        """Tell whether rows were refused within the last seconds."""
        return self._refused > 0 and now - self._refused_at <= seconds

    def retry_after(self, waiting: int) -> float:
        """Seconds after which what waits, and what was refused lately, could be done."""
        return (waiting + self._refused) / self.rate if self.rate else 1.0


def sizes_up_to(most: int) -> tuple[int, ...]:
    """The powers of two below a number, and the number."""
    sizes = [1 << bit for bit in range(most.bit_length()) if 1 << bit < most]
    return (*sizes, most)
