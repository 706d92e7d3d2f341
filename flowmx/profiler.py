"""``mx.profiler``: when each operation ran, and on which thread, as a trace and as a table.

Example:
    >>> mx.profiler.set_config(filename="profile.json")
    >>> mx.profiler.set_state("run")
    >>> train()
    >>> mx.profiler.set_state("stop")
    >>> mx.profiler.dump()      # for chrome://tracing or https://ui.perfetto.dev

Recorded are the operations that are pushed while it runs; a graph is one. Otherwise this costs nothing.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
import warnings
from collections import defaultdict
from typing import Any, NamedTuple

from flowmx.engine import Operation, waitall
from flowmx.engine.runtime import engine
from flowmx.serialization.atomic import replace_file

__all__ = [
    "dump", "dump_profile", "dumps", "pause", "profiler_set_config", "profiler_set_state", "resume", "set_config",
    "set_state",
]  # fmt: skip

_FLAGS = (
    "profile_all", "profile_symbolic", "profile_imperative", "profile_memory", "profile_api", "aggregate_stats",
    "continuous_dump", "contiguous_dump", "dump_period", "profile_process", "xplane_dump",
)  # fmt: skip
_COLUMNS = {"count": "Count", "total": "Total (ms)", "min": "Min (ms)", "max": "Max (ms)", "avg": "Avg (ms)"}


class _Span(NamedTuple):
    """One operation.

    Attributes:
        name: the operation's.
        actor: the device's queue that it came from.
        thread: the thread that ran it.
        start: when it began, in seconds.
        seconds: how long it took.
    """

    name: str
    actor: str
    thread: int
    start: float
    seconds: float


class _Recorder:
    """Times what is pushed while it is on."""

    def __init__(self) -> None:
        self.filename = "profile.json"
        self.events: list[_Span] = []
        self.running = False

    def start(self) -> None:
        self.running = True
        engine.use_watch(self._watch, "times")

    def stop(self) -> None:
        self.running = False
        engine.use_watch(None, "times")

    def _watch(self, op: Operation) -> None:
        """Let an operation that is about to be pushed be timed when it runs, wherever that is."""
        function, name, actor = op.function, op.name, op.actor.name

        def timed(*arguments: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self._note(name, actor, start)

        async def timed_coroutine(*arguments: Any) -> Any:
            start = time.perf_counter()
            try:
                return await function(*arguments)
            finally:
                self._note(name, actor, start)

        op.function = timed_coroutine if op.is_coroutine else timed

    def _note(self, name: str, actor: str, start: float) -> None:
        self.events.append(_Span(name, actor, threading.get_ident(), start, time.perf_counter() - start))


_recorder = _Recorder()


def set_config(**kwargs: Any) -> None:
    """Say what is recorded, and where to.

    Args:
        **kwargs: ``filename``: the file that :func:`dump` writes, by default ``profile.json``. MXNet's others
            (``profile_all``, ``profile_memory``, ``aggregate_stats``, ...) are taken and change nothing: all operations
            are recorded, their times alone.

    Raises:
        TypeError: there is no such argument.
    """
    unknown = sorted(set(kwargs) - {"filename", *_FLAGS})
    if unknown:
        raise TypeError(f"set_config: there is no argument {unknown[0]!r}, expected filename or one of {_FLAGS}")
    if kwargs.get("filename"):
        _recorder.filename = os.fspath(kwargs["filename"])


def set_state(state: str = "stop", profile_process: str = "worker") -> None:
    """Begin or end to record.

    Args:
        state: ``"run"`` or ``"stop"``.
        profile_process: ``"worker"``, this process; servers are not recorded.

    Raises:
        ValueError: another state, or process.
    """
    if state not in ("run", "stop"):
        raise ValueError(f"set_state: state is {state!r}, expected 'run' or 'stop'")
    _check("set_state", profile_process)
    if state == "run":
        _recorder.start()
    elif _recorder.running:
        waitall()  # what was pushed meanwhile belongs to it
        _recorder.stop()


def pause(profile_process: str = "worker") -> None:
    """Record nothing until :func:`resume`."""
    _check("pause", profile_process)
    set_state("stop")


def resume(profile_process: str = "worker") -> None:
    """Go on recording."""
    _check("resume", profile_process)
    set_state("run")


def dump(finished: bool = True, profile_process: str = "worker") -> None:
    """Write the trace to its file; blocks until all operations are done.

    Args:
        finished: end the recording.
        profile_process: ``"worker"``, this process.
    """
    _check("dump", profile_process)
    waitall()
    if finished:
        _recorder.stop()
    document = {"traceEvents": _trace(_recorder.events), "displayTimeUnit": "ms"}
    replace_file(_recorder.filename, [json.dumps(document).encode()])


def _trace(events: list[_Span]) -> list[dict[str, Any]]:
    """The events in Chrome's format, by thread, with the threads' names."""
    process = os.getpid()
    names = {event.thread: event.actor for event in events}
    threads = [
        {"name": "thread_name", "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
        for thread, name in names.items()
    ]
    return threads + [
        {
            "name": event.name, "cat": "operation", "ph": "X", "ts": event.start * 1e6, "dur": event.seconds * 1e6,
            "pid": process, "tid": event.thread, "args": {"actor": event.actor},
        }
        for event in events
    ]  # fmt: skip


def dumps(reset: bool = False, format: str = "table", sort_by: str = "total", ascending: bool = False) -> str:
    """The times of all operations of one name together; blocks until all are done.

    Args:
        reset: forget what was recorded.
        format: ``"table"`` or ``"json"``.
        sort_by: ``"total"``, ``"avg"``, ``"min"``, ``"max"`` or ``"count"``.
        ascending: the least first.

    Raises:
        ValueError: another format or order.
    """
    if format not in ("table", "json"):
        raise ValueError(f"dumps: format is {format!r}, expected 'table' or 'json'")
    if sort_by not in _COLUMNS:
        raise ValueError(f"dumps: sort_by is {sort_by!r}, expected one of {list(_COLUMNS)}")
    waitall()
    rows = _aggregated(_recorder.events)
    rows = dict(sorted(rows.items(), key=lambda row: row[1][sort_by], reverse=not ascending))
    if reset:
        _recorder.events = []
    return json.dumps(rows) if format == "json" else _table(rows)


def _aggregated(events: list[_Span]) -> dict[str, dict[str, float]]:
    times: defaultdict[str, list[float]] = defaultdict(list)
    for event in events:
        times[event.name].append(event.seconds * 1e3)
    return {
        name: {
            "count": len(found), "total": sum(found), "min": min(found), "max": max(found),
            "avg": sum(found) / len(found),
        }
        for name, found in times.items()
    }  # fmt: skip


def _table(rows: dict[str, dict[str, float]]) -> str:
    width = max([len("Name"), *map(len, rows)])
    lines = [f"{'Name':<{width}}" + "".join(f"{title:>14}" for title in _COLUMNS.values())]
    for name, row in rows.items():
        numbers = [f"{row['count']:>14.0f}", *(f"{row[column]:>14.4f}" for column in _COLUMNS if column != "count")]
        lines.append(f"{name:<{width}}" + "".join(numbers))
    return "\n".join([*lines, ""])


def _check(what: str, process: str) -> None:
    if process != "worker":
        raise ValueError(f"{what}: profile_process is {process!r}, expected 'worker': servers are not recorded")


# -- old names -------------------------------------------------------------------------------------------------


def profiler_set_config(mode: str = "symbolic", filename: str = "profile.json") -> None:
    """The old form of :func:`set_config`."""
    warnings.warn("profiler_set_config is deprecated: use set_config", DeprecationWarning, stacklevel=2)
    set_config(filename=filename)


def profiler_set_state(state: str = "stop") -> None:
    """The old name of :func:`set_state`."""
    warnings.warn("profiler_set_state is deprecated: use set_state", DeprecationWarning, stacklevel=2)
    set_state(state)


def dump_profile() -> None:
    """The old form of :func:`dump`."""
    warnings.warn("dump_profile is deprecated: use dump", DeprecationWarning, stacklevel=2)
    dump()


@atexit.register
def _at_exit() -> None:
    """A program that ends while it is recorded leaves its trace."""
    if _recorder.running:
        dump()
