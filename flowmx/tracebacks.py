"""Tracebacks of programs, with the frames of flowmx itself folded: the user's own lines and the error remain."""

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

__all__ = ["fold_in_ipython", "folded", "show"]

_PACKAGES = ("flowmx", "flowmx.comm", "flowmx.devices", "flowmx.ops")
"""The packages whose frames are folded; in a checkout each has a folder of its own."""


_LIBRARY = f"{os.path.realpath(sysconfig.get_path('stdlib'))}{os.sep}"
"""The standard library, whose frames are folded with those of flowmx beside them."""


class _Stack(traceback.StackSummary):
    """Frames, some of which stand for several that are folded."""

    def format_frame_summary(self, frame_summary: traceback.FrameSummary, **options: Any) -> str:
        """The text of a frame; Python 3.13 has options for it."""
        if frame_summary.filename:
            return super().format_frame_summary(frame_summary, **options)
        return f"  [{frame_summary.name}; FLOWMX_TRACEBACKS=full shows them]\n"


def folded(error: BaseException, trace: TracebackType | None = None) -> str:
    """The text of an exception and of those that led to it, in which a line stands for frames of flowmx in a row.

    A traceback that has no other frames is left whole.

    Args:
        error: the exception.
        trace: its traceback, where that is another than its own.
    """
    told = traceback.TracebackException(type(error), error, error.__traceback__ if trace is None else trace)
    if _is_wanted():
        _fold_all(told, _folders(), set())
    return "".join(told.format())


def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an exception on the error output (a ``sys.excepthook``)."""
    sys.stderr.write(folded(error, trace))
    sys.stderr.flush()


def fold_in_ipython(shell: Any = None) -> None:
    """Leave them out of the tracebacks of an IPython shell or kernel too, in whatever style it writes them.

    Args:
        shell: None: that which runs here, if one does.
    """
    if shell is None:
        ipython = sys.modules.get("IPython")
        shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    writer = getattr(shell, "InteractiveTB", None)
    if writer is None or getattr(writer.structured_traceback, "folds", False):
        return
    write = writer.structured_traceback

    def lines(kind: Any = None, error: Any = None, trace: Any = None, *args: Any, **options: Any) -> Any:
        if error is None or not isinstance(error, BaseException) or not _is_wanted():
            return write(kind, error, trace, *args, **options)
        return _lines(lambda kept: write(kind, error, kept, *args, **options), error, trace)

    lines.folds = True  # type: ignore[attr-defined]
    writer.structured_traceback = lines


def _lines(write: Callable[[Any], list[str]], error: BaseException, trace: TracebackType | None) -> list[str]:
    """The lines that are written of a traceback, and how many frames were left out."""
    chain, folders, count = _chain(error), _folders(), 0
    whole = [each.__traceback__ for each in chain]
    try:
        for each in chain:
            each.__traceback__, left_out = _without(each.__traceback__, folders)
            count += left_out
        lines = write(_without(trace, folders)[0])
    finally:
        for each, before in zip(chain, whole, strict=True):  # a debugger sees all
            each.__traceback__ = before
    return [*lines, f"[{count} frames of flowmx are left out; FLOWMX_TRACEBACKS=full shows them]"] if count else lines


def _chain(error: BaseException) -> list[BaseException]:
    """An exception and those that led to it."""
    found: list[BaseException] = []
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and not any(each is other for other in found):
            found.append(each)
            left += [each.__cause__, each.__context__]
    return found


def _without(trace: TracebackType | None, folders: tuple[str, ...]) -> tuple[TracebackType | None, int]:
    """A traceback without frames of flowmx, and their number; one that has few others is left whole."""
    entries: list[TracebackType] = []
    while trace is not None:
        entries.append(trace)
        trace = trace.tb_next
    kept = [each for each in entries if not os.path.realpath(each.tb_frame.f_code.co_filename).startswith(folders)]
    if not kept:
        return (entries[0] if entries else None), 0
    made: TracebackType | None = None
    for each in reversed(kept):
        made = TracebackType(made, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return made, len(entries) - len(kept)


def _is_wanted() -> bool:
    try:
        return settings.get().tracebacks == "folded"
    except settings.SettingError:  # what ends the program, perhaps
        return False


def _folders() -> tuple[str, ...]:
    # In a checkout flowmx.__path__ holds the whole repository too.
    files = [getattr(sys.modules.get(name), "__file__", None) for name in _PACKAGES]
    return tuple(f"{os.path.realpath(Path(file).parent)}{os.sep}" for file in files if file)


def _fold_all(told: traceback.TracebackException, folders: tuple[str, ...], seen: set[int]) -> None:
    if id(told) in seen:
        return
    seen.add(id(told))
    told.stack = _folded(told.stack, folders)
    for each in (told.__cause__, told.__context__, *(told.exceptions or [])):
        if each is not None:
            _fold_all(each, folders, seen)


def _is_library(filename: str) -> bool:
    path = os.path.realpath(filename)
    return (path.startswith(_LIBRARY) and "site-packages" not in path) or filename.startswith("uvloop")


def _folded(frames: Iterable[traceback.FrameSummary], folders: tuple[str, ...]) -> traceback.StackSummary:
    frames = list(frames)
    own = [os.path.realpath(each.filename).startswith(folders) for each in frames]
    library = [_is_library(each.filename) for each in frames]
    for order in (range(1, len(frames)), range(len(frames) - 2, -1, -1)):  # after a frame of flowmx, and before one
        step = order.step
        for at in order:
            own[at] = own[at] or (library[at] and own[at - step])
    if all(own):
        return traceback.StackSummary.from_list(frames)
    found: list[traceback.FrameSummary] = []
    count = 0
    for at, (frame, is_own) in enumerate(zip(frames, own, strict=True)):
        count = count + 1 if is_own else 0
        if not is_own:
            found.append(frame)
        elif at + 1 == len(frames) or not own[at + 1]:
            name = f"{count} frames of flowmx" if count > 1 else "a frame of flowmx"
            found.append(traceback.FrameSummary("", at, name, lookup_line=False))
    return _Stack(found)
