"""User-defined profiling objects: domains with tasks, frames, counters and markers; events; scopes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from time import perf_counter
from typing import Any

from flowmx.profiler.recorder import recorder, scope_name
from flowmx.profiler.records import Change, Mark, Span, local
from flowmx.scopes import Value, frame_scope

__all__ = ["Counter", "Domain", "Event", "Frame", "Marker", "Task", "scope"]

_REACH = {"global": "g", "process": "p", "thread": "t", "task": "t", "marker": "t"}


class Domain:
    """A group of profiling objects, which becomes their category in the trace.

    Args:
        name: its name.

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
        """Create a :class:`Task` of this domain."""
        return Task(self, name)

    def new_frame(self, name: str) -> Frame:
        """Create a :class:`Frame` of this domain."""
        return Frame(self, name)

    def new_counter(self, name: str, value: float | None = None) -> Counter:
        """Create a :class:`Counter` of this domain."""
        return Counter(self, name, value)

    def new_marker(self, name: str) -> Marker:
        """Create a :class:`Marker` of this domain."""
        return Marker(self, name)


class _Timed:
    """Base class of objects with a start and an end; also a context manager."""

    _kind = ""

    def __init__(self, name: str, category: str) -> None:
        self.name = name
        self._category = category
        self._start: float | None = None

    def __str__(self) -> str:
        return self.name

    def start(self) -> None:
        """Start."""
        self._start = perf_counter()

    def stop(self) -> None:
        """Stop, and record the span if the profiler runs.

        Raises:
            RuntimeError: the object was not started.
        """
        if self._start is None:
            raise RuntimeError(f"{self._kind} {self.name!r} was stopped before it was started: call start() first")
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
        domain: its domain.
        name: its name.
    """

    _kind = "task"

    def __init__(self, domain: Domain, name: str) -> None:
        super().__init__(name, domain.name)
        self.domain = domain


class Frame(Task):
    """One of a series of tasks, such as a batch, from :meth:`start` to :meth:`stop`."""

    _kind = "frame"


class Event(_Timed):
    """A piece of work without a domain, from :meth:`start` to :meth:`stop`.

    Args:
        name: its name.
    """

    _kind = "event"

    def __init__(self, name: str) -> None:
        super().__init__(name, "event")


class Counter:
    """A number that changes over time.

    Args:
        domain: its domain.
        name: its name.
        value: its initial value; None: 0, which is not recorded.
    """

    def __init__(self, domain: Domain, name: str, value: float | None = None) -> None:
        self.domain, self.name = domain, name
        self._value: float = 0
        if value is not None:
            self.set_value(value)

    def __str__(self) -> str:
        return self.name

    def set_value(self, value: float) -> None:
        """Set the value."""
        self._value = value
        if recorder.running:
            recorder.changes.append(Change(self.name, self.domain.name, perf_counter(), value))

    def increment(self, delta: float = 1) -> None:
        """Add to the value."""
        self.set_value(self._value + delta)

    def decrement(self, delta: float = 1) -> None:
        """Subtract from the value."""
        self.set_value(self._value - delta)

    def __iadd__(self, delta: float) -> Counter:
        self.increment(delta)
        return self

    def __isub__(self, delta: float) -> Counter:
        self.decrement(delta)
        return self


class Marker:
    """A marker for instants in the trace.

    Args:
        domain: its domain.
        name: its name.
    """

    def __init__(self, domain: Domain, name: str) -> None:
        self.domain, self.name = domain, name

    def __str__(self) -> str:
        return self.name

    def mark(self, scope: str = "process") -> None:
        """Mark this moment.

        Args:
            scope: its scope: ``"global"``, ``"process"``, ``"thread"``, ``"task"`` or ``"marker"``.

        Raises:
            ValueError: the scope is invalid.
        """
        if scope not in _REACH:
            raise ValueError(f"mark: scope is {scope!r}, expected one of {list(_REACH)}")
        if recorder.running:
            recorder.marks.append(Mark(self.name, self.domain.name, _REACH[scope], local.thread, perf_counter()))


@contextlib.contextmanager
def scope(name: str = "<unk>:", append_mode: bool = True) -> Iterator[None]:
    """Set the scope name that the trace shows for operations pushed inside the ``with`` block.

    Scopes are local to asyncio tasks.

    Args:
        name: the name; MXNet's names end in a colon.
        append_mode: whether to append it to the name of the outer scope, instead of replacing that.
    """
    name = name if name.endswith(":") else f"{name}:"
    with frame_scope(scope_name, Value(scope_name.get().value + name if append_mode else name)):
        yield
