"""Pings of this process's event loops: callbacks that measure how long each loop is blocked.

The engine's loop is measured, and those that :func:`flowmx.run` began or on which an object of flowmx was awaited.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

from flowmx.engine.runtime import engine
from flowmx.event_loops import running
from flowmx.observability.flight import stacks

__all__ = ["Pings"]


class Pings:
    """Pings that were sent to event loops, and how long the loops took to run them."""

    def __init__(self) -> None:
        self._sent: WeakKeyDictionary[asyncio.AbstractEventLoop, float] = WeakKeyDictionary()
        self._lag: WeakKeyDictionary[asyncio.AbstractEventLoop, float] = WeakKeyDictionary()

    def send(self) -> None:
        """Send a ping to every loop that has answered the last one."""
        for loop in self._loops():
            if loop in self._sent:
                continue
            self._sent[loop] = monotonic()
            try:
                loop.call_soon_threadsafe(self._answered, loop)
            except RuntimeError:  # it is closed
                self._sent.pop(loop, None)
                running.pop(loop, None)

    def _answered(self, loop: asyncio.AbstractEventLoop) -> None:
        send_time = self._sent.pop(loop, None)
        if send_time is not None:
            self._lag[loop] = monotonic() - send_time

    def _loops(self) -> dict[asyncio.AbstractEventLoop, int]:
        loops = {loop: ident for loop, ident in _running_loops() if loop.is_running()}
        if engine.hosting.loop is not None and engine.hosting.loop_thread is not None:
            loops[engine.hosting.loop] = engine.hosting.loop_thread.ident or 0
        return loops

    def slowest(self) -> float:
        """Return the lag of the slowest loop in seconds: of its last ping, or of one without a response so far."""
        now = monotonic()
        loops = list(self._loops())
        blocked = [now - send_time for loop in loops if (send_time := self._sent.get(loop)) is not None]
        return max([*blocked, *(self._lag.get(loop, 0.0) for loop in loops)], default=0.0)

    def loop_states(self) -> list[dict[str, Any]]:
        """Return each loop's thread with its stack, the last lag, and the seconds since a ping without a response."""
        by_thread, names, now = stacks.stacks(), stacks.names(), monotonic()
        return [
            {
                "thread": names.get(ident, str(ident)), "lag": round(self._lag.get(loop, 0.0), 4),
                "blocked": round(now - self._sent[loop], 3) if loop in self._sent else 0.0,
                "stack": stacks.lines(by_thread.get(ident, [])), "waits": _waits_in(ident),
            }
            for loop, ident in self._loops().items()
        ]  # fmt: skip


def _running_loops() -> list[tuple[asyncio.AbstractEventLoop, int]]:
    while True:
        try:
            return list(running.items())
        except RuntimeError:  # another thread began a loop during the iteration
            continue


def _waits_in(ident: int) -> int | None:
    """Return the serial number of the operation that a thread blocks on."""
    return next(
        (wait.op.serial for wait in list(engine.waits.values()) if wait.thread == ident and wait.task is None), None
    )
