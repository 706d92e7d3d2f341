"""The batching policy: the rows of the next batch and its start time. This module reads no clock and uses no threads.

A batch is formed from the queued rows when the engine is free. Rows are delayed for a larger batch only if the engine
is idle, more rows are expected within the latency budget, and the batch has room for them. The budget therefore costs
nothing if requests are rare or if the engine is busy.

Batches have a few sizes, which are compiled in advance. The policy picks the size with the highest throughput, which
rarely has much padding: with 33 rows queued it runs a batch of 32, not one of 64 that is half empty. Among sizes of
similar throughput it picks the smallest, which has the lowest latency.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from flowmx.serve.inputs import Rows, Shape

__all__ = ["Job", "Pace", "Piece", "Queue", "sizes_up_to"]

Key = tuple[Any, tuple[Shape, ...]]
"""The key that all rows of a batch share: the model (opaque here) and the shapes of a row."""

_SIMILAR = 0.97
"""Fraction of the best throughput above which a smaller size is preferred."""
_WEIGHT = 0.1
"""Weight of the newest interval in the moving average of intervals between rows."""


class Job:
    """A request in the queue.

    Args:
        rows: its input.
        key: the batch key.
        arrival: time of arrival in seconds.
        answer: handle for delivering the result; opaque here.
        trace: the trace that it belongs to, if any; opaque here.

    Attributes:
        rows_in_batches: number of rows that are already in batches.
        dropped: whether the caller has stopped waiting.
        waiting_for: number of rows without a result.
        results: outputs of pieces by their first row, because batches may end in any order.
        outputs: the outputs of all rows, once they are complete.
    """

    __slots__ = (
        "answer",
        "arrival",
        "dropped",
        "key",
        "outputs",
        "results",
        "rows",
        "rows_in_batches",
        "trace",
        "waiting_for",
    )

    def __init__(self, rows: Rows, key: Key, arrival: float, answer: Any = None, trace: Any = None) -> None:
        self.rows, self.key, self.arrival, self.answer, self.trace = rows, key, arrival, answer, trace
        self.rows_in_batches = 0
        self.dropped = False
        self.waiting_for = rows.rows
        self.results: dict[int, Any] = {}
        self.outputs: list[Any] = []

    @property
    def row_count(self) -> int:
        """The number of its rows."""
        return self.rows.rows


class Piece(NamedTuple):
    """The rows ``start:stop`` of a job, which are in one batch."""

    job: Job
    start: int
    stop: int


class Queue:
    """Jobs in order of arrival, with a limit on the number of rows.

    Attributes:
        limit: the limit.
        rows: number of queued rows.
        decoding: number of bodies that a hook decodes. Each counts as one row, because its rows are not known yet.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.rows = 0
        self.decoding = 0
        self._jobs: dict[Key, deque[Job]] = {}

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def has_room(self, rows: int) -> bool:
        """Return whether the queue accepts this number of rows. A queue without rows accepts any request."""
        return not self.rows or self.rows + self.decoding + rows <= self.limit

    def has_room_to_decode(self) -> bool:
        """Return whether the queue accepts one more body to decode."""
        return self.rows + self.decoding < self.limit

    def put(self, job: Job) -> None:
        """Add a job."""
        self._jobs.setdefault(job.key, deque()).append(job)
        self.rows += job.rows.rows

    def oldest(self) -> Job:
        """Return the oldest job."""
        return min((jobs[0] for jobs in self._jobs.values()), key=lambda job: job.arrival)

    def waiting(self, key: Key) -> int:
        """Return the number of queued rows of a key."""
        return sum(job.rows.rows - job.rows_in_batches for job in self._jobs.get(key, ()))

    def take(self, key: Key, limit: int) -> list[Piece]:
        """Remove and return the oldest rows of a key, at most ``limit``."""
        jobs, pieces = self._jobs[key], []
        while jobs and limit:
            job = jobs[0]
            stop = min(job.rows.rows, job.rows_in_batches + limit)
            pieces.append(Piece(job, job.rows_in_batches, stop))
            limit -= stop - job.rows_in_batches
            self.rows -= stop - job.rows_in_batches
            job.rows_in_batches = stop
            if stop == job.rows.rows:
                jobs.popleft()
        if not jobs:
            del self._jobs[key]
        return pieces

    def drop(self, job: Job) -> int:
        """Remove the rows of a job that are not in a batch yet; return their number."""
        remaining = job.rows.rows - job.rows_in_batches
        job.dropped = True
        if remaining:
            jobs = self._jobs[job.key]
            jobs.remove(job)
            if not jobs:
                del self._jobs[job.key]
            self.rows -= remaining
            job.rows_in_batches = job.rows.rows
        return remaining

    def clear(self) -> list[Job]:
        """Remove and return all jobs."""
        jobs = [job for queue in self._jobs.values() for job in queue]
        for job in jobs:
            job.rows_in_batches = job.rows.rows
        self._jobs, self.rows = {}, 0
        return jobs


class Pace:
    """Decides the start time and the size of batches.

    Args:
        sizes: the possible sizes of batches, in increasing order.
        max_latency: seconds that a row may be delayed for a larger batch.
    """

    def __init__(self, sizes: Sequence[int], max_latency: float) -> None:
        self.sizes = tuple(sizes)
        self.max_latency = max_latency
        self.seconds: dict[int, float] = {size: float(size) for size in sizes}
        """Duration of a batch by size; only the ratios matter."""
        self.rate = 0.0
        """Throughput in rows per second."""
        self._interval = float("inf")
        self._latest = float("-inf")
        self._refused = 0.0
        self._refused_at = 0.0

    def record_arrival(self, now: float, rows: int) -> None:
        """Record the arrival of rows."""
        interval = min(now - self._latest, 2 * self.max_latency) / rows  # cap the interval after a long pause
        is_first = self._interval == float("inf")
        self._interval = interval if is_first else self._interval + _WEIGHT * (interval - self._interval)
        self._latest = now

    def record_batch(self, rows: int, seconds: float) -> None:
        """Record a completed batch."""
        rate = rows / max(seconds, 1e-9)
        self.rate = self.rate + _WEIGHT * (rate - self.rate) if self.rate else rate

    def start_time(self, waiting: int, oldest: float, now: float) -> float:
        """Return the time at which to start a batch if no more rows arrive.

        Args:
            waiting: number of queued rows.
            oldest: arrival time of the oldest row.
            now: the current time.
        """
        end = oldest + self.max_latency
        expects_more = now < end and self._interval < end - now and now - self._latest < self.max_latency
        return end if expects_more and waiting < self.sizes[-1] else now

    def size(self, waiting: int) -> int:
        """Return the size with the highest throughput; among similar ones, the smallest."""
        rates = {size: min(size, waiting) / self.seconds[size] for size in self.sizes}
        threshold = _SIMILAR * max(rates.values())
        return min(size for size, rate in rates.items() if rate >= threshold)

    def record_refusal(self, now: float, rows: int) -> None:
        """Record refused rows, which clients will send again. Earlier refusals decay with a half-life of one second."""
        self._refused = self._refused * 0.5 ** (now - self._refused_at) + rows
        self._refused_at = now

    def refused_within(self, seconds: float, now: float) -> bool:
        """Return whether rows were refused within the last ``seconds``."""
        return self._refused > 0 and now - self._refused_at <= seconds

    def retry_after(self, waiting: int) -> float:
        """Return the seconds needed to compute the queued and the recently refused rows."""
        return (waiting + self._refused) / self.rate if self.rate else 1.0


def sizes_up_to(limit: int) -> tuple[int, ...]:
    """Return the powers of two below ``limit``, and ``limit``."""
    sizes = [1 << bit for bit in range(limit.bit_length()) if 1 << bit < limit]
    return (*sizes, limit)
