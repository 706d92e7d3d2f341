"""User-defined profiling objects: domains with tasks, frames, counters and markers; events; scopes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from time import perf_counter
from typing import Any

from flowmx.profiler.recorder import recorder, scope_name
from flowmx.profiler.records import Change, Mark, Span, local

__all__ = ["Counter", "Domain", "Event", "Frame", "Marker", "Task", "scope"]

_REACH = {"global": "g", "process": "p", "thread": "t", "task": "t", "marker": "t"}


class Domain:
    """A group of things that belong together; the category that they have in the trace.

    Args:
        name: what it is called.

    Example:
        >>> epoch = mx.profiler.Domain("training").new_task("epoch")
        >>> with epoch:
        ...     train()
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name

    def new_task(self, name: str) -> Task:
        """A :class:`Task` of this domain."""
        return Task(self, name)

    def new_frame(self, name: str) -> Frame:
        """A :class:`Frame` of this domain."""
        return Frame(self, name)

    def new_counter(self, name: str, value: float | None = None) -> Counter:
        """A :class:`Counter` of this domain."""
        return Counter(self, name, value)

    def new_marker(self, name: str) -> Marker:
        """A :class:`Marker` of this domain."""
        return Marker(self, name)


class _Timed:
    """Base class of objects with a beginning and an end; also a context manager."""

    _kind = ""

    def __init__(self, name: str, category: str) -> None:
        self.name = name
        self._category = category
        self._start: float | None = None

    def __str__(self) -> str:
        return self.name

    def start(self) -> None:
        """Begin."""
        self._start = perf_counter()

    def stop(self) -> None:
        """End; it stands in the trace where the profiler runs.

        Raises:
            RuntimeError: it has not begun.
        """
        if self._start is None:
            raise RuntimeError(f"{self._kind} {self.name!r} was stopped and has not been started: call start() first")
        if recorder.running:
            track = f"{self._category} · {local.thread}"
            recorder.spans.append(Span(self.name, self._category, track, self._start, perf_counter(), {}))
        self._start = None

    def __enter__(self) -> Any:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Task(_Timed):
    """A piece of work, from :meth:`start` to :meth:`stop`.

    Args:
        domain: what it belongs to.
        name: what it is called.
    """

    _kind = "task"

    def __init__(self, domain: Domain, name: str) -> None:
        super().__init__(name, domain.name)
        self.domain = domain


class Frame(Task):
    """One of many alike, such as a batch, from :meth:`start` to :meth:`stop`."""

    _kind = "frame"


class Event(_Timed):
    """A piece of work that belongs to no domain, from :meth:`start` to :meth:`stop`.

    Args:
        name: what it is called.
    """

    _kind = "event"

    def __init__(self, name: str) -> None:
        super().__init__(name, "event")


class Counter:
    """A number that changes over time.

    Args:
        domain: what it belongs to.
        name: what it is called.
        value: its first value; None: 0, which is not shown.
    """

    def __init__(self, domain: Domain, name: str, value: float | None = None) -> None:
        self.domain, self.name = domain, name
        self._value: float = 0
        if value is not None:
            self.set_value(value)

    def __str__(self) -> str:
        return self.name

    def set_value(self, value: float) -> None:
        """Give it a value."""
        self._value = value
        if recorder.running:
            recorder.changes.append(Change(self.name, self.domain.name, perf_counter(), value))

    def increment(self, delta: float = 1) -> None:
        """Add to the value."""
        self.set_value(self._value + delta)

    def decrement(self, delta: float = 1) -> None:
        """Take from the value."""
        self.set_value(self._value - delta)

    def __iadd__(self, delta: float) -> Counter:
        self.increment(delta)
        return self

    def __isub__(self, delta: float) -> Counter:
        self.decrement(delta)
        return self


class Marker:
    """An instant, marked in the trace.

    Args:
        domain: what it belongs to.
        name: what it is called.
    """

    def __init__(self, domain: Domain, name: str) -> None:
        self.domain, self.name = domain, name

    def __str__(self) -> str:
        return self.name

    def mark(self, scope: str = "process") -> None:
        """Mark this moment.

        Args:
            scope: what it is a mark of: ``"global"``, ``"process"``, ``"thread"``, ``"task"`` or ``"marker"``.

        Raises:
            ValueError: another scope.
        """
        if scope not in _REACH:
            raise ValueError(f"mark: scope is {scope!r}, expected one of {list(_REACH)}")
        if recorder.running:
            recorder.marks.append(Mark(self.name, self.domain.name, _REACH[scope], local.thread, perf_counter()))


@contextlib.contextmanager
def scope(name: str = "<unk>:", append_mode: bool = True) -> Iterator[None]:
    """Operations pushed inside carry this name in the trace. Tasks on one loop do not see each other's scopes.

    Args:
        name: what they carry; MXNet's names end in a colon.
        append_mode: put it after the name of the scope around it, in place of taking its place.
    """
    name = name if name.endswith(":") else f"{name}:"
    token = scope_name.set(scope_name.get() + name if append_mode else name)
    try:
        yield
    finally:
        scope_name.reset(token)
