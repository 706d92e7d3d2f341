"""The origin of an operation: the user's file and line, and the layer.

It is captured at every push, so it must be cheap: only the code object and the position in it are stored (0.3 µs). The
line and its text are looked up when an error is reported.
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

from flowmx.scopes import Value, enter, leave

_ROOTS = tuple(
    str(Path(__file__).resolve().parents[2] / folder) + "/" for folder in ("flowmx", "devices", "ops", "comm")
)
# Standard-library wrappers through which flowmx calls itself; never the user's line.
_WRAPPER_MODULES = ("contextlib.py", "functools.py")

_internal: dict[str, bool] = {}
_layer: ContextVar[Value[str | None]] = ContextVar("flowmx_layer", default=Value(None))  # noqa: B039
_layers_in_use = False
layer_name_users = 0
"""The number of users (profiler, plan, ...) for which blocks name the layers of pushed operations."""


Origin = tuple[CodeType | None, int, str | None]
"""A code object, the position in it, and the layer, as captured at a push."""


def lookup(origin: Origin) -> tuple[str, int, str] | None:
    """Return the file, line and function name of an origin, or None if it is unknown."""
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
    """Return ``file:line in function: text of the line``, for messages."""
    place = lookup(origin) if origin is not None else None
    if place is None:
        return "an unknown place"
    filename, line, function = place
    text = linecache.getline(filename, line).strip()
    return f"{filename}:{line} in {function}" + (f": {text}" if text else "")


def is_internal(filename: str) -> bool:
    """Return whether a file belongs to flowmx and so is never reported as the user's line."""
    is_flowmx = _internal[filename] = filename.startswith(_ROOTS) or filename.endswith(_WRAPPER_MODULES)
    return is_flowmx


def user_frame(depth: int = 1) -> FrameType | None:
    """Return the innermost frame of the caller's stack that is outside flowmx."""
    frame: FrameType | None = sys._getframe(depth)
    internal = _internal
    while frame is not None:
        filename = frame.f_code.co_filename
        is_flowmx = internal.get(filename)
        if is_flowmx is None:
            is_flowmx = is_internal(filename)
        if not is_flowmx:
            return frame
        frame = frame.f_back
    return None


def is_called_by_user(depth: int = 2) -> bool:
    """Return whether the frame ``depth`` levels above is user code (2: the caller of the caller)."""
    filename = sys._getframe(depth).f_code.co_filename
    is_flowmx = _internal.get(filename)
    return not (is_internal(filename) if is_flowmx is None else is_flowmx)


def warn_user(message: str, warned: set[tuple[str, int]], category: type[Warning] = UserWarning) -> None:
    """Warn at the user's line, once for each line.

    Args:
        message: the problem, and what to do.
        warned: lines with an earlier warning; this line is added.
        category: the warning's class.
    """
    frame = user_frame(2)
    place = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("?", 0)
    if place not in warned:
        warned.add(place)
        warnings.warn_explicit(message, category, *place)


def capture(depth: int = 2) -> Origin:
    """Return the user's place and layer, seen from ``depth`` frames up (2: the caller of the caller)."""
    frame: FrameType | None = sys._getframe(depth)
    internal = _internal
    while frame is not None:
        code = frame.f_code
        is_flowmx = internal.get(code.co_filename)
        if is_flowmx is None:
            is_flowmx = is_internal(code.co_filename)
        if not is_flowmx:
            return (code, frame.f_lasti, _layer.get().value if _layers_in_use else None)
        frame = frame.f_back
    return (None, 0, None)


@contextlib.contextmanager
def layer_scope(name: str, fresh: bool = False) -> Iterator[None]:
    """Put operations pushed inside into the layer ``name``; scopes nest as ``outer/inner``, unless ``fresh`` is set."""
    global _layers_in_use
    _layers_in_use = True
    outer = None if fresh else _layer.get().value
    frame = enter(_layer, Value(f"{outer}/{name}" if outer else name))
    try:
        yield
    finally:
        leave(_layer, frame)


def current_layer() -> str | None:
    """Return the layer that operations pushed here belong to."""
    return _layer.get().value
