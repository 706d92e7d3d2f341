"""Errors of worker processes, in the form in which a loader raises them."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import traceback
from typing import Any, NamedTuple

from flowmx.errors import MXNetError


class DataLoaderWorkerError(MXNetError, RuntimeError):
    """A worker process ended, could not be started, or failed with an error that cannot be pickled."""


class DataLoaderTimeout(MXNetError, multiprocessing.TimeoutError):
    """A worker took longer for a batch than the loader's ``timeout``."""


class Report(NamedTuple):
    """A description of an error, to be sent. Only unpickling ``pickled`` needs the modules of the worker.

    Attributes:
        pickled: the exception; empty if it cannot be pickled.
        text: its type and message.
        trace: the worker's traceback.
        notes: the exception's notes.
    """

    pickled: bytes
    text: str
    trace: str
    notes: list[str]


def report(error: BaseException) -> Report:
    """Describe an error that is being handled."""
    text = "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()[0]
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    return Report(_pickle_error(error), text, "".join(traceback.format_exception(error)).rstrip(), notes)


def _pickle_error(error: BaseException) -> bytes:
    """Pickle an exception, if it survives a round trip."""
    if not isinstance(error, Exception):
        return b""
    try:
        raw = pickle.dumps(error)
        return raw if type(pickle.loads(raw)) is type(error) else b""
    except Exception:  # a user's exception may fail in any way
        return b""


def rebuild(report: Report, worker: str) -> Exception:
    """Return the error of a worker, in its original type if possible, with the worker's traceback as a note."""
    try:
        error = pickle.loads(report.pickled) if report.pickled else None
    except Exception:  # a user's exception may fail in any way
        error = None
    if not isinstance(error, Exception):
        error = DataLoaderWorkerError(f"{worker}: {report.text}")
    error.__notes__ = []  # the trace has the original notes
    error.add_note(f"raised in {worker}" + "".join(f", {note}" for note in report.notes))
    error.add_note("\n" + report.trace)
    return error


def worker_ended_error(worker: str, code: int | None, activity: str) -> DataLoaderWorkerError:
    """Return the error for a worker that has ended.

    Args:
        worker: the worker's name.
        code: its exit code; None if it only closed its connection.
        activity: what it was doing, as a clause for the message.
    """
    return DataLoaderWorkerError(f"{worker} {_describe_end(code)} {activity}")


def _describe_end(code: int | None) -> str:
    if code is None:
        return "closed its connection"
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = (
        " (usually by the system, for lack of memory: fewer workers, a smaller batch_size or a smaller prefetch "
        "need less; see the system's log)"
    )
    return f"was killed by {name}{hint if name == 'SIGKILL' else ''}"


def note(error: BaseException, text: str) -> Any:
    """Add a note to an error, once."""
    if text not in getattr(error, "__notes__", ()):
        error.add_note(text)
