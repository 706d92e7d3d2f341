"""Logs that strangers can not fill: what their requests bring about is written once a minute, with its number."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from aiohttp.http_exceptions import HttpProcessingError

__all__ = ["Summary", "http_log", "requests_log"]

SPAN = 60.0
"""Seconds in which one record of a kind is written."""
_KINDS = 256


class Summary(logging.Filter):
    """Lets one record of each kind through in a while; the next one says how many there were between.

    A kind is a message before its arguments are put in, with the type of its exception.

    Args:
        clock: the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[tuple[str, type | None], tuple[float, int]] = {}  # when one was written, and those since

    def filter(self, record: logging.LogRecord) -> bool:
        """Decide on a record, and add the number of those that were left out."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):  # of aiohttp's parser: not an error of this program
            text = str(error.message).partition("\n")[0][:200]
            record.msg, record.args = "a request that is no HTTP was refused: %s", (text,)
            record.levelno, record.levelname, record.exc_info = logging.WARNING, "WARNING", None
        kind = str(record.msg), type(error) if error is not None else None
        now = self._clock()
        written, since = self._kinds.get(kind, (-SPAN, 0))
        if now - written < SPAN:
            self._kinds[kind] = written, since + 1
            return False
        if since:
            record.msg = f"{record.msg} (and {since} more in the {now - written:.0f} s before)"
        self._kinds[kind] = now, 0
        if len(self._kinds) > _KINDS:
            del self._kinds[next(iter(self._kinds))]
        return True


def _bounded(name: str) -> logging.Logger:
    logger = logging.getLogger(name)
    logger.addFilter(Summary())
    return logger


http_log = _bounded("flowmx.comm.http")
"""The log of the HTTP servers of all services: jobs', services of models, the dashboard."""
requests_log = _bounded("flowmx.comm.requests")
"""The log of requests that failed by an error of this program."""
