"""Stacks of threads and tasks: the user's line of each, and the graph step that a running operation is at."""

from __future__ import annotations

import asyncio
import linecache
import sys
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from flowmx.engine.origin import is_internal
from flowmx.engine.running import Runner
from flowmx.engine.scheduler import Operation
from flowmx.engine.waiting import Waiting

__all__ = ["Level", "Stack", "lines", "names", "running_in", "stack_of", "stacks", "step_in", "task_lines", "waited_in"]

_DEPTH = 12
_WAIT = Waiting._wait.__code__
_LIBRARY = (str(Path(threading.__file__).parent), "<frozen")
_EXECUTE = {Runner.work.__code__, Runner.run_at_push.__code__, Runner.run_part.__code__}
_HELD = {_WAIT: ("op",)} | dict.fromkeys(_EXECUTE, ("op", "part"))
_STEPS = ("step",)


class Level(NamedTuple):
    """A frame of a stack, without what keeps its variables alive: looking at a program takes none of its memory.

    Attributes:
        code: what is called.
        line: the number of the line that it stands at.
        holds: the operation that the engine's own frame runs or waits for, or the step of a graph; else None.
    """

    code: CodeType
    line: int
    holds: Any


Stack = list[Level]
"""The innermost first."""


def stacks() -> dict[int, Stack]:
    """The stack of every thread, by its identity."""
    return {ident: stack_of(frame) for ident, frame in sys._current_frames().items()}


def stack_of(frame: FrameType | None) -> Stack:
    """A frame and its callers."""
    found = []
    while frame is not None:
        code = frame.f_code
        variables = _HELD.get(code) or (_STEPS if code.co_name == "run_steps" else ())
        holds = next((each for name in variables if (each := frame.f_locals.get(name)) is not None), None)
        found.append(Level(code, frame.f_lineno or code.co_firstlineno, holds))
        frame = frame.f_back
    return found


def names() -> dict[int, str]:
    """The names of threads, by their identity."""
    return {thread.ident: thread.name for thread in threading.enumerate() if thread.ident is not None}


def _line(level: Level) -> str:
    code, number, _ = level
    text = linecache.getline(code.co_filename, number).strip()
    return f"{code.co_filename}:{number} in {code.co_name}" + (f": {text}" if text else "")


def lines(stack: Stack) -> list[str]:
    """The user's lines of a stack, innermost first."""
    return [_line(each) for each in islice(filter(_is_users, stack), _DEPTH)]


def _is_users(level: Level) -> bool:
    name = level.code.co_filename
    return not (is_internal(name) or name.startswith(_LIBRARY) or "site-packages" in name)


def running_in(stack: Stack) -> Iterator[tuple[Operation, Stack]]:
    """The operations that a thread is running, innermost first, each with what it has called."""
    for depth, each in enumerate(stack):
        if each.code in _EXECUTE and isinstance(each.holds, Operation):
            yield each.holds, stack[:depth]


def waited_in(stack: Stack) -> Operation | None:
    """The operation that a thread blocks on, whether it sleeps or lends itself meanwhile."""
    found = next((each.holds for each in stack if each.code is _WAIT), None)
    return found if isinstance(found, Operation) else None


def step_in(stack: Stack) -> Any:
    """The node of a graph whose step a running operation stands at, where it is one."""
    for each in stack:
        if each.code.co_name == "run_steps" and is_internal(each.code.co_filename):
            return None if each.holds is None else each.holds.node
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
        if frame is not None and _is_users(level := stack_of(frame)[0]):
            found.insert(0, _line(level))
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return found
