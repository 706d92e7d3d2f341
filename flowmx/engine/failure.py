"""Propagation of errors from the operation that failed to the wait that raises them (Law 3)."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
from types import TracebackType
from typing import NoReturn

from flowmx.engine.origin import describe
from flowmx.engine.scheduler import Operation
from flowmx.errors import EngineError

_NOTE_LIMIT = 16
"""The approximate limit of notes on an exception object that many operations raise."""
_SUSPENDABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
_COROUTINE_EXITS = (asyncio.CancelledError, GeneratorExit, StopAsyncIteration, StopIteration)
"""Exceptions that Python takes for the cancellation or the end of the coroutine in which they are raised."""


class Failure:
    """The original exception of a failed operation, with notes that say where it came from.

    All variables that the operation writes share one Failure, and so do those of every operation that was skipped
    because it read them. The exception may be of any class: none of its methods is called.

    Attributes:
        exception: the original exception object.
        raised: whether a wait has raised it.
        serial: the serial number, in push order, of the operation that failed first.
        operation: the name of that operation.
        actor: the name of the actor that ran it.
        origin: where it was enqueued.
        listed: whether it is in the list of failures from which ``waitall`` raises the first.
        traceback: the exception's traceback, from the operation's function on.
    """

    __slots__ = ("actor", "exception", "listed", "operation", "origin", "raised", "serial", "traceback")

    def __init__(self, exception: BaseException, op: Operation) -> None:
        self.serial, self.operation, self.origin = op.serial, op.name, op.origin
        self.actor = str(getattr(op.actor, "name", op.actor))
        self.raised = self.listed = False
        # Skip the engine's frame on top, which does not help the user.
        top = _traceback_of(exception)
        self.traceback: TracebackType | None = top.tb_next if top is not None and top.tb_next is not None else top
        self.exception = exception
        _add_notes(exception, op)

    def throw(self) -> NoReturn:
        """Raise the original exception, with the traceback of the operation itself."""
        self.raised = True
        raise BaseException.with_traceback(self.exception, self.traceback)

    def throw_awaited(self) -> NoReturn:
        """Raise the exception in a coroutine that awaited the operation, as :meth:`throw` does.

        Raises:
            EngineError: instead of an exception that would end the coroutine or its task.
        """
        if isinstance(self.exception, _COROUTINE_EXITS):
            self.raised = True
            error = self.exception
            raise EngineError(f"an operation raised {type(error).__name__}: {error}") from error
        self.throw()

    def clear_locals(self) -> None:
        """Clear the local variables in its traceback's frames, keeping the lines.

        A coroutine that caught the exception and is now waiting keeps its variables. Before Python 3.13 clearing its
        frame would close it, so frames of coroutines are skipped there.
        """
        entry = self.traceback
        while entry is not None:
            frame = entry.tb_frame
            if sys.version_info >= (3, 13) or not frame.f_code.co_flags & _SUSPENDABLE:
                with contextlib.suppress(RuntimeError):  # the frame is running or suspended
                    frame.clear()
            entry = entry.tb_next


class DependencyFailed(Exception):
    """Raised inside an operation to pass on an earlier failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__()
        self.failure = failure


def failure_of(error: BaseException, op: Operation) -> Failure:
    """Return the :class:`Failure` for an exception of an operation; a :class:`DependencyFailed` has the first one."""
    return error.failure if isinstance(error, DependencyFailed) else Failure(error, op)


def notes_for(op: Operation) -> list[str]:
    """Return the notes for an exception: its operation, its layer, and the line that enqueued it."""
    origin = op.origin
    notes = [f"flowmx: raised by operation {op.name!r} (#{op.serial}) on {getattr(op.actor, 'name', op.actor)}"]
    if origin is not None:
        if origin[2]:
            notes.append(f"flowmx: in layer {origin[2]!r}")
        notes.append(f"flowmx: enqueued at {describe(origin)}")
    return notes


def _traceback_of(exception: BaseException) -> TracebackType | None:
    traceback: TracebackType | None = BaseException.__getattribute__(exception, "__traceback__")
    return traceback


def _add_notes(exception: BaseException, op: Operation) -> None:
    """Add notes, bypassing the exception's class, which may be frozen or reject notes."""
    try:
        notes = BaseException.__getattribute__(exception, "__notes__")
    except Exception:  # there are no notes, or the exception's class raises anything
        notes = None
    if not isinstance(notes, list):
        notes = []
    if len(notes) < _NOTE_LIMIT:
        with contextlib.suppress(Exception):
            BaseException.__setattr__(exception, "__notes__", [*notes, *notes_for(op)])
