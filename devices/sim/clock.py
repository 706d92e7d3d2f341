"""Virtual time: when everything that was launched begins and ends, had it run on the described device.

Launches and waits of the host come as events, numbered by the operation's place in the program, in whatever order
threads bring them. They are *settled* in the order of the program, so that the same program always takes the same
time. An event starts at the latest of: its launch on the host, the end of what its stream did before, the end of the
tokens it waits for, and the end of what its engine (the device's arithmetic, a copy engine, a link) did before.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import NamedTuple

_SPANS_KEPT = 100_000


class Span(NamedTuple):
    """A piece of a timeline, in seconds."""

    name: str
    stream: str
    start: float
    end: float


class Event:
    """Work on a stream, or (without one) the host's waiting for some.

    Attributes:
        serial: its place in the program.
        name: the operation's.
        stream, engine: where it runs, by name.
        seconds: how long it takes.
        host_seconds: how long launching it keeps the host.
        after: what it waits for.
        end: when it ends, once settled.
    """

    __slots__ = ("after", "end", "engine", "host_seconds", "name", "seconds", "serial", "stream")

    def __init__(
        self, serial: int, name: str, stream: str, engine: str, seconds: float, host_seconds: float,
        after: Sequence[Event] = (),
    ) -> None:  # fmt: skip
        self.serial = serial
        self.name = name
        self.stream = stream
        self.engine = engine
        self.seconds = seconds
        self.host_seconds = host_seconds
        self.after: Sequence[Event] = after
        self.end = 0.0


class Clock:
    """The host's time and the streams' timelines.

    Attributes:
        host: the host's time in seconds, as far as settled.
        busy: seconds of work by stream.
        ends: when each stream ends.
        spans: the newest pieces of the timeline.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self.clear()

    def clear(self) -> None:
        """Begin at 0."""
        with self._lock:
            self._events.clear()
            self.host = 0.0
            self.busy: dict[str, float] = defaultdict(float)
            self.ends: dict[str, float] = defaultdict(float)
            self._engines: dict[str, float] = defaultdict(float)
            self.spans: deque[Span] = deque(maxlen=_SPANS_KEPT)

    def add(self, event: Event) -> None:
        """Take an event, to be settled in its turn."""
        with self._lock:
            self._events.append(event)

    def waiting(self) -> int:
        """How many events are not settled."""
        return len(self._events)

    def settle(self, before: float = float("inf")) -> float:
        """Settle all events of a serial below ``before``, which must all have come; returns the host's time."""
        with self._lock:
            # Stable: what one operation launched, and what the host then waited for, stays in the order it came.
            self._events.sort(key=lambda event: event.serial)
            count = 0
            for event in self._events:
                if event.serial >= before:
                    break
                self._settle(event)
                count += 1
            del self._events[:count]
            return self.host

    def _settle(self, event: Event) -> None:
        ready = max((each.end for each in event.after), default=0.0)
        event.after = ()
        if not event.stream:
            self.host = event.end = max(self.host, ready)
            return
        self.host += event.host_seconds
        start = max(self.host, self.ends[event.stream], self._engines[event.engine], ready)
        event.end = start + event.seconds
        self.ends[event.stream] = self._engines[event.engine] = event.end
        if event.seconds:
            self.busy[event.stream] += event.seconds
            self.spans.append(Span(event.name, event.stream, start, event.end))
