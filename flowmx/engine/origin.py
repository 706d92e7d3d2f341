"""The origin of an operation: the user's file and line, and the layer.

Captured at every push, so it must cost little: what is kept is the code object and the position in it
(0.3 µs); the line and its text are looked up only when an error is reported.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from types import CodeType, FrameType

_ROOTS = tuple(
    str(Path(__file__).resolve().parents[2] / folder) + "/" for folder in ("flowmx", "devices", "ops", "comm")
)
# Standard-library wrappers through which flowmx itself is called; never the user's line.
_THROUGH = ("contextlib.py", "functools.py")

_internal: dict[str, bool] = {}
_layer: ContextVar[str | None] = ContextVar("flowmx_layer", default=None)
_layers_in_use = False
names_layers = 0
"""Number of users (profiler, plan, ...) that currently need blocks to name the layers of pushed operations."""


Origin = tuple[CodeType | None, int, str | None]
"""A code object, the position in it, and the layer: what is captured at a push."""


def lookup(origin: Origin) -> tuple[str, int, str] | None:
    """File, line and function name of a place, or None where it is not known."""
    code, position, _ = origin
    if code is None:
        return None
    line = code.co_firstlineno
    for start, stop, number in code.co_lines():
        if start <= position < stop and number is not None:
            line = number
            break
    return code.co_filename, line, code.co_name


def describe(origin: Origin | None) -> str:
    """For a message: ``file:line in function: text of the line``."""
    place = lookup(origin) if origin is not None else None
    if place is None:
        return "an unknown place"
    filename, line, function = place
    text = linecache.getline(filename, line).strip()
    return f"{filename}:{line} in {function}" + (f": {text}" if text else "")


def is_internal(filename: str) -> bool:
    """Tell whether a file belongs to flowmx, so that it is never reported as the user's line."""
    known = _internal[filename] = filename.startswith(_ROOTS) or filename.endswith(_THROUGH)
    return known


def user_frame(depth: int = 1) -> FrameType | None:
    """The innermost frame of the caller's stack that is not flowmx's own."""
    frame: FrameType | None = sys._getframe(depth)
    internal = _internal
    while frame is not None:
        filename = frame.f_code.co_filename
        known = internal.get(filename)
        if known is None:
            known = is_internal(filename)
        if not known:
            return frame
        frame = frame.f_back
    return None


def is_called_by_user(depth: int = 2) -> bool:
    """Tell whether the frame ``depth`` levels above is the user's code (2: the caller of the caller)."""
    filename = sys._getframe(depth).f_code.co_filename
    known = _internal.get(filename)
    return not (is_internal(filename) if known is None else known)


def warn_user(message: str, once: set[tuple[str, int]], category: type[Warning] = UserWarning) -> None:
    """Warn at the user's line, once for each line.

    Args:
        message: what is wrong, and what to do.
        once: the lines that were warned of before; this one is added.
        category: the warning's class.
    """
    frame = user_frame(2)
    place = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("?", 0)
    if place not in once:
        once.add(place)
        warnings.warn_explicit(message, category, *place)


def capture(depth: int = 2) -> Origin:
    """The user's place and layer, seen from ``depth`` frames up (2: the caller of the caller)."""
    frame: FrameType | None = sys._getframe(depth)
    internal = _internal
    while frame is not None:
        code = frame.f_code
        known = internal.get(code.co_filename)
        if known is None:
            known = is_internal(code.co_filename)
        if not known:
            return (code, frame.f_lasti, _layer.get() if _layers_in_use else None)
        frame = frame.f_back
    return (None, 0, None)


@contextlib.contextmanager
def layer_scope(name: str, fresh: bool = False) -> Iterator[None]:
    """Operations pushed inside belong to the layer ``name``; scopes nest as ``outer/inner``, unless it is ``fresh``."""
    global _layers_in_use
    _layers_in_use = True
    outer = None if fresh else _layer.get()
    token = _layer.set(f"{outer}/{name}" if outer else name)
    try:
        yield
    finally:
        _layer.reset(token)


def current_layer() -> str | None:
    """The layer that operations pushed here would belong to."""
    return _layer.get()
