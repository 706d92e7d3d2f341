"""Start, supervise and stop the event loops and threads on which actors run."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from flowmx.engine.actor import Actor, LoopActor
from flowmx.engine.bookkeeping import Books
from flowmx.engine.loops import LoopThread, create_hidden_task
from flowmx.engine.running import Runner
from flowmx.engine.scheduler import READY
from flowmx.errors import EngineError
from flowmx.settings import Settings

if TYPE_CHECKING:
    from flowmx.engine.runtime import Engine

_log = logging.getLogger("flowmx.engine")


class NoThread(EngineError):
    """No thread can be started: there are too many, or the interpreter is exiting (Python 3.12 and later)."""


class Host:
    """Starts the coroutines of actors at their first operation, and stops them.

    Attributes:
        actors: the started actors, by name.
        network: awaits coroutine operations.
        loops: the event loops, by home name.
        start_callbacks: called with the lock held when the engine's loop starts: at first use and after a fork.
        is_closed: whether no thread is started any more; the main thread then runs the operations that it pushes.
    """

    def __init__(self, books: Books, runner: Runner, engine: Engine) -> None:
        self.books = books
        self.runner = runner
        self.engine = engine
        self.actors: dict[str, Actor] = {}
        self.network = LoopActor("network")
        self.loops: dict[str, LoopThread] = {}
        self.start_callbacks: list[Callable[[], None]] = []
        self.is_closed = False
        self._tasks: dict[Actor, asyncio.Task[None]] = {}
        self._leaked: list[object] = []
        self._switch_interval_set = False
        self._config = Settings()

    def configure(self, config: Settings) -> None:
        """Use other settings."""
        self._config = config

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The engine's event loop, if it runs."""
        home = self.loops.get(Actor.home)
        return None if home is None else home.loop

    @property
    def loop_thread(self) -> threading.Thread | None:
        """The thread of the engine's event loop, if it runs."""
        home = self.loops.get(Actor.home)
        return None if home is None else home.thread

    def is_actor_thread(self) -> bool:
        """Return whether the calling thread runs actors' coroutines."""
        thread = threading.current_thread()
        return any(home.thread is thread for home in self.loops.values())

    def start_actor(self, actor: Actor) -> None:
        """Start an actor's coroutine, at its first use."""
        if self.is_closed:
            # On the main thread, exit functions may still push; on another, the interpreter kills this thread soon.
            kind = NoThread if threading.current_thread() is threading.main_thread() else EngineError
            raise kind("the engine has been shut down: nothing can be pushed any more")
        with self.books.lock:
            if actor.engine is not None:
                return
            self._set_switch_interval()
            self.actors[actor.name] = actor
            loop = actor.external_loop or self._home(actor.home).loop
            actor.prepare()
            loop.call_soon_threadsafe(self._supervise, actor)
            actor.engine = self.engine

    def _set_switch_interval(self) -> None:
        if not self._switch_interval_set:
            self._switch_interval_set = True
            interval = self._config.switch_interval
            if interval and sys.getswitchinterval() > interval:
                sys.setswitchinterval(interval)

    def _home(self, name: str) -> LoopThread:
        """Return the event loop of that name, started at first use (locked)."""
        home = self.loops.get(name)
        if home is None:
            home = LoopThread(f"flowmx-{name}", self._config.uvloop)
            try:
                home.start()
            except RuntimeError as error:
                home.loop.close()
                raise NoThread(f"the engine cannot start the thread of {name!r}: {error}") from error
            self.loops[name] = home
            if name == Actor.home:
                for callback in self.start_callbacks:
                    callback()
        return home

    def _supervise(self, actor: Actor) -> None:
        """Start an actor's coroutine (on its loop)."""
        loop = asyncio.get_running_loop()
        with self.books.lock:
            if actor.engine is None:  # an interrupt came during start_actor
                return
            task = self._tasks.get(actor)
            if task is None or task.get_loop() is not loop:
                self._tasks[actor] = create_hidden_task(loop, self._run(actor), f"actor {actor.name}")

    async def _run(self, actor: Actor) -> None:
        """Run an actor's coroutine; if it raises, fail the actor's operations."""
        try:
            await actor.run()
        except GeneratorExit:  # garbage collection by a thread that may hold any lock
            raise
        except asyncio.CancelledError:
            self._clean_up(actor)
            raise
        except BaseException as error:  # the actor's operations must fail, not wait
            _log.error("actor %s died", actor.name, exc_info=error)
            self.retire(actor)
            self.runner.abandon(
                [op for op in self.books.pending if op.actor is actor], f"actor {actor.name} died: {error!r}"
            )
            self._clean_up(actor)
        else:
            self._clean_up(actor)

    def _clean_up(self, actor: Actor) -> None:
        """Clean up after an actor's coroutine (on its loop)."""
        if self._tasks.get(actor) is asyncio.current_task():
            del self._tasks[actor]
        with self.books.lock:
            is_retired = self.actors.get(actor.name) is not actor
            if is_retired:
                actor.clear()
        self._close(actor.home)
        if is_retired and not self.is_closed:
            self.restart()

    def retire(self, actor: Actor) -> None:
        """Stop and remove an actor that gets no more operations."""
        with self.books.lock:
            if self.actors.get(actor.name) is actor:
                del self.actors[actor.name]
                actor.stop()

    def _close(self, home: str) -> None:
        """Stop the loop of a device whose last actor was retired."""
        with self.books.lock:
            if home != Actor.home and home in self.loops and all(actor.home != home for actor in self.actors.values()):
                self.loops.pop(home).stop()

    # -- endings ---------------------------------------------------------------------------------------

    def stop(self, join: float) -> None:
        """Stop the actors and their loops, and join their threads for at most ``join`` seconds in all."""
        deadline = time.monotonic() + join
        with self.books.lock:
            threads = [thread for actor in self.actors.values() for thread in actor.threads()]
            for actor in self.actors.values():
                actor.stop()
            loops, self.loops = self.loops, {}
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        for home in loops.values():
            home.stop()
        for home in loops.values():
            home.thread.join(max(0.1, deadline - time.monotonic()))
        with self.books.lock:
            for actor in self.actors.values():
                actor.clear()

    def restart(self) -> None:
        """Start the actors of operations that were pushed while actors were being stopped."""
        with self.books.lock:
            self.books.recover()
            for op in list(self.books.pending):
                if op.state == READY:
                    if op.actor.engine is None:
                        self.start_actor(op.actor)
                    op.actor.accept(op)

    def reset_after_fork(self) -> None:
        """Drop all threads, in the child of a fork."""
        # Keep references to loops and tasks: the child must not close or collect those of the parent.
        self._leaked.append(self._tasks)
        for home in self.loops.values():
            self._leaked.append((home.loop, asyncio.all_tasks(home.loop)))
        for actor in self.actors.values():
            actor.reset_after_fork()
        self.loops, self._tasks = {}, {}
