"""Virtual time: when everything that was launched begins and ends, had it run on the described device.

Launches and waits of the host come as events, numbered by the operation's place in the program, in whatever order
threads bring them. They are *settled* in the order of the program, so that the same program always takes the same
time. An event starts at the latest of: its launch on the host, the end of what its stream did before, the end of the
tokens it waits for, and the end of what its engine (the device's arithmetic, a copy engine, a link) did before.

Whichever was the latest of these, the event came right after it: so there is a chain of work without gaps from the
beginning to each end. Its *path* is that chain's seconds by kind of work: what the time went to.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

_SPANS_KEPT = 100_000

Path = Mapping[str, float]
"""Seconds by kind of work, on the chain that leads to a moment."""
LAUNCHES = "launches"


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
        parts: how long it takes, by kind of work.
        host_seconds: how long launching it keeps the host.
        after: what it waits for.
        end: when it ends, once settled.
        path: the way there.
    """

    __slots__ = ("after", "end", "engine", "host_seconds", "name", "parts", "path", "serial", "stream")

    def __init__(
        self, serial: int, name: str, stream: str, engine: str, parts: Path, host_seconds: float,
        after: Sequence[Event] = (),
    ) -> None:  # fmt: skip
        self.serial = serial
        self.name = name
        self.stream = stream
        self.engine = engine
        self.parts = parts
        self.host_seconds = host_seconds
        self.after: Sequence[Event] = after
        self.end = 0.0
        self.path: Path = {}


class Clock:
    """The host's time and the streams' timelines.

    Attributes:
        host: the host's time in seconds, as far as settled.
        launching: the part of it that launches took.
        busy: seconds of work by stream.
        ends: when each stream ends.
        spans: the newest pieces of the timeline.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._events: list[Event] = []
        self.clear()

    def clear(self) -> None:
        """Begin at 0."""
        with self._lock:
            self._events.clear()
            self.host = self.launching = 0.0
            self.busy: dict[str, float] = defaultdict(float)
            self.ends: dict[str, float] = defaultdict(float)
            self._engines: dict[str, float] = defaultdict(float)
            self._paths: dict[str, Path] = defaultdict(dict)  # of streams and engines; "" is the host
            self.spans: deque[Span] = deque(maxlen=_SPANS_KEPT)

    def add(self, event: Event) -> None:
        """Take an event, to be settled in its turn."""
        with self._lock:
            self._events.append(event)

    def waiting(self) -> int:
        """The number of events that are not settled."""
        return len(self._events)

    def settle(self, before: float = float("inf")) -> float:
        """Settle all events of a serial below ``before``, which must all have come; returns the host's time."""
        with self._lock:
            # Stable: what one operation launched, and what the host then waited for, stays in the order it came.
            self._events.sort(key=attrgetter("serial"))
            count = 0
            for event in self._events:
                if event.serial >= before:
                    break
                self._settle(event)
                count += 1
            del self._events[:count]
            return self.host

    def _settle(self, event: Event) -> None:
        before = [(each.end, each.path) for each in event.after]
        event.after = ()
        if not event.stream:
            self.host, self._paths[""] = _latest([*before, (self.host, self._paths[""])])
            event.end, event.path = self.host, self._paths[""]
            return
        if event.host_seconds:
            self.host += event.host_seconds
            self.launching += event.host_seconds
            self._paths[""] = _longer(self._paths[""], {LAUNCHES: event.host_seconds})
        before += [
            (self._engines[event.engine], self._paths[event.engine]),
            (self.ends[event.stream], self._paths[event.stream]),
            (self.host, self._paths[""]),
        ]
        start, path = _latest(before)
        seconds = sum(event.parts.values())
        event.end, event.path = start + seconds, _longer(path, event.parts)
        self.ends[event.stream] = self._engines[event.engine] = event.end
        self._paths[event.stream] = self._paths[event.engine] = event.path
        if seconds:
            self.busy[event.stream] += seconds
            self.spans.append(Span(event.name, event.stream, start, event.end))

    def end(self) -> tuple[float, Path]:
        """The time (seconds) at which all streams and the host are done, and the critical path to it, as settled."""
        found = [(seconds, self._paths[stream]) for stream, seconds in self.ends.items()]
        return _latest([*found, (self.host, self._paths[""])])


def _latest(moments: Sequence[tuple[float, Path]]) -> tuple[float, Path]:
    return max(moments, key=lambda each: each[0])


def _longer(path: Path, parts: Path) -> Path:
    """The path extended by these parts."""
    if not parts:
        return path
    longer = dict(path)
    for kind, seconds in parts.items():
        longer[kind] = longer.get(kind, 0.0) + seconds
    return longer
