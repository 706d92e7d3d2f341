"""Scopes that a ``with`` block enters in one task and may leave in another.

A generator that is suspended inside a ``with`` block may be closed by another task, by another thread, or by the
garbage collector. A ``contextvars`` token then raises ``ValueError``, and the context that entered the block keeps its
value. Therefore a scope is a :class:`Frame` with a reference to its outer frame. There are two ways to leave it:

* The task (or thread) that entered it leaves it while it is the innermost scope: the variable is set to the outer
  frame. Tasks started inside keep their inherited value, as with any context variable.
* Otherwise the frame takes the value of its outer frame, which ends the scope in all contexts.
"""

from __future__ import annotations

from asyncio import _get_running_loop, current_task
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from sys import _getframe
from threading import get_ident
from typing import Any, ClassVar, Generic, TypeVar
from weakref import WeakSet

__all__ = ["Entries", "Frame", "Value", "assign", "enter", "frame_scope", "leave"]

F = TypeVar("F", bound="Frame")
T_co = TypeVar("T_co", covariant=True)

_NO_OWNER = 0
"""The owner of a frame that no ``with`` block entered: a default or an assigned value."""


class Frame:
    """A value of a context variable in a scope.

    Attributes:
        fields: names of the attributes with the value.
        outer: the outer frame; None for the variable's default.
        owner: the task or thread that entered it.
        entries: the object that entered it, if any.
        caller: the id of the function call whose ``with`` statement entered it.
        is_over: whether another task, thread or context has left it.
        followers: inner frames that are over and share its value.
    """

    # Class-level defaults, because a frame is created for every step of a training loop.
    fields: ClassVar[tuple[str, ...]] = ()
    outer: Any = None
    owner = caller = _NO_OWNER
    is_over = False
    entries: Entries[Any] | None = None
    followers: WeakSet[Frame] | None = None

    def live_outer(self: F) -> F:
        """Return the nearest outer frame that is not over."""
        frame: F = self.outer
        while frame.is_over:
            frame = frame.outer
        return frame

    def end(self) -> None:
        """Take the value of the outer frame, in all contexts."""
        self.is_over = True
        outer = self.live_outer()
        ended = [self, *(self.followers or ())]
        for frame in ended:
            for name in self.fields:
                setattr(frame, name, getattr(outer, name))
        if outer.outer is not None:
            outer.followers = WeakSet([*(outer.followers or ()), *ended])


class Value(Frame, Generic[T_co]):
    """A frame with a single value."""

    fields = ("value",)

    def __init__(self, value: T_co) -> None:
        self.value = value


def _owner() -> int:
    loop = _get_running_loop()
    task = None if loop is None else current_task(loop)
    return get_ident() if task is None else id(task)


def enter(variable: ContextVar[F], frame: F) -> F:
    """Make a frame the current one in this context, and return it."""
    frame.outer = variable.get()
    frame.owner = _owner()
    variable.set(frame)
    return frame


def assign(variable: ContextVar[F], frame: F) -> None:
    """Make a frame the current one until the enclosing scope is left."""
    top = variable.get()
    frame.outer = top if top.outer is None or top.owner != _NO_OWNER else top.outer
    variable.set(frame)


def leave(variable: ContextVar[F], frame: F) -> None:
    """Leave the scope of a frame. Any task or thread may do so, repeatedly."""
    if _innermost(variable) is frame and frame.owner == _owner():
        variable.set(frame.live_outer())
    elif not frame.is_over:
        frame.end()
        if variable.get().is_over:
            variable.set(frame.live_outer())


def _innermost(variable: ContextVar[F]) -> F:
    """Return the frame of the innermost scope that is not over, ignoring assigned values."""
    frame = variable.get()
    while (frame.is_over or frame.owner == _NO_OWNER) and frame.outer is not None:
        frame = frame.outer
    return frame


@contextmanager
def frame_scope(variable: ContextVar[F], frame: F) -> Iterator[None]:
    """Make a frame the current one in a ``with`` block."""
    enter(variable, frame)
    try:
        yield
    finally:
        leave(variable, frame)


class Entries(Generic[F]):
    """The open scopes of one object, which several tasks may enter concurrently."""

    __slots__ = ("_frames", "_variable")

    def __init__(self, variable: ContextVar[F]) -> None:
        self._variable = variable
        self._frames: list[F] = []

    def enter(self, frame: F) -> None:
        """Make a frame the current one; called by ``__enter__``."""
        variable = self._variable
        frame.outer = variable.get()
        frame.owner = get_ident() if _get_running_loop() is None else _owner()
        frame.entries = self
        frame.caller = id(_getframe(2))
        self._frames.append(frame)
        variable.set(frame)

    def leave(self) -> None:
        """Leave the scope that the calling ``with`` statement entered; called by ``__exit__``."""
        variable = self._variable
        frames = self._frames
        frame = variable.get()
        caller = id(_getframe(2))
        owner = get_ident() if _get_running_loop() is None else _owner()
        if frame.entries is self and frame.caller == caller and frame.owner == owner:
            outer = frame.outer
            variable.set(frame.live_outer() if outer.is_over else outer)  # first, because an interrupt may follow
            frame.entries = None
            frames.remove(frame)
        elif frames:
            innermost = _innermost(variable)
            frame = max(frames[::-1], key=lambda candidate: (candidate.caller == caller, candidate is innermost))
            leave(variable, frame)
            frame.entries = None
            frames.remove(frame)
