"""The event loops of this process, and whether they are blocked: each is sent a call, which takes as long as it lags.

Loops are known once something on them has awaited an operation, or when :func:`flowmx.run` began them; the engine's own
always is.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

from flowmx.engine.loops import running
from flowmx.engine.runtime import engine
from flowmx.observability.flight import stacks

__all__ = ["Pings"]


class Pings:
    """Calls that are on their way to loops."""

    def __init__(self) -> None:
        self._sent: WeakKeyDictionary[asyncio.AbstractEventLoop, float] = WeakKeyDictionary()
        self._lag: WeakKeyDictionary[asyncio.AbstractEventLoop, float] = WeakKeyDictionary()

    def send(self) -> None:
        """Send one to every loop that has none under way."""
        for loop in self._loops():
            if loop in self._sent:
                continue
            self._sent[loop] = monotonic()
            try:
                loop.call_soon_threadsafe(self._came, loop)
            except RuntimeError:  # it is closed
                self._sent.pop(loop, None)
                running.pop(loop, None)

    def _came(self, loop: asyncio.AbstractEventLoop) -> None:
        sent = self._sent.pop(loop, None)
        if sent is not None:
            self._lag[loop] = monotonic() - sent

    def _loops(self) -> dict[asyncio.AbstractEventLoop, int]:
        found = {loop: ident for loop, ident in _known() if loop.is_running()}
        if engine.hosting.loop is not None and engine.hosting.loop_thread is not None:
            found[engine.hosting.loop] = engine.hosting.loop_thread.ident or 0
        return found

    def slowest(self) -> float:
        """Seconds that the slowest loop took to answer, or has not answered for."""
        now = monotonic()
        loops = list(self._loops())
        blocked = [now - sent for loop in loops if (sent := self._sent.get(loop)) is not None]
        return max([*blocked, *(self._lag.get(loop, 0.0) for loop in loops)], default=0.0)

    def found(self) -> list[dict[str, Any]]:
        """Each loop with its thread, the last lag, for how long it has not answered, and what its thread is at."""
        found, names, now = stacks.stacks(), stacks.names(), monotonic()
        return [
            {
                "thread": names.get(ident, str(ident)), "lag": round(self._lag.get(loop, 0.0), 4),
                "blocked": round(now - self._sent[loop], 3) if loop in self._sent else 0.0,
                "stack": stacks.lines(found.get(ident, [])), "waits": _waits_in(ident),
            }
            for loop, ident in self._loops().items()
        ]  # fmt: skip


def _known() -> list[tuple[asyncio.AbstractEventLoop, int]]:
    while True:
        try:
            return list(running.items())
        except RuntimeError:  # another thread has begun a loop meanwhile
            continue


def _waits_in(ident: int) -> int | None:
    """The operation that a thread blocks on."""
    return next((w.op.serial for w in list(engine.waits.values()) if w.thread == ident and w.task is None), None)
