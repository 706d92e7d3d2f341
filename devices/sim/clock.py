"""Virtual time: the start and end of all launched work on the described device.

Launches and waits of the host are events, numbered by the operation's position in the program. Threads may add them in
any order; they are evaluated in program order, so that the same program always takes the same time. An event starts at
the latest of: its launch on the host, the end of the previous work of its stream, the end of the tokens it waits for,
and the end of the previous work of its engine (the device's arithmetic, a copy engine, or a link).

An event starts right after the latest of these. So a chain of work without gaps leads from the beginning to each end.
An event's *path* is the seconds of this chain by kind of work: the critical path.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from flowmx import forks

_MAX_SPANS = 100_000

Path = Mapping[str, float]
"""Seconds by kind of work on the critical path to a moment."""
LAUNCHES = "launches"


class Span(NamedTuple):
    """An interval of a timeline, in seconds."""

    name: str
    stream: str
    start: float
    end: float


class Event:
    """Work on a stream, or (without a stream) a wait of the host.

    Attributes:
        serial: its position in the program.
        name: the operation's name.
        stream, engine: the names of its stream and engine.
        parts: its duration in seconds, by kind of work.
        host_seconds: the time that the host needs for the launch.
        dependencies: the events that it waits for.
        end: its end, once evaluated.
        path: the critical path that ends with it.
    """

    __slots__ = ("dependencies", "end", "engine", "host_seconds", "name", "parts", "path", "serial", "stream")

    def __init__(
        self, serial: int, name: str, stream: str, engine: str, parts: Path, host_seconds: float,
        dependencies: Sequence[Event] = (),
    ) -> None:  # fmt: skip
        self.serial = serial
        self.name = name
        self.stream = stream
        self.engine = engine
        self.parts = parts
        self.host_seconds = host_seconds
        self.dependencies: Sequence[Event] = dependencies
        self.end = 0.0
        self.path: Path = {}


class Clock:
    """The host's time and the streams' timelines.

    Attributes:
        host: the host's time in seconds, after the evaluated events.
        launching: the host's time for launches.
        busy: seconds of work by stream.
        ends: the end of each stream.
        spans: the newest intervals of the timeline.
    """

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._events: list[Event] = []
        self.clear()

    def clear(self) -> None:
        """Restart at 0."""
        with self._lock:
            self._events.clear()
            self.host = self.launching = 0.0
            self.busy: dict[str, float] = defaultdict(float)
            self.ends: dict[str, float] = defaultdict(float)
            self._engines: dict[str, float] = defaultdict(float)
            self._paths: dict[str, Path] = defaultdict(dict)  # of streams and engines; "" is the host
            self.spans: deque[Span] = deque(maxlen=_MAX_SPANS)

    def add(self, event: Event) -> None:
        """Add an event, to be evaluated in program order."""
        with self._lock:
            self._events.append(event)

    def pending_events(self) -> int:
        """Return the number of events that are not evaluated yet."""
        return len(self._events)

    def advance(self, before: float = float("inf")) -> float:
        """Evaluate all events with a serial below ``before``, all of which must be added; return the host's time."""
        with self._lock:
            # Stable sort: the launches and waits of one operation stay in their order.
            self._events.sort(key=attrgetter("serial"))
            count = 0
            for event in self._events:
                if event.serial >= before:
                    break
                self._advance(event)
                count += 1
            del self._events[:count]
            return self.host

    def _advance(self, event: Event) -> None:
        before = [(earlier.end, earlier.path) for earlier in event.dependencies]
        event.dependencies = ()
        if not event.stream:
            self.host, self._paths[""] = _latest([*before, (self.host, self._paths[""])])
            event.end, event.path = self.host, self._paths[""]
            return
        if event.host_seconds:
            self.host += event.host_seconds
            self.launching += event.host_seconds
            self._paths[""] = _extend(self._paths[""], {LAUNCHES: event.host_seconds})
        before += [
            (self._engines[event.engine], self._paths[event.engine]),
            (self.ends[event.stream], self._paths[event.stream]),
            (self.host, self._paths[""]),
        ]
        start, path = _latest(before)
        seconds = sum(event.parts.values())
        event.end, event.path = start + seconds, _extend(path, event.parts)
        self.ends[event.stream] = self._engines[event.engine] = event.end
        self._paths[event.stream] = self._paths[event.engine] = event.path
        if seconds:
            self.busy[event.stream] += seconds
            self.spans.append(Span(event.name, event.stream, start, event.end))

    def end(self) -> tuple[float, Path]:
        """Return the time in seconds at which all streams and the host are done, and the critical path to it."""
        moments = [(seconds, self._paths[stream]) for stream, seconds in self.ends.items()]
        return _latest([*moments, (self.host, self._paths[""])])


def _latest(moments: Sequence[tuple[float, Path]]) -> tuple[float, Path]:
    return max(moments, key=lambda moment: moment[0])


def _extend(path: Path, parts: Path) -> Path:
    """Return a path extended by some parts."""
    if not parts:
        return path
    extended = dict(path)
    for kind, seconds in parts.items():
        extended[kind] = extended.get(kind, 0.0) + seconds
    return extended
