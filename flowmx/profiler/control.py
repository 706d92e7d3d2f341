"""MXNet's functions of the profiler: configuration, start and stop, and output."""

from __future__ import annotations

import atexit
import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

from flowmx import settings
from flowmx.engine import waitall
from flowmx.engine.runtime import engine
from flowmx.errors import UnknownName, UnknownOption
from flowmx.profiler.recorder import recorder
from flowmx.profiler.tables import COLUMNS, KINDS, aggregated, ordered, sections, table
from flowmx.profiler.tensorboard import scalars, write_events
from flowmx.profiler.trace import document
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
    """Say what is recorded, and where to.

    Args:
        **kwargs: ``filename``: the file that :func:`dump` writes, by default ``profile.json``; ``profile_all``: all;
            ``profile_symbolic``, ``profile_imperative``, ``profile_memory``: the operators of bound and hybridized
            graphs, other operations, the memory in use (where none of these is given, all are recorded, and where one
            is, those that are true). MXNet's others (``profile_api``, ``aggregate_stats``, ...) are taken and change
            nothing.

    Raises:
        TypeError: there is no such argument.
    """
    global _filename
    unknown = sorted(set(kwargs) - {"filename", *_FLAGS})
    if unknown:
        raise UnknownOption(f"set_config: there is no argument {unknown[0]!r}, expected filename or one of {_FLAGS}")
    if kwargs.get("filename"):
        _filename = os.fspath(kwargs["filename"])
    if {"profile_all", *_KINDS} & set(kwargs):
        everything = bool(kwargs.get("profile_all")) or not any(kwargs.get(flag) for flag in _KINDS)
        for flag, kind in _KINDS.items():
            setattr(recorder, kind, everything or bool(kwargs.get(flag)))


def set_state(state: str = "stop", profile_process: str = "worker") -> None:
    """Begin or end to record.

    Args:
        state: ``"run"`` or ``"stop"``.
        profile_process: ``"worker"``, this process; servers are not recorded.

    Raises:
        ValueError: another state, or process.
    """
    if state not in ("run", "stop"):
        raise UnknownName(f"set_state: state is {state!r}, expected 'run' or 'stop'")
    _check("set_state", profile_process)
    if state == "run":
        recorder.start()
    elif recorder.running:
        waitall()  # what was pushed meanwhile belongs to it
        recorder.stop()


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
        recorder.stop()
    found = document(
        recorder.records.copy(), recorder.spans.copy(), recorder.marks.copy(), recorder.changes.copy(), os.getpid()
    )
    replace_file(_filename, [json.dumps(found).encode()])


def dump_tensorboard(logdir: str | os.PathLike[str]) -> Path:
    """Write memory, counters and the tables as scalars for TensorBoard; blocks until all operations are done.

    Args:
        logdir: the folder that ``tensorboard --logdir`` is given.

    Returns:
        The path of the event file.
    """
    waitall()
    offset = time.time() - time.perf_counter()
    return write_events(
        logdir, scalars(recorder.records.copy(), recorder.spans.copy(), recorder.changes.copy(), offset)
    )


def dumps(
    reset: bool = False, format: str = "table", sort_by: str = "total", ascending: bool = False, by: str = "operator"
) -> str:
    """The times of all operations of one name together; blocks until all are done.

    Args:
        reset: forget what was recorded.
        format: ``"table"`` or ``"json"``: an object with the parts ``Time`` (of operators, and by what domains the user
            has), ``Memory`` (of devices) and ``Unit``, as MXNet's.
        sort_by: ``"total"``, ``"avg"``, ``"min"``, ``"max"`` or ``"count"``.
        ascending: the least first.
        by: ``"operator"`` or ``"layer"``. What belongs to several layers (a fused chain) has a row of its own.

    Raises:
        ValueError: another format, order or kind.
    """
    for name, given, allowed in (
        ("format", format, ["table", "json"]), ("sort_by", sort_by, list(COLUMNS)), ("by", by, list(KINDS)),
    ):  # fmt: skip
        if given not in allowed:
            raise ValueError(f"dumps: {name} is {given!r}, expected one of {allowed}")
    waitall()
    records, spans, changes = recorder.records.copy(), recorder.spans.copy(), recorder.changes.copy()
    if reset:
        recorder.forget()
    if format == "json":
        return json.dumps(sections(records, spans, changes, by, sort_by, ascending))
    return table(ordered(aggregated(records, spans, by), sort_by, ascending), by)


def get_summary(reset: bool = False, format: str = "table", sort_by: str = "total", ascending: bool = False) -> str:
    """The newer name of :func:`dumps`."""
    return dumps(reset, format, sort_by, ascending)


def _check(what: str, process: str) -> None:
    if process != "worker":
        raise ValueError(f"{what}: profile_process is {process!r}, expected 'worker': servers are not recorded")


# -- old names -------------------------------------------------------------------------------------------------


def set_kvstore_handle(handle: Any) -> None:
    """Kept for MXNet's scripts: servers are not recorded."""


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


# -- settings ------------------------------------------------------------------------------------------------


_started = False


def _follow(config: settings.Settings) -> None:
    """Record from the first push on, where the settings say so."""
    global _started
    if config.profiler_autostart and not _started:
        _started = True
        set_config(profile_all=config.profiler_mode == 1, profile_symbolic=True, profile_memory=True)
        recorder.start()


engine.followers.append(_follow)


@atexit.register
def _at_exit() -> None:
    """A program that ends while it is recorded leaves its trace."""
    if recorder.running:
        dump()
