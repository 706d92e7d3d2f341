"""Errors of worker processes, as they are raised to the loader's user."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import traceback
from typing import Any, NamedTuple

from flowmx.errors import MXNetError


class DataLoaderWorkerError(MXNetError, RuntimeError):
    """A worker process ended, could not be started, or failed with an error that can not be sent home."""


class DataLoaderTimeout(MXNetError, multiprocessing.TimeoutError):
    """A worker took longer for a batch than the loader's ``timeout``."""


class Report(NamedTuple):
    """An error as it travels: nothing in it needs the worker's modules, but for ``pickled``.

    Attributes:
        pickled: the exception; empty where it can not be pickled.
        text: its type and message.
        trace: the worker's traceback.
        notes: its notes.
    """

    pickled: bytes
    text: str
    trace: str
    notes: list[str]


def report(error: BaseException) -> Report:
    """Describe an error that is being handled."""
    text = "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()[0]
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    return Report(_pickled(error), text, "".join(traceback.format_exception(error)).rstrip(), notes)


def _pickled(error: BaseException) -> bytes:
    """The exception, where a copy of it can be made."""
    if not isinstance(error, Exception):
        return b""
    try:
        raw = pickle.dumps(error)
        return raw if type(pickle.loads(raw)) is type(error) else b""
    except Exception:
        return b""


def rebuilt(found: Report, worker: str) -> Exception:
    """The error of a worker, of its own type where that is possible, with the worker's traceback as a note."""
    try:
        error = pickle.loads(found.pickled) if found.pickled else None
    except Exception:
        error = None
    if not isinstance(error, Exception):
        error = DataLoaderWorkerError(f"{worker}: {found.text}")
    error.__notes__ = []  # those that it had are in the trace
    error.add_note(f"raised in {worker}" + "".join(f", {note}" for note in found.notes))
    error.add_note("\n" + found.trace)
    return error


def ended(worker: str, code: int | None, doing: str) -> DataLoaderWorkerError:
    """The error for a worker that has ended."""
    return DataLoaderWorkerError(f"{worker} {_manner(code)} {doing}")


def _manner(code: int | None) -> str:
    if code is None:
        return "closed its connection"
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = (
        " (by the system when memory is short: see its log; fewer workers, a smaller batch_size or prefetch need less)"
    )
    return f"was killed by {name}{hint if name == 'SIGKILL' else ''}"


def note(error: BaseException, text: str) -> Any:
    """Say where an error happened, once."""
    if text not in getattr(error, "__notes__", ()):
        error.add_note(text)
