"""Where threads and tasks are: the user's line of each, and what a running operation stands at."""

from __future__ import annotations

import asyncio
import linecache
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from flowmx.engine.origin import is_internal
from flowmx.engine.running import Runner
from flowmx.engine.scheduler import Operation
from flowmx.engine.waiting import Waiting

__all__ = ["frames", "lines", "names", "running_in", "step_in", "task_lines", "waited_in", "walk"]

_DEPTH = 12
_WAIT = Waiting._wait.__code__
_LIBRARY = (str(Path(threading.__file__).parent), "<frozen")
_EXECUTE = {Runner.work.__code__, Runner.run_at_push.__code__, Runner.run_part.__code__}


def frames() -> dict[int, FrameType]:
    """The innermost frame of every thread, by its identity."""
    return sys._current_frames()


def names() -> dict[int, str]:
    """The names of threads, by their identity."""
    return {thread.ident: thread.name for thread in threading.enumerate() if thread.ident is not None}


def walk(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and its callers."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _line(frame: FrameType, number: int | None = None) -> str:
    code = frame.f_code
    number = number or frame.f_lineno or code.co_firstlineno
    text = linecache.getline(code.co_filename, number).strip()
    return f"{code.co_filename}:{number} in {code.co_name}" + (f": {text}" if text else "")


def lines(frame: FrameType | None, until: FrameType | None = None) -> list[str]:
    """The user's lines of a stack, innermost first, as far as a frame that is left out."""
    found: list[str] = []
    for each in walk(frame):
        if each is until or len(found) >= _DEPTH:
            break
        if _is_users(each):
            found.append(_line(each))
    return found


def _is_users(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return not (is_internal(name) or name.startswith(_LIBRARY) or "site-packages" in name)


def running_in(frame: FrameType | None) -> Iterator[tuple[Operation, FrameType]]:
    """The operations that a thread is running, innermost first, each with the engine's frame that runs it."""
    for each in walk(frame):
        if each.f_code in _EXECUTE:
            op = each.f_locals.get("op") or each.f_locals.get("part")
            if isinstance(op, Operation):
                yield op, each


def waited_in(frame: FrameType | None) -> Operation | None:
    """The operation that a thread blocks on, whether it sleeps or lends itself meanwhile."""
    found: Any = next((each.f_locals.get("op") for each in walk(frame) if each.f_code is _WAIT), None)
    return found if isinstance(found, Operation) else None


def step_in(frame: FrameType | None, until: FrameType) -> Any:
    """The node of a graph whose step a running operation stands at, where it is one."""
    for each in walk(frame):
        if each is until:
            return None
        if each.f_code.co_name == "run_steps" and is_internal(each.f_code.co_filename):
            step = each.f_locals.get("step")
            return None if step is None else step.node
    return None


def task_lines(task: asyncio.Task[Any]) -> list[str]:
    """The user's lines of a suspended task, innermost first, through the tasks that it awaits."""
    found: list[str] = []
    seen: set[asyncio.Task[Any]] = set()
    each: Any = task
    while isinstance(each, asyncio.Task) and each not in seen:
        seen.add(each)
        found = [*_coroutine_lines(each.get_coro()), *found]
        each = getattr(each, "_fut_waiter", None)
    return found[:_DEPTH]


def _coroutine_lines(coroutine: Any) -> list[str]:
    found: list[str] = []
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None and _is_users(frame):
            found.insert(0, _line(frame))
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return found
