"""The engine pushes, runs and waits for operations, by the variables that they read and write.

Its parts can be read one by one; each knows only those above it in this table:

=============  =======================================================================================
``books``      pending operations, failures, waiters; the scheduler
``running``    runs operations, on threads and as coroutines, and completes them
``interrupts`` delays Ctrl-C while the main thread runs an operation
``waiting``    blocks and awaits
``hosting``    the event loops and threads of actors
``pushing``    accepts operations, and cancels them
``ending``     exit and fork
=============  =======================================================================================

One :class:`Engine` serves the process. Actors are coroutines on the engine's event loop, or on a loop of their device.
Each loop has a thread; the CPU's actor also has worker threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowmx import process_hooks, program, settings
from flowmx.engine.bookkeeping import Books
from flowmx.engine.ending import Lifecycle
from flowmx.engine.failure import Failure
from flowmx.engine.hosting import Host
from flowmx.engine.interrupts import InterruptHandler
from flowmx.engine.pushing import Pusher
from flowmx.engine.running import Runner
from flowmx.engine.waiting import Waiter

__all__ = ["Engine", "engine"]


class Engine:
    """Schedules operations by the variables they read and write, and runs them on actors.

    Attributes:
        config: the current settings.
        settings_listeners: called with the settings whenever they change.
    """

    def __init__(self) -> None:
        self.books = books = Books()
        self.runner = runner = Runner(books)
        self.waiting = waiting = Waiter(books, runner)
        self.hosting = hosting = Host(books, runner, self)
        self.pushing = pushing = Pusher(books, runner, waiting, hosting)
        self.ending = ending = Lifecycle(books, runner, hosting, pushing)
        interrupts = InterruptHandler(runner.is_busy)
        process_hooks.at_install(interrupts.install, interrupts.uninstall)
        process_hooks.at_fork(after_in_child=interrupts.after_fork_in_child)
        self.config = settings.Settings()
        self.settings_listeners: list[Callable[[settings.Settings], None]] = []
        waiting.loop_thread, waiting.is_actor_thread = lambda: hosting.loop_thread, hosting.is_actor_thread
        pushing.apply_environment = lambda: self.configure(settings.get())
        # Bound here, so that callers need no extra call.
        self.lock = books.lock
        self.scheduler = books.scheduler
        self.pending = books.pending
        self.recover = books.recover
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
        self.slot_released = waiting.slot_released
        self.must_yield = waiting.must_yield
        self.holds = waiting.holds
        self.wait_for_room = waiting.wait_for_room
        self.waits = waiting.waits
        self.synchronizers = waiting.synchronizers
        self.network = hosting.network
        self.actors = hosting.actors
        self.start_callbacks = hosting.start_callbacks
        self.retire = hosting.retire
        self.enqueue = pushing.enqueue
        self.run_light = pushing.run_light
        self.cancel = pushing.cancel
        self.use_watch = pushing.use_watch
        self.watches = pushing.watches
        self.use_bulks = pushing.use_bulks
        self.leave_bulks = pushing.leave_bulks
        self.open_bulks = pushing.open_bulks
        self.drain = ending.drain
        self.shutdown = ending.shutdown

    def guard(self) -> Any:
        """Return the context for a thread that starts to run operations."""
        self.runner.prepare()
        return self.runner.guard()

    @property
    def kind(self) -> str:
        """``NaiveEngine``, ``ThreadedEngine`` or ``ThreadedEnginePerDevice``."""
        return self.pushing.kind

    @property
    def is_watched(self) -> bool:
        """Whether a watch inspects each operation, so that several must not be combined into one.

        Watches that look only at variables do not count: they order host operations behind asynchronous devices, count
        arrays by user line, or reject deleted variables.
        """
        return self.pushing.is_watched

    @property
    def failures(self) -> list[Failure]:
        """The recorded failures that no wait has raised yet."""
        return self.books.failures

    @property
    def poisoned(self) -> bool:
        """Whether an operation has failed, so that variables must be checked for failures."""
        return self.books.is_poisoned

    def configure(self, config: settings.Settings) -> None:
        """Use other settings from here on; wait for pending operations if the engine's kind changes.

        The first operation calls this, so the hooks of the process are installed here.
        """
        process_hooks.ensure_installed()
        self.config = config
        for part in (self.waiting, self.hosting, self.pushing, self.ending):
            part.configure(config)
        for listener in self.settings_listeners:
            listener(config)

    def stats(self) -> dict[str, Any]:
        """Return counts of operations, and the state of each actor."""
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

process_hooks.at_exit(program.end_as_failed)  # runs last
process_hooks.at_exit(engine.shutdown)
process_hooks.at_fork(
    before=engine.ending.before_fork,
    after_in_parent=engine.ending.after_fork_in_parent,
    after_in_child=engine.ending.after_fork_in_child,
)
