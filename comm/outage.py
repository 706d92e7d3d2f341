"""The duration of an outage, without the time in which this process itself did not run."""

from __future__ import annotations

__all__ = ["Outage"]


class Outage:
    """The time of an outage: the sum of the times between failures.

    A machine that stood still, or a process that was stopped, must not take that time for the others' silence.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._last: float | None = None

    def __bool__(self) -> bool:
        """True while the outage lasts."""
        return self._last is not None

    def failed(self, now: float, most: float) -> float:
        """Note a failure; return the seconds that the outage has lasted.

        Args:
            now: the time.
            most: that can have gone by since the last failure, if this process ran.
        """
        if self._last is not None:
            self._seconds += min(now - self._last, most)
        self._last = now
        return self._seconds

    def over(self) -> None:
        """Note a success, which ends the outage."""
        self._seconds, self._last = 0.0, None
