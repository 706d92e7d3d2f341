"""Records of the profiler, cheap to create; names, lines and tracks are derived later."""

from __future__ import annotations

import threading
from time import perf_counter
from typing import Any, NamedTuple

from flowmx.engine import Origin

__all__ = ["CUSTOM", "Change", "Mark", "Record", "Span", "StepTime", "ThreadState", "local"]


CUSTOM = "Custom Operator"
"""The category of calls in custom operators."""


class StepTime(NamedTuple):
    """One operator of a bound or hybridized graph.

    Attributes:
        node: the node (:class:`flowmx.graph.node.Node`).
        start, end: times in seconds.
    """

    node: Any
    start: float
    end: float


class Record:
    """One operation of the engine.

    Attributes:
        id: its number among the records.
        name: name of the operation.
        actor: the actor that ran it.
        origin: the user's source line and the layer.
        scope: the name of :func:`flowmx.profiler.scope` when it was pushed.
        within: the custom operator that pushed it, if any.
        after: ids of the records of the operations whose results it reads.
        pushed, start, end: times in seconds.
        thread: name of the thread that ran it; empty for coroutines and other operations that may overlap.
        steps: the operators of a graph.
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
        name: its name.
        category: its category.
        track: the track that shows it.
        start, end: times in seconds.
        facts: further values to show.
    """

    name: str
    category: str
    track: str
    start: float
    end: float
    facts: dict[str, Any]


class Mark(NamedTuple):
    """An instant marked by the user; ``scope`` is ``g``, ``p`` or ``t``: global, process or thread."""

    name: str
    category: str
    scope: str
    thread: str
    at: float


class Change(NamedTuple):
    """A new value of a counter."""

    name: str
    category: str
    at: float
    value: float


class ThreadState(threading.local):
    """Thread-local state of the profiler.

    Attributes:
        thread: name of the thread.
        record: the record of the operation that it runs, if recorded.
    """

    record: Record | None = None

    def __init__(self) -> None:
        self.thread = threading.current_thread().name


local = ThreadState()
