"""Files that a program goes on without for a while: checkpoints and snapshots on a disk that is full."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable

from flowmx import settings
from flowmx.errors import MXNetError

__all__ = ["Keeping", "NothingKept"]

log = logging.getLogger("flowmx")

PASSING = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ENOMEM}
"""Errors that say nothing against the path, so that a later try may succeed."""


class NothingKept(MXNetError, OSError):
    """Nothing could be written for ``FLOWMX_UNSAVED_TIMEOUT`` seconds."""


class Keeping:
    """Writes of one kind of file, which may fail for a while.

    Args:
        what: the kind, for messages.
        clock: seconds since an arbitrary point in the past.
    """

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._clock = clock
        self._kept = False
        self._since: float | None = None

    def written(self) -> None:
        """Note that a file was written."""
        if self._since is not None:
            log.warning("a %s could be written again, after %.0f s", self._what, self._clock() - self._since)
        self._kept, self._since = True, None

    def failed(self, path: str | os.PathLike[str], error: OSError) -> None:
        """Note that a file could not be written; raise where that is no passing trouble.

        Args:
            path: the file.
            error: the reason.

        Raises:
            OSError: `error`, where nothing was written before and the path itself is at fault.
            NothingKept: nothing could be written for too long.
        """
        if not self._kept and error.errno not in PASSING:
            raise error
        now, limit = self._clock(), settings.get().unsaved_timeout
        self._since = now if self._since is None else self._since
        lasted, why = now - self._since, error.strerror or str(error)
        if lasted >= limit:
            raise NothingKept(
                f"no {self._what} could be written for {lasted:.0f} s, and FLOWMX_UNSAVED_TIMEOUT allows {limit:g}: "
                f"{path}: {why}"
            ) from error
        log.error(
            "%s could not be written: %s. The program goes on, for %.0f s more until a %s can be written",
            path, why, limit - lasted, self._what,
        )  # fmt: skip
