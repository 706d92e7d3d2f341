"""The distributed store of this process (one, since a job knows each process once), and its end with the process."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from flowmx import settings
from flowmx.errors import KVStoreError

__all__ = ["leave_on_sigterm", "of_process"]

log = logging.getLogger("flowmx.kvstore")


class Leaving(Protocol):
    """The methods of a store that this module uses."""

    @property
    def closed(self) -> bool:
        """True once the store has left its job."""

    def close(self, timeout: float | None = None) -> None:
        """Leave the job."""

    def fail(self, error: BaseException) -> None:
        """Tell the job, when leaving, that this program has failed."""


S = TypeVar("S", bound=Leaving)

_lock = threading.RLock()
_stores: dict[int, tuple[object, Any]] = {}
"""By process: the child of a fork has none."""

_asked_to_end = threading.Event()


def of_process(kind: object, make: Callable[[], S]) -> S:
    """The store of this process, made now where there is none.

    Args:
        kind: what it is: its name and options.
        make: makes it.

    Raises:
        KVStoreError: there is one of another kind.
    """
    with _lock:
        known, store = _stores.get(os.getpid(), (None, None))
        if store is not None and not store.closed:
            if known != kind:
                raise KVStoreError(
                    f"create: this process has the store {known} already, expected {kind} to be the same: a process "
                    "takes part in a job once (close() leaves it)"
                )
            found: S = store
            return found
        made = make()
        _stores[os.getpid()] = kind, made
        atexit.register(_at_exit, made)
        leave_on_sigterm()
        return made


def leave_on_sigterm() -> None:
    """Let SIGTERM end the program in order, if nothing else is arranged; does nothing outside the main thread."""
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end_program)


def _end_program(number: int, frame: Any) -> None:
    log.info("asked to end: this worker leaves the job")
    _asked_to_end.set()
    raise SystemExit(0)


def _at_exit(store: Leaving) -> None:
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is not None:
        store.fail(error)
    hurried = error is not None or _asked_to_end.is_set()
    store.close(settings.get().exit_timeout if hurried else None)
