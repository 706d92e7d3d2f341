"""Tracebacks of programs, with the frames of flowmx itself folded: the user's own lines and the error remain."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from flowmx import settings

__all__ = ["folded", "show"]

_PACKAGES = ("flowmx", "flowmx.comm", "flowmx.devices", "flowmx.ops")
"""The packages whose frames are folded; in a checkout each has a folder of its own."""


class _Stack(traceback.StackSummary):
    """Frames, some of which stand for several that are folded."""

    def format_frame_summary(self, frame_summary: traceback.FrameSummary) -> str:
        if frame_summary.filename:
            return super().format_frame_summary(frame_summary)
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


def _folded(frames: Iterable[traceback.FrameSummary], folders: tuple[str, ...]) -> traceback.StackSummary:
    frames = list(frames)
    own = [os.path.realpath(each.filename).startswith(folders) for each in frames]
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
