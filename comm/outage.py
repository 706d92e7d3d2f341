"""The duration of an outage, without the time in which this process did not run."""

from __future__ import annotations

__all__ = ["Outage"]


class Outage:
    """The duration of an outage: the sum of the times between failures.

    A process that was stopped, or whose machine was suspended, must not count that time as silence of its peers.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._last: float | None = None

    def __bool__(self) -> bool:
        """True while the outage lasts."""
        return self._last is not None

    def record_failure(self, now: float, max_interval: float) -> float:
        """Record a failure; return the duration of the outage in seconds.

        Args:
            now: the time.
            max_interval: the longest possible time between two failures of a running process; a longer gap means that
                it was suspended.
        """
        if self._last is not None:
            self._seconds += min(now - self._last, max_interval)
        self._last = now
        return self._seconds

    def end(self) -> None:
        """Record a success, which ends the outage."""
        self._seconds, self._last = 0.0, None
