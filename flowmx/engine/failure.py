"""An error on its way from the operation that failed to the place that waits for it (Law 3)."""

from __future__ import annotations

from types import TracebackType
from typing import NoReturn

from flowmx.engine.origin import describe
from flowmx.engine.scheduler import Operation

_MOST_NOTES = 16
"""An exception object that many operations raise gets no more than about this many notes."""


class Failure:
    """The original exception of a failed operation, with notes that say where it came from.

    The variables that the operation writes hold the one Failure, and so do those of every operation that
    was skipped because it read them.

    Attributes:
        exception: the original exception object.
        seen: True once somebody has been told (a wait raised it).
        serial: the number of the operation that failed first, in the order pushed.
        listed: True once it stands among those that ``waitall`` raises from.
    """

    __slots__ = ("exception", "listed", "seen", "serial", "traceback")

    def __init__(self, exception: BaseException, op: Operation) -> None:
        self.exception = exception
        self.serial = op.serial
        self.seen = self.listed = False
        # The engine's own frame on top says nothing to the reader.
        top = exception.__traceback__
        self.traceback: TracebackType | None = top.tb_next if top is not None and top.tb_next is not None else top
        if len(getattr(exception, "__notes__", ())) < _MOST_NOTES:
            for note in notes_for(op):
                exception.add_note(note)

    def throw(self) -> NoReturn:
        """Raise the original exception, with the traceback of the operation itself."""
        self.seen = True
        raise self.exception.with_traceback(self.traceback)


class Inherited(Exception):
    """Raised inside an operation to say that it carries a failure on which is known already."""

    def __init__(self, failure: Failure) -> None:
        super().__init__()
        self.failure = failure


def failure_of(error: BaseException, op: Operation) -> Failure:
    """How an operation failed that raised an exception."""
    return error.failure if isinstance(error, Inherited) else Failure(error, op)


def notes_for(op: Operation) -> list[str]:
    """What an exception's notes say of the operation that raised it."""
    origin = op.origin
    notes = [f"flowmx: raised by operation {op.name!r} (#{op.serial}) on {getattr(op.actor, 'name', op.actor)}"]
    if origin is not None:
        if origin[2]:
            notes.append(f"flowmx: in layer {origin[2]!r}")
        notes.append(f"flowmx: enqueued at {describe(origin)}")
    return notes
