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

_MOST_NOTES = 16
"""An exception object that many operations raise gets no more than about this many notes."""
_MAY_BE_SUSPENDED = (
    inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
)
_ENDS_COROUTINES = (asyncio.CancelledError, GeneratorExit, StopAsyncIteration, StopIteration)
"""Exceptions that end a coroutine in which they are raised, as a cancelled one or as one that has come to its end."""


class Failure:
    """The original exception of a failed operation, with notes that say where it came from.

    The variables that the operation writes hold the one Failure, and so do those of every operation that
    was skipped because it read them. The exception may be of any class, however it behaves: no method of its own is
    called.

    Attributes:
        exception: the original exception object.
        seen: True once a wait has raised it.
        serial: the number of the operation that failed first, in the order pushed.
        operation: the name of that operation.
        actor: the name of what ran it.
        origin: where it was enqueued.
        listed: True once it stands among those that ``waitall`` raises from.
        traceback: that of the exception, from the operation's own function on.
    """

    __slots__ = ("actor", "exception", "listed", "operation", "origin", "seen", "serial", "traceback")

    def __init__(self, exception: BaseException, op: Operation) -> None:
        self.serial, self.operation, self.origin = op.serial, op.name, op.origin
        self.actor = str(getattr(op.actor, "name", op.actor))
        self.seen = self.listed = False
        # The engine's own frame on top says nothing to the reader.
        top = _traceback_of(exception)
        self.traceback: TracebackType | None = top.tb_next if top is not None and top.tb_next is not None else top
        self.exception = exception
        _add_notes(exception, op)

    def throw(self) -> NoReturn:
        """Raise the original exception, with the traceback of the operation itself."""
        self.seen = True
        raise BaseException.with_traceback(self.exception, self.traceback)

    def throw_awaited(self) -> NoReturn:
        """As :meth:`throw`, in a coroutine that has awaited the operation.

        Raises:
            EngineError: in the place of an exception by which Python would end the coroutine, or its task.
        """
        if isinstance(self.exception, _ENDS_COROUTINES):
            self.seen = True
            error = self.exception
            raise EngineError(f"an operation raised {type(error).__name__}: {error}") from error
        self.throw()

    def forget_values(self) -> None:
        """Clear the local variables of its traceback's functions; the lines stay.

        A coroutine that caught the exception and waits now stays as it is. Before Python 3.13 clearing its frame would
        close it, so those of coroutines are left there.
        """
        entry = self.traceback
        while entry is not None:
            frame = entry.tb_frame
            if sys.version_info >= (3, 13) or not frame.f_code.co_flags & _MAY_BE_SUSPENDED:
                with contextlib.suppress(RuntimeError):  # it runs still, or is suspended
                    frame.clear()
            entry = entry.tb_next


class Inherited(Exception):
    """Raised inside an operation to say that it carries a failure on which is known already."""

    def __init__(self, failure: Failure) -> None:
        super().__init__()
        self.failure = failure


def failure_of(error: BaseException, op: Operation) -> Failure:
    """The :class:`Failure` for an exception that an operation raised; an inherited one keeps its first failure."""
    return error.failure if isinstance(error, Inherited) else Failure(error, op)


def notes_for(op: Operation) -> list[str]:
    """Compose the notes that are added to an exception: its operation, layer, and the line that enqueued it."""
    origin = op.origin
    notes = [f"flowmx: raised by operation {op.name!r} (#{op.serial}) on {getattr(op.actor, 'name', op.actor)}"]
    if origin is not None:
        if origin[2]:
            notes.append(f"flowmx: in layer {origin[2]!r}")
        notes.append(f"flowmx: enqueued at {describe(origin)}")
    return notes


def _traceback_of(exception: BaseException) -> TracebackType | None:
    found: TracebackType | None = BaseException.__getattribute__(exception, "__traceback__")
    return found


def _add_notes(exception: BaseException, op: Operation) -> None:
    """Add notes past whatever the exception's class does with attributes: it may be frozen, or refuse notes."""
    try:
        known = BaseException.__getattribute__(exception, "__notes__")
    except Exception:
        known = None
    if not isinstance(known, list):
        known = []
    if len(known) < _MOST_NOTES:
        with contextlib.suppress(Exception):
            BaseException.__setattr__(exception, "__notes__", [*known, *notes_for(op)])
