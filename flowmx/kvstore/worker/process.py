"""The distributed store of this process (at most one, since a process is one node), and leaving at exit."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from flowmx import forks, process_hooks, program, settings
from flowmx.comm.exit_reason import classify_exit
from flowmx.errors import KVStoreError

__all__ = ["leave_job", "process_store"]


log = logging.getLogger("flowmx.kvstore")


class JobStore(Protocol):
    """The methods of a store that this module uses."""

    @property
    def closed(self) -> bool:
        """True once the store has left its job."""

    @property
    def unfinished(self) -> bool:
        """True in the middle of a step, which the other workers need completely."""

    @property
    def lost(self) -> BaseException | None:
        """The end of the job, if it came before the store had left."""

    def close(self, timeout: float | None = None) -> None:
        """Leave the job."""

    def fail(self, why: str) -> None:
        """Report a failure of this program to the job when leaving."""


S = TypeVar("S", bound=JobStore)

_lock = forks.lock()
_stores: dict[int, tuple[object, Any]] = {}
"""By process ID: a forked child has none."""


def process_store(kind: object, make: Callable[[], S]) -> S:
    """Return the store of this process; make it on the first call.

    Args:
        kind: the name and options of the store.
        make: makes the store.

    Raises:
        KVStoreError: the process has a store of another kind.
    """
    with _lock:
        existing, store = _stores.get(os.getpid(), (None, None))
        if store is not None and not store.closed:
            if existing != kind:
                raise KVStoreError(
                    f"create: this process already has the store {existing}, expected the same and not {kind}: a "
                    "process joins a job once (close() leaves it)"
                )
            existing_store: S = store
            return existing_store
        new_store = make()
        _stores[os.getpid()] = kind, new_store
        program.record_exit_status()
        program.delay_shutdown_while(lambda: new_store.unfinished)
        program.install_sigterm_handler()
        process_hooks.ensure_installed()
        process_hooks.at_exit(lambda: leave_job(new_store, program.ended_by()))
        return new_store


def leave_job(store: JobStore, error: BaseException | None) -> None:
    """Leave the job at the end of the program, with an exception or without."""
    reason = classify_exit(error=error)
    if reason.failed:
        store.fail(reason.why)
    # A failing program does not wait: others may wait for pushes that it will never make.
    store.close(settings.get().exit_timeout if reason.failed else None)
    if store.lost is not None:
        log.error("this worker could not leave its job cleanly: %s", store.lost)
        program.fail()
