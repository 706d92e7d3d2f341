"""The bounds on a chat template, which is untrusted code: its steps, its time, and the texts that it creates."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import wraps
from types import FrameType
from typing import Any

__all__ = ["ChatTemplateError", "bounded", "check_length", "counted", "counting", "join"]

_MAX_STEPS = 200_000
"""The maximum number of lines of compiled code that one rendering executes."""
_MAX_SECONDS = 5.0
"""The maximum processor time of one rendering."""
_MAX_TEXT = 1 << 21
"""The maximum length of a text."""
_MAX_TOTAL = 1 << 26
"""The maximum length of all texts that one rendering creates."""
_created = threading.local()
"""The number of characters that the rendering of this thread has created."""


class ChatTemplateError(ValueError):
    """A chat template is invalid, refuses a chat, or does not end."""


def bounded(render: Callable[[], str]) -> str:
    """Return a rendering; end it after too many steps."""
    steps, end = 0, time.thread_time() + _MAX_SECONDS
    _created.characters = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal steps
        if frame.f_code.co_filename != "<template>":
            return None  # Jinja's own code is not traced
        steps += 1
        if steps > _MAX_STEPS:
            raise ChatTemplateError(f"the chat template takes more than {_MAX_STEPS} steps")
        if time.thread_time() > end:
            raise ChatTemplateError(f"the chat template takes more than {_MAX_SECONDS:g} s")
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        return render()
    finally:
        sys.settrace(previous)


def join(texts: Iterable[str]) -> str:
    """Return the texts, one after the other."""
    parts, length = [], 0
    for text in texts:
        length += len(text)
        check_length(length)
        parts.append(text)
    return "".join(parts)


def check_length(length: int) -> None:
    """Count the characters of a new text, and refuse one that is too long."""
    if length > _MAX_TEXT:
        raise ChatTemplateError(f"the chat template makes a text of {length} characters, expected at most {_MAX_TEXT}")
    _created.characters = total = getattr(_created, "characters", 0) + max(length, 0)
    if total > _MAX_TOTAL:
        raise ChatTemplateError(f"the chat template makes texts of more than {_MAX_TOTAL} characters")


def counted(result: Any) -> Any:
    """Count the characters of a result that is a text; return it."""
    if isinstance(result, str):
        check_length(len(result))
    return result


def counting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter whose results are counted."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return counted(function(*args, **kwargs))

    return call
