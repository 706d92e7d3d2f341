"""The engine: pushes, runs and waits for operations, by the variables that they read and write.

It is made of parts that can be read alone, each of which knows only those above it in this table:

=============  =======================================================================================
``books``      what is pending, what failed, whom to tell; the scheduler
``running``    runs operations, on threads and as coroutines, and completes them
``waiting``    blocks and awaits
``hosting``    where actors live: their event loops and threads
``pushing``    takes operations, and cancels them
``ending``     exit and fork
=============  =======================================================================================

One :class:`Engine` serves the process. Actors are coroutines on the engine's own loop, or on one of their device, each
in a thread of its own; the CPU's have worker threads.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from typing import Any

from flowmx import program, settings
from flowmx.engine.bookkeeping import Books
from flowmx.engine.ending import Ending
from flowmx.engine.failure import Failure
from flowmx.engine.hosting import Hosting
from flowmx.engine.pushing import Pushing
from flowmx.engine.running import Runner
from flowmx.engine.waiting import Waiting

__all__ = ["Engine", "engine"]


class Engine:
    """Schedules operations by the variables they read and write, and runs them on actors.

    Attributes:
        config: the settings in force.
        followers: called with the settings whenever these are put in force.
    """

    def __init__(self) -> None:
        self.books = books = Books()
        self.runner = runner = Runner(books)
        self.waiting = waiting = Waiting(books, runner)
        self.hosting = hosting = Hosting(books, runner, self)
        self.pushing = pushing = Pushing(books, runner, waiting, hosting)
        self.ending = ending = Ending(books, runner, hosting, pushing)
        self.config = settings.Settings()
        self.followers: list[Callable[[settings.Settings], None]] = []
        waiting.loop_thread, waiting.is_home = lambda: hosting.loop_thread, hosting.is_home
        pushing.read_settings = lambda: self.configure(settings.get())
        # What others call, so that nothing stands between.
        self.lock = books.lock
        self.scheduler = books.scheduler
        self.pending = books.pending
        self.settle = books.settle
        self.poison = runner.fail_part
        self.report = books.report
        self.local = runner.local
        self.work = runner.work
        self.run_coroutine = runner.run_coroutine
        self.run_part = runner.run_part
        self.end = runner.end
        self.end_all = runner.end_all
        self.abandon = runner.abandon
        self.wait = waiting.wait
        self.wait_async = waiting.wait_async
        self.wait_all = waiting.wait_all
        self.wait_all_async = waiting.wait_all_async
        self.wait_variable = waiting.wait_variable
        self.wait_variable_async = waiting.wait_variable_async
        self.wait_for_device = waiting.wait_for_device
        self.standing_aside = waiting.standing_aside
        self.must_yield = waiting.must_yield
        self.holds = waiting.holds
        self.room = waiting.room
        self.waits = waiting.waits
        self.synchronizers = waiting.synchronizers
        self.network = hosting.network
        self.actors = hosting.actors
        self.openers = hosting.openers
        self.retire = hosting.retire
        self.enqueue = pushing.enqueue
        self.at_once = pushing.at_once
        self.cancel = pushing.cancel
        self.use_watch = pushing.use_watch
        self.watches = pushing.watches
        self.use_bulks = pushing.use_bulks
        self.leave_bulks = pushing.leave_bulks
        self.open_bulks = pushing.open_bulks
        self.drain = ending.drain
        self.shutdown = ending.shutdown

    def guard(self) -> Any:
        """A context for a thread that begins to run operations."""
        self.runner.prepare()
        return self.runner.guard()

    @property
    def kind(self) -> str:
        """``NaiveEngine``, ``ThreadedEngine`` or ``ThreadedEnginePerDevice``."""
        return self.pushing.kind

    @property
    def is_watched(self) -> bool:
        """True while a watch looks at each operation, so that none may stand for several.

        What orders operations of the host behind asynchronous devices, counts arrays by the lines that made them, or
        refuses deleted variables looks at no more than their variables.
        """
        return self.pushing.is_watched

    @property
    def failures(self) -> list[Failure]:
        """Failures that no wait has raised yet, as far as they are kept."""
        return self.books.failures

    @property
    def poisoned(self) -> bool:
        """True once any operation has failed, so that variables must be checked for failures."""
        return self.books.is_poisoned

    def configure(self, config: settings.Settings) -> None:
        """Use other settings from here on; waits for what is pending where the engine's kind changes."""
        self.config = config
        for part in (self.waiting, self.hosting, self.pushing, self.ending):
            part.configure(config)
        for follow in self.followers:
            follow(config)

    def stats(self) -> dict[str, Any]:
        """Counts of what the engine has done and holds now."""
        books = self.books
        with books.lock:
            return {
                "kind": self.kind,
                "pushed": books.scheduler.serial,
                "completed": books.scheduler.completed,
                "failed": books.failed,
                "pending": len(books.pending),
                "pending_bytes": books.scheduler.pending_bytes,
                "actors": {
                    name: {"queued": len(actor.mailbox), "executed": actor.executed}
                    for name, actor in self.actors.items()
                },
            }


engine = Engine()
"""The engine of this process."""

atexit.register(program.end_as_failed)  # runs last
atexit.register(engine.shutdown)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=engine.ending.before_fork,
        after_in_parent=engine.ending.after_fork_in_parent,
        after_in_child=engine.ending.after_fork_in_child,
    )
