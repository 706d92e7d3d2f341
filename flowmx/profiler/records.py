"""Records of the profiler: plain facts, noted as cheaply as possible; names, lines and tracks are derived later."""

from __future__ import annotations

import threading
from time import perf_counter
from typing import Any, NamedTuple

from flowmx.engine import Origin

__all__ = ["CUSTOM", "Change", "Mark", "Record", "Span", "StepTime", "ThreadState", "local"]


CUSTOM = "Custom Operator"
"""The category of what users' operators do."""


class StepTime(NamedTuple):
    """One operator of a bound or hybridized graph.

    Attributes:
        node: of the graph (:class:`flowmx.graph.node.Node`).
        start, end: in seconds.
    """

    node: Any
    start: float
    end: float


class Record:
    """One operation of the engine.

    Attributes:
        id: its number among the records.
        name: the operation's.
        actor: the device's queue that it came from.
        origin: the user's line and the layer.
        scope: what :func:`flowmx.profiler.scope` said at the push.
        within: the user's operator that pushed it, if one did.
        after: the records of the operations whose results it reads.
        pushed, start, end: in seconds.
        thread: the name of the thread that ran it; empty where several may have run at the same time on one.
        steps: of a graph, its operators.
    """

    __slots__ = (
        "actor", "after", "end", "id", "name", "origin", "pushed", "scope", "start", "steps", "thread", "within",
    )  # fmt: skip

    def __init__(self, id: int, name: str, actor: str, origin: Origin | None, scope: str, within: str = "") -> None:
        self.id, self.name, self.actor, self.origin, self.scope, self.within = id, name, actor, origin, scope, within
        self.pushed = perf_counter()
        self.start = self.end = 0.0
        self.after: tuple[int, ...] = ()
        self.thread = ""
        self.steps: list[StepTime] = []


class Span(NamedTuple):
    """A timed activity that is not an operation: a user's task, a request to a server.

    Attributes:
        name: what it is called.
        category: what it is one of.
        track: where it is shown.
        start, end: in seconds.
        facts: what else is known of it.
    """

    name: str
    category: str
    track: str
    start: float
    end: float
    facts: dict[str, Any]


class Mark(NamedTuple):
    """An instant that the user has marked; ``reach`` is ``g``, ``p`` or ``t``: global, process or thread."""

    name: str
    category: str
    reach: str
    thread: str
    at: float


class Change(NamedTuple):
    """The value of a counter from a moment on."""

    name: str
    category: str
    at: float
    value: float


class ThreadState(threading.local):
    """Thread-local state of the profiler.

    Attributes:
        thread: its name.
        record: the operation that it runs, where that is recorded.
    """

    record: Record | None = None

    def __init__(self) -> None:
        self.thread = threading.current_thread().name


local = ThreadState()
