"""The intervals and timeouts of a node: heartbeats, silence, and reconnection to the scheduler."""

from __future__ import annotations

import errno
import math
from dataclasses import dataclass

from flowmx import settings

__all__ = ["Timing"]


REFUSED_TIMEOUT = 3.0
"""Seconds after which a scheduler that is not restarted counts as ended."""


@dataclass(frozen=True)
class Timing:
    """A node's intervals and timeouts, in seconds.

    Args:
        heartbeat: seconds between heartbeats.
        timeout: seconds of silence after which a node is gone; the same as the scheduler's.
        reconnect: seconds for which a node tries to reach the scheduler.
        refused: seconds of those in which the scheduler's machine may refuse connections.

    Raises:
        ValueError: the timeout is not longer than two heartbeats.
    """

    heartbeat: float = 1.0
    timeout: float = 10.0
    reconnect: float = 30.0
    refused: float = math.inf

    def __post_init__(self) -> None:
        if not self.timeout > 2 * self.heartbeat > 0:
            raise ValueError(
                f"a timeout of {self.timeout} s is too short for a heartbeat every {self.heartbeat} s: "
                "FLOWMX_KVSTORE_TIMEOUT must be more than twice FLOWMX_KVSTORE_HEARTBEAT"
            )

    @classmethod
    def from_settings(cls) -> Timing:
        """Return the timing that the settings define."""
        config = settings.get()
        reconnect = config.kvstore_reconnect
        refused = math.inf if config.kvstore_scheduler_returns else REFUSED_TIMEOUT
        return cls(config.kvstore_heartbeat, config.kvstore_timeout, reconnect, refused)

    def search_time(self, problem: BaseException) -> float:
        """Return the seconds for which to try to reach a scheduler after an error."""
        return min(self.refused, self.reconnect) if _is_refused(problem) else self.reconnect


def _is_refused(problem: BaseException | None) -> bool:
    """Return whether the peer's machine refused the connection because no process listens."""
    while problem is not None:
        if getattr(problem, "errno", None) == errno.ECONNREFUSED:
            return True
        problem = problem.__cause__ or problem.__context__
    return False
