"""What the engine holds, for the modules that it is made of.

``waiting.py`` has what blocks or awaits, ``ending.py`` exits and forks, ``runtime.py`` pushing and running.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, NamedTuple

from flowmx import settings
from flowmx.engine.actor import Actor, InlineActor, LoopActor, ThreadActor
from flowmx.engine.failure import Failure
from flowmx.engine.origin import Origin
from flowmx.engine.scheduler import Operation, Scheduler

current: ContextVar[Operation | None] = ContextVar("flowmx_operation", default=None)
"""The pushed operation that this code runs in."""


Ended = tuple[int, str, str, Origin | None, float, float, bool]
"""An operation that has ended: serial, name, actor, origin, when it began and ended, whether it failed."""


class Wait(NamedTuple):
    """Somebody who waits for an operation.

    Attributes:
        op: the operation.
        since: seconds of :func:`time.monotonic`.
        thread: the waiting thread's identity.
        task: the waiting task, where it is one.
    """

    op: Operation
    since: float
    thread: int
    task: asyncio.Task[Any] | None = None


class Here(threading.local):
    """What the engine knows of the calling thread: the actor whose worker it is, if any."""

    actor: Actor | None = None


class EngineState:
    """The state of an :class:`flowmx.engine.runtime.Engine`, and what its parts call of each other.

    Args:
        config: the settings to use (default: those of the process).
    """

    def __init__(self, config: settings.Settings | None = None) -> None:
        self.lock = threading.RLock()
        self.here = Here()
        self.bulk_scope: ContextVar[Any] | None = None
        """Set once anybody has used :func:`flowmx.engine.bulk`."""
        self.open_bulks: dict[Any, None] = {}
        """The bulk scopes that hold an operation back; any wait lets them all go."""
        self.scheduler = Scheduler()
        self._push = self.scheduler.push
        self._is_free = self.scheduler.is_free
        self.pending = self.scheduler.pending
        self.pending_bytes = 0
        self.failed = 0
        self.failures: list[Failure] = []
        self.actors: dict[str, Actor] = {}
        self.network = LoopActor("network")
        self._inline = InlineActor("naive")
        self._pool = ThreadActor("pool")
        self._poisoned = False
        self._room_waiters: list[Callable[[], None]] = []
        self._waits_inside: list[tuple[Operation, Operation]] = []
        """Which running operations wait, inside, for which others."""
        self._awaits = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: threading.Thread | None = None
        self._left_behind: list[object] = []
        self._threads: list[threading.Thread] = []
        self.journal: deque[Ended] | None = None
        """Where to note each queued operation that has ended, for the flight recorder."""
        self.waits: dict[object, Wait] = {}
        """Who waits for what at the moment."""
        self.openers: list[Callable[[], None]] = []
        """Called when the engine's loop starts, with the lock held: at first use, and anew after a fork."""
        self._warned: set[tuple[str, int]] = set()
        self.guard: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
        """A context in which every operation runs, entered once for a worker's life or a lent thread's turn."""
        self.inline: Callable[..., Any] = _call
        """Calls the function of a light operation at its push, as ``inline(function, *arguments)``."""
        self._inside_inline = False
        self._watches: dict[str, Callable[[Operation], None]] = {}
        self.synchronizers: list[Callable[[], None]] = []
        """Block until an asynchronous device has done what was launched there; called by whoever waits for all."""
        self.followers: list[Callable[[settings.Settings], None]] = []
        """Told of the settings whenever they are put in force."""
        self._closed = False
        self._switch_interval_set = False
        self.kind = ""
        self.configure(config or settings.Settings())
        # The environment is read at the first push, not here: a bad setting must not break the import.
        self._configured = config is not None
        self._special |= not self._configured

    def configure(self, config: settings.Settings) -> None:
        """Use other settings from here on; waits for what is pending where the engine's kind changes."""
        self.config = config
        self.max_ops = config.engine_max_ops
        self.max_bytes = config.engine_max_bytes
        self.checking = config.engine_check
        kind = {"ThreadedEnginePooled": "ThreadedEngine"}.get(config.engine_type, config.engine_type)
        if self.kind not in ("", kind):
            self.wait_all(throw=False)
        self.kind = kind
        self._configured = True
        self._pool.slots = max(2, config.cpu_worker_nthreads)
        self._naive = kind == "NaiveEngine"
        self._route: Actor | None = {"NaiveEngine": self._inline, "ThreadedEngine": self._pool}.get(kind)
        self._special = self._route is not None or self.checking or self.bulk_scope is not None
        for follow in self.followers:
            follow(config)

    def wait_all(self, throw: bool = True) -> None:
        """Block until everything pushed so far is complete."""
        raise NotImplementedError

    def execute(
        self, op: Operation, actor: Actor, parking: threading.Lock | None, until: Operation | None = None,
        light: bool = False,
    ) -> Operation | None:  # fmt: skip
        """Run an operation, and say which one to run next."""
        raise NotImplementedError

    def _adopt(self, actor: Actor) -> None:
        raise NotImplementedError

    def _flush_bulks(self) -> None:
        raise NotImplementedError

    def _mend(self, op: Operation | None, error: BaseException, following: Operation | None = None) -> None:
        raise NotImplementedError

    def _abandon(self, ops: list[Operation], why: str) -> None:
        raise NotImplementedError


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)
