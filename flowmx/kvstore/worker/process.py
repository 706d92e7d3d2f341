"""The distributed store of this process (one, since a job knows each process once), and its end with the process."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from flowmx import program, settings
from flowmx.comm.verdict import Evidence, judge
from flowmx.errors import KVStoreError

__all__ = ["end_with", "of_process"]


log = logging.getLogger("flowmx.kvstore")


class Leaving(Protocol):
    """The methods of a store that this module uses."""

    @property
    def closed(self) -> bool:
        """True once the store has left its job."""

    @property
    def unfinished(self) -> bool:
        """True in the middle of a step, which the other workers need all of."""

    @property
    def lost(self) -> BaseException | None:
        """The end of the job, where that came before the store had left it."""

    def close(self, timeout: float | None = None) -> None:
        """Leave the job."""

    def fail(self, why: str) -> None:
        """Tell the job, when leaving, that this program has failed."""


S = TypeVar("S", bound=Leaving)

_lock = threading.RLock()
_stores: dict[int, tuple[object, Any]] = {}
"""By process: the child of a fork has none."""


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
        program.watch()
        program.finish_first(lambda: made.unfinished)
        program.heed_sigterm()
        atexit.register(lambda: end_with(made, program.ended_by()))
        return made


def end_with(store: Leaving, error: BaseException | None) -> None:
    """Leave the job as a program does that ends, with an exception or without."""
    verdict = judge(Evidence(error=error))
    if verdict.failed:
        store.fail(verdict.why)
    # A program that fails waits for nobody: others may wait for what it will not push.
    store.close(settings.get().exit_timeout if verdict.failed else None)
    if store.lost is not None:
        log.error("this worker could not leave its job in order: %s", store.lost)
        program.fail()
