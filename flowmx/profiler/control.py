"""MXNet's profiler API: configuration, start and stop, output."""

from __future__ import annotations

import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

from flowmx import process_hooks, settings
from flowmx.engine.runtime import engine
from flowmx.errors import UnknownName, UnknownOption
from flowmx.profiler.aggregates import COLUMNS, KINDS, aggregate, sections, sort_rows, table
from flowmx.profiler.chrome_trace import document, text
from flowmx.profiler.recorder import recorder
from flowmx.profiler.tensorboard import scalars, write_events
from flowmx.serialization.atomic import replace_file

__all__ = [
    "dump", "dump_profile", "dump_tensorboard", "dumps", "get_summary", "pause", "profiler_set_config",
    "profiler_set_state", "resume", "set_config", "set_kvstore_handle", "set_state",
]  # fmt: skip

_KINDS = {"profile_symbolic": "symbolic", "profile_imperative": "imperative", "profile_memory": "memory"}
_FLAGS = (
    "profile_all", *_KINDS, "profile_api", "aggregate_stats", "continuous_dump", "contiguous_dump", "dump_period",
    "profile_process", "xplane_dump",
)  # fmt: skip

_filename = "profile.json"


def set_config(**kwargs: Any) -> None:
    """Configure what is recorded, and the output file.

    Args:
        **kwargs: ``filename``: the file that :func:`dump` writes (default ``profile.json``); ``profile_all``:
            everything; ``profile_symbolic``, ``profile_imperative``, ``profile_memory``: the operators of bound and
            hybridized graphs, other operations, the memory in use. By default everything is recorded; if one of these
            is passed, only the true ones are. MXNet's other flags (``profile_api``, ``aggregate_stats``, ...) are
            accepted and ignored.

    Raises:
        TypeError: an argument is unknown.
    """
    global _filename
    unknown = sorted(set(kwargs) - {"filename", *_FLAGS})
    if unknown:
        raise UnknownOption(f"set_config: unknown argument {unknown[0]!r}, expected filename or one of {_FLAGS}")
    if kwargs.get("filename"):
        _filename = os.fspath(kwargs["filename"])
    if {"profile_all", *_KINDS} & set(kwargs):
        everything = bool(kwargs.get("profile_all")) or not any(kwargs.get(flag) for flag in _KINDS)
        for flag, kind in _KINDS.items():
            setattr(recorder, kind, everything or bool(kwargs.get(flag)))


def set_state(state: str = "stop", profile_process: str = "worker") -> None:
    """Start or stop recording.

    Args:
        state: ``"run"`` or ``"stop"``.
        profile_process: ``"worker"``, this process; servers are not recorded.

    Raises:
        ValueError: the state or process is invalid.
    """
    if state not in ("run", "stop"):
        raise UnknownName(f"set_state: state is {state!r}, expected 'run' or 'stop'")
    _check("set_state", profile_process)
    if state == "run":
        recorder.start()
    elif recorder.running:
        engine.wait_all(throw=False)  # record all pushed operations; errors are raised where they are awaited
        recorder.stop()


def pause(profile_process: str = "worker") -> None:
    """Stop recording until :func:`resume`."""
    _check("pause", profile_process)
    set_state("stop")


def resume(profile_process: str = "worker") -> None:
    """Resume recording."""
    _check("resume", profile_process)
    set_state("run")


def dump(finished: bool = True, profile_process: str = "worker") -> None:
    """Write the trace to its file; block until all operations have completed.

    Args:
        finished: whether to stop recording.
        profile_process: ``"worker"``, this process.
    """
    _check("dump", profile_process)
    engine.wait_all(throw=False)
    if finished:
        recorder.stop()
    trace = document(
        recorder.records.copy(), recorder.spans.copy(), recorder.marks.copy(), recorder.changes.copy(), os.getpid()
    )
    replace_file(_filename, [text(trace)])


def dump_tensorboard(logdir: str | os.PathLike[str]) -> Path:
    """Write memory, counters and the tables as scalars for TensorBoard; block until all operations have completed.

    Args:
        logdir: the folder for ``tensorboard --logdir``.

    Returns:
        The path of the event file.
    """
    engine.wait_all(throw=False)
    offset = time.time() - time.perf_counter()
    return write_events(
        logdir, scalars(recorder.records.copy(), recorder.spans.copy(), recorder.changes.copy(), offset)
    )


def dumps(
    reset: bool = False, format: str = "table", sort_by: str = "total", ascending: bool = False, by: str = "operator"
) -> str:
    """Return aggregated times by operator or layer; block until all operations have completed.

    Args:
        reset: whether to discard the records afterwards.
        format: ``"table"`` or ``"json"``: an object with MXNet's sections ``Time`` (of operators and of the user's
            domains), ``Memory`` (of devices) and ``Unit``.
        sort_by: ``"total"``, ``"avg"``, ``"min"``, ``"max"`` or ``"count"``.
        ascending: whether to sort in ascending order.
        by: ``"operator"`` or ``"layer"``. A fused chain across layers has a separate row.

    Raises:
        ValueError: the format, the column or the kind is invalid.
    """
    for name, value, allowed in (
        ("format", format, ["table", "json"]), ("sort_by", sort_by, list(COLUMNS)), ("by", by, list(KINDS)),
    ):  # fmt: skip
        if value not in allowed:
            raise ValueError(f"dumps: {name} is {value!r}, expected one of {allowed}")
    engine.wait_all(throw=False)
    records, spans, changes = recorder.records.copy(), recorder.spans.copy(), recorder.changes.copy()
    if reset:
        recorder.clear()
    if format == "json":
        return json.dumps(sections(records, spans, changes, by, sort_by, ascending))
    return table(sort_rows(aggregate(records, spans, by), sort_by, ascending), by)


def get_summary(reset: bool = False, format: str = "table", sort_by: str = "total", ascending: bool = False) -> str:
    """Return the result of :func:`dumps`; this is MXNet's older name."""
    return dumps(reset, format, sort_by, ascending)


def _check(function: str, process: str) -> None:
    if process != "worker":
        raise ValueError(f"{function}: profile_process is {process!r}, expected 'worker': servers are not recorded")


# -- old names -------------------------------------------------------------------------------------------------


def set_kvstore_handle(handle: object) -> None:
    """Accept MXNet's call and do nothing: servers are not recorded."""


def profiler_set_config(mode: str = "symbolic", filename: str = "profile.json") -> None:
    """Call :func:`set_config`; this form is deprecated."""
    warnings.warn("profiler_set_config is deprecated: use set_config", DeprecationWarning, stacklevel=2)
    set_config(filename=filename)


def profiler_set_state(state: str = "stop") -> None:
    """Call :func:`set_state`; this name is deprecated."""
    warnings.warn("profiler_set_state is deprecated: use set_state", DeprecationWarning, stacklevel=2)
    set_state(state)


def dump_profile() -> None:
    """Call :func:`dump`; this form is deprecated."""
    warnings.warn("dump_profile is deprecated: use dump", DeprecationWarning, stacklevel=2)
    dump()


# -- settings ------------------------------------------------------------------------------------------------


_started = False


def _on_settings_changed(config: settings.Settings) -> None:
    """Start recording at the first push if the setting ``profiler_autostart`` is on."""
    global _started
    if config.profiler_autostart and not _started:
        _started = True
        set_config(profile_all=config.profiler_mode == 1, profile_symbolic=True, profile_memory=True)
        recorder.start()


engine.settings_listeners.append(_on_settings_changed)


def _at_exit() -> None:
    """Write the trace of a program that ends while it is recorded."""
    if recorder.running:
        dump()


process_hooks.at_exit(_at_exit)
