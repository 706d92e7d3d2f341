"""Tolerance of failed writes: training continues for a while without new checkpoints if the disk is full."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable

from flowmx import settings
from flowmx.errors import MXNetError

__all__ = ["WriteMonitor", "WriteTimeout"]

log = logging.getLogger("flowmx")

TRANSIENT = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ENOMEM}
"""Errors after which a later attempt may succeed."""


class WriteTimeout(MXNetError, OSError):
    """All writes have failed for ``FLOWMX_UNSAVED_TIMEOUT`` seconds."""


class WriteMonitor:
    """The outcomes of writing one kind of file. Failures are tolerated for ``FLOWMX_UNSAVED_TIMEOUT`` seconds.

    Args:
        what: the kind, for messages.
        clock: a clock in seconds.
    """

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._clock = clock
        self._has_written = False
        self._failing_since: float | None = None

    def succeeded(self) -> None:
        """Record a successful write."""
        if self._failing_since is not None:
            log.warning("a %s could be written again, after %.0f s", self._what, self._clock() - self._failing_since)
        self._has_written, self._failing_since = True, None

    def failed(self, path: str | os.PathLike[str], error: OSError) -> None:
        """Record a failed write. Raise an error that is permanent or has lasted too long.

        Args:
            path: the file.
            error: the reason.

        Raises:
            OSError: `error`, if it is the first write and the error is not transient.
            WriteTimeout: all writes have failed for too long.
        """
        if not self._has_written and error.errno not in TRANSIENT:
            raise error
        now, limit = self._clock(), settings.get().unsaved_timeout
        self._failing_since = now if self._failing_since is None else self._failing_since
        duration, reason = now - self._failing_since, error.strerror or str(error)
        if duration >= limit:
            raise WriteTimeout(
                f"no {self._what} could be written for {duration:.0f} s, and FLOWMX_UNSAVED_TIMEOUT is {limit:g}: "
                f"{path}: {reason}"
            ) from error
        log.error(
            "%s could not be written: %s. The program continues; it fails in %.0f s unless a %s can be written",
            path, reason, limit - duration, self._what,
        )  # fmt: skip
