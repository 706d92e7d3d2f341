"""Stacks of threads and tasks: their user lines, and the graph step that a running operation is at."""

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
from flowmx.engine.waiting import Waiter

__all__ = ["Level", "Stack", "lines", "names", "running_in", "stack_of", "stacks", "step_in", "task_lines", "waited_in"]

_MAX_LINES = 12
_WAIT = Waiter._wait.__code__
_LIBRARY = (str(Path(threading.__file__).parent), "<frozen")
_EXECUTE = {Runner.work.__code__, Runner.run_at_push.__code__, Runner.run_part.__code__}
_VARIABLES = {_WAIT: ("op",)} | dict.fromkeys(_EXECUTE, ("op", "part"))
_STEP_VARIABLES: dict[str, tuple[str, ...]] = {"run_steps": ("step",), "_run_natively": ("piece",)}
"""The variables of a graph's steps, by the name of the function that runs them."""


class Level(NamedTuple):
    """A frame of a stack, without references that would keep the frame's variables alive.

    Attributes:
        code: the function's code.
        line: number of the current line.
        subject: the operation that a frame of the engine runs or waits for, or the step of a graph; else None.
    """

    code: CodeType
    line: int
    subject: Any


Stack = list[Level]
"""Frames, the innermost first."""


def stacks() -> dict[int, Stack]:
    """Return the stack of every thread, by its identifier."""
    return {ident: stack_of(frame) for ident, frame in sys._current_frames().items()}


def stack_of(frame: FrameType | None) -> Stack:
    """Return the stack of a frame."""
    stack = []
    while frame is not None:
        code = frame.f_code
        variables: tuple[str, ...] = _VARIABLES.get(code) or _STEP_VARIABLES.get(code.co_name, ())
        subject = next((value for name in variables if (value := frame.f_locals.get(name)) is not None), None)
        stack.append(Level(code, frame.f_lineno or code.co_firstlineno, subject))
        frame = frame.f_back
    return stack


def names() -> dict[int, str]:
    """Return the names of threads, by their identifiers."""
    return {thread.ident: thread.name for thread in threading.enumerate() if thread.ident is not None}


def _line(level: Level) -> str:
    code, number, _ = level
    text = linecache.getline(code.co_filename, number).strip()
    return f"{code.co_filename}:{number} in {code.co_name}" + (f": {text}" if text else "")


def lines(stack: Stack) -> list[str]:
    """Return the user's lines of a stack, innermost first."""
    return [_line(level) for level in islice(filter(_is_users, stack), _MAX_LINES)]


def _is_users(level: Level) -> bool:
    name = level.code.co_filename
    return not (is_internal(name) or name.startswith(_LIBRARY) or "site-packages" in name)


def running_in(stack: Stack) -> Iterator[tuple[Operation, Stack]]:
    """Yield the operations that a thread is running, innermost first, level with the frames that it has called."""
    for depth, level in enumerate(stack):
        if level.code in _EXECUTE and isinstance(level.subject, Operation):
            yield level.subject, stack[:depth]


def waited_in(stack: Stack) -> Operation | None:
    """Return the operation that a thread blocks on, whether it sleeps or runs other operations meanwhile."""
    op = next((level.subject for level in stack if level.code is _WAIT), None)
    return op if isinstance(op, Operation) else None


def step_in(stack: Stack) -> Any:
    """Return the graph node whose step a running operation is at; None if it does not run a graph."""
    for level in stack:
        if level.code.co_name in _STEP_VARIABLES and is_internal(level.code.co_filename):
            step = getattr(level.subject, "current_step", level.subject)
            return None if step is None else step.node
    return None


def task_lines(task: asyncio.Task[object]) -> list[str]:
    """Return the user's lines of a suspended task and of the tasks that it awaits, innermost first."""
    user_lines: list[str] = []
    visited: set[asyncio.Task[object]] = set()
    waiter: Any = task
    while isinstance(waiter, asyncio.Task) and waiter not in visited:
        visited.add(waiter)
        user_lines = [*_coroutine_lines(waiter.get_coro()), *user_lines]
        waiter = getattr(waiter, "_fut_waiter", None)
    return user_lines[:_MAX_LINES]


def _coroutine_lines(coroutine: object) -> list[str]:
    user_lines: list[str] = []
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None and _is_users(level := stack_of(frame)[0]):
            user_lines.insert(0, _line(level))
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return user_lines
