"""Logs that clients cannot fill: messages caused by requests are written at most once a minute, with a count."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from aiohttp.http_exceptions import HttpProcessingError

__all__ = ["LogThrottle", "http_log", "requests_log"]

SPAN = 60.0
"""Seconds between two records of a kind."""
_MAX_KINDS = 256


class LogThrottle(logging.Filter):
    """Passes one record of each kind a minute; the next one contains the number of records in between.

    A kind is an unformatted message with the type of its exception.

    Args:
        clock: the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        # The time of the last written record, and the number of records since.
        self._kinds: dict[tuple[str, type | None], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a record; add the number of suppressed ones to its message."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):  # raised by aiohttp's parser because of the client
            text = str(error.message).partition("\n")[0][:200]
            record.msg, record.args = "refused an invalid HTTP request: %s", (text,)
            record.levelno, record.levelname, record.exc_info = logging.WARNING, "WARNING", None
        kind = str(record.msg), type(error) if error is not None else None
        now = self._clock()
        last_time, suppressed = self._kinds.get(kind, (-SPAN, 0))
        if now - last_time < SPAN:
            self._kinds[kind] = last_time, suppressed + 1
            return False
        if suppressed:
            record.msg = f"{record.msg} (and {suppressed} more in the {now - last_time:.0f} s before)"
        self._kinds[kind] = now, 0
        if len(self._kinds) > _MAX_KINDS:
            del self._kinds[next(iter(self._kinds))]
        return True


def _throttled_logger(name: str) -> logging.Logger:
    logger = logging.getLogger(name)
    logger.addFilter(LogThrottle())
    return logger


http_log = _throttled_logger("flowmx.comm.http")
"""The log of the HTTP servers of jobs, model services and the dashboard."""
requests_log = _throttled_logger("flowmx.comm.requests")
"""The log of requests that failed because of an error in this program."""
