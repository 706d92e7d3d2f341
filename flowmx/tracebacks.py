"""Tracebacks with the frames of flowmx folded, so that the user's lines and the error remain."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from flowmx import settings
from flowmx.foreign_names import call_advice

__all__ = ["fold_in_ipython", "format_folded", "show"]

_PACKAGES = ("flowmx", "flowmx.comm", "flowmx.devices", "flowmx.ops")
"""The packages whose frames are folded; in a checkout they are separate folders."""


_LIBRARY = f"{os.path.realpath(sysconfig.get_path('stdlib'))}{os.sep}"
"""The standard library; its frames are folded if they are adjacent to frames of flowmx."""


class _Stack(traceback.StackSummary):
    """A stack summary with placeholders for folded frames."""

    def format_frame_summary(self, frame_summary: traceback.FrameSummary, **options: object) -> str:
        """Format a frame; Python 3.13 passes options."""
        if frame_summary.filename:
            return super().format_frame_summary(frame_summary, **options)
        return f"  [{frame_summary.name}; FLOWMX_TRACEBACKS=full shows them]\n"


def format_folded(error: BaseException, trace: TracebackType | None = None) -> str:
    """Return the text of an exception and its causes, with consecutive frames of flowmx folded into one line.

    A traceback without other frames is not folded.

    Args:
        error: the exception.
        trace: the traceback to use instead of the exception's.
    """
    summary = traceback.TracebackException(type(error), error, error.__traceback__ if trace is None else trace)
    if _is_enabled():
        _fold_all(summary, _folders(), set())
    return "".join(summary.format())


def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an exception to stderr; a ``sys.excepthook``."""
    _add_advice(error)
    sys.stderr.write(format_folded(error, trace))
    sys.stderr.flush()


def _add_advice(error: BaseException) -> None:
    """Add a note to a TypeError of a function call with an argument of another library."""
    advice = call_advice(str(error)) if isinstance(error, TypeError) else ""
    if advice and not any(advice in note for note in getattr(error, "__notes__", ())):
        error.add_note(f"flowmx: {advice}")


def fold_in_ipython(shell: object = None) -> None:
    """Omit the frames of flowmx in tracebacks of an IPython shell or kernel, in any style.

    Args:
        shell: the shell (default: the running one, if any).
    """
    if shell is None:
        ipython = sys.modules.get("IPython")
        shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    writer = getattr(shell, "InteractiveTB", None)
    if writer is None or getattr(writer.structured_traceback, "folds", False):
        return
    write = writer.structured_traceback

    def lines(kind: Any = None, error: Any = None, trace: Any = None, *args: Any, **options: Any) -> Any:
        if error is None or not isinstance(error, BaseException) or not _is_enabled():
            return write(kind, error, trace, *args, **options)
        return _lines(lambda shortened: write(kind, error, shortened, *args, **options), error, trace)

    vars(lines)["folds"] = True
    writer.structured_traceback = lines


def _lines(write: Callable[[Any], list[str]], error: BaseException, trace: TracebackType | None) -> list[str]:
    """Return the lines of a traceback without frames of flowmx, and a line with their number."""
    chain, folders, count = _chain(error), _folders(), 0
    originals = [member.__traceback__ for member in chain]
    try:
        for member in chain:
            member.__traceback__, omitted = _without(member.__traceback__, folders)
            count += omitted
        lines = write(_without(trace, folders)[0])
    finally:
        for member, original in zip(chain, originals, strict=True):  # debuggers need all frames
            member.__traceback__ = original
    return [*lines, f"[{count} frames of flowmx are omitted; FLOWMX_TRACEBACKS=full shows them]"] if count else lines


def _chain(error: BaseException) -> list[BaseException]:
    """Return an exception with its causes and contexts."""
    chain: list[BaseException] = []
    pending: list[BaseException | None] = [error]
    while pending:
        member = pending.pop()
        if member is not None and not any(member is other for other in chain):
            chain.append(member)
            pending += [member.__cause__, member.__context__]
    return chain


def _without(trace: TracebackType | None, folders: tuple[str, ...]) -> tuple[TracebackType | None, int]:
    """Return a traceback without frames of flowmx, and their number; a traceback without other frames is unchanged."""
    entries: list[TracebackType] = []
    while trace is not None:
        entries.append(trace)
        trace = trace.tb_next
    others = [
        entry for entry in entries
        if not os.path.realpath(entry.tb_frame.f_code.co_filename).startswith(folders)
    ]  # fmt: skip
    if not others:
        return (entries[0] if entries else None), 0
    shortened: TracebackType | None = None
    for entry in reversed(others):
        shortened = TracebackType(shortened, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return shortened, len(entries) - len(others)


def _is_enabled() -> bool:
    try:
        return settings.get().tracebacks == "folded"
    except settings.SettingError:  # possibly the error to report
        return False


def _folders() -> tuple[str, ...]:
    # In a checkout, flowmx.__path__ also contains the root of the repository.
    files = [getattr(sys.modules.get(name), "__file__", None) for name in _PACKAGES]
    return tuple(f"{os.path.realpath(Path(file).parent)}{os.sep}" for file in files if file)


def _fold_all(summary: traceback.TracebackException, folders: tuple[str, ...], visited: set[int]) -> None:
    if id(summary) in visited:
        return
    visited.add(id(summary))
    summary.stack = _fold(summary.stack, folders)
    for related in (summary.__cause__, summary.__context__, *(summary.exceptions or [])):
        if related is not None:
            _fold_all(related, folders, visited)


def _is_library(filename: str) -> bool:
    path = os.path.realpath(filename)
    return (path.startswith(_LIBRARY) and "site-packages" not in path) or filename.startswith("uvloop")


def _fold(frames: Iterable[traceback.FrameSummary], folders: tuple[str, ...]) -> traceback.StackSummary:
    frames = list(frames)
    folds = [os.path.realpath(frame.filename).startswith(folders) for frame in frames]
    library = [_is_library(frame.filename) for frame in frames]
    for order in (range(1, len(frames)), range(len(frames) - 2, -1, -1)):  # after a frame of flowmx, and before one
        step = order.step
        for at in order:
            folds[at] = folds[at] or (library[at] and folds[at - step])
    if all(folds):
        return traceback.StackSummary.from_list(frames)
    result: list[traceback.FrameSummary] = []
    count = 0
    for at, (frame, is_folded) in enumerate(zip(frames, folds, strict=True)):
        count = count + 1 if is_folded else 0
        if not is_folded:
            result.append(frame)
        elif at + 1 == len(frames) or not folds[at + 1]:
            name = f"{count} frames of flowmx" if count > 1 else "a frame of flowmx"
            result.append(traceback.FrameSummary("", at, name, lookup_line=False))
    return _Stack(result)
