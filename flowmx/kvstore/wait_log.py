"""Log messages about long waits: which node waits, for which key or at which barrier, and for which nodes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from time import monotonic
from typing import Any

from flowmx import settings
from flowmx.comm.view import Member

__all__ = ["UNEVEN_ADVICE", "Waits", "format_keys", "format_members", "watch"]

log = logging.getLogger("flowmx.kvstore")

UNEVEN_ADVICE = (
    "give all workers the same number of batches: discard what is left over (last_batch='discard'), or repeat samples "
    "(mx.io.ResizeIter)"
)
"""The advice for workers with different numbers of batches."""

_SHOWN = 4
"""Maximum number of keys that a message lists."""


class Waits:
    """Decides when to log a wait: after some time, and again whenever its duration has doubled.

    Args:
        patience: seconds until the first message.
        clock: returns the time in seconds.
    """

    def __init__(self, patience: float, clock: Callable[[], float] = monotonic) -> None:
        self._patience = patience
        self._clock = clock
        self._begun: dict[Any, tuple[float, float]] = {}

    def due(self, waits: Mapping[Any, float | None]) -> dict[Any, float]:
        """Return the waits to log now, with their durations in seconds.

        Args:
            waits: all current waits, with the time when each began, where that is known.
        """
        now, due = self._clock(), {}
        self._begun = {
            wait: self._begun.get(wait, (now if began is None else began, self._patience))
            for wait, began in waits.items()
        }
        for wait, (began, after) in self._begun.items():
            if now - began >= after:
                self._begun[wait] = began, 2 * max(after, now - began)
                due[wait] = now - began
        return due


def format_keys(keys: Iterable[str]) -> str:
    """Format the first few keys for a message."""
    distinct = list(dict.fromkeys(keys))
    more = f" and {len(distinct) - _SHOWN} more" if len(distinct) > _SHOWN else ""
    return ("key " if len(distinct) == 1 else "keys ") + ", ".join(distinct[:_SHOWN]) + more


def format_members(members: Iterable[Member]) -> str:
    """Format nodes for a message, with their activities where these are known."""
    return ", ".join(f"{member.name} ({member.doing})" if member.doing else member.name for member in members)


async def watch(log_waits: Callable[[Waits], Awaitable[object]]) -> None:
    """Call a function periodically to log long waits, until cancelled."""
    patience = settings.get().kvstore_patience
    waits = Waits(patience)
    while True:
        await asyncio.sleep(patience / 4)
        try:
            await log_waits(waits)
        except Exception as error:  # logging must never stop the store
            log.debug("the search for long waits failed: %s", error)
