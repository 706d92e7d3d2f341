"""The homes of actors: their event loops, each in a thread of its own, and what happens when one of them dies."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flowmx.engine.actor import Actor, LoopActor
from flowmx.engine.bookkeeping import Books
from flowmx.engine.loops import LoopThread
from flowmx.engine.running import Runner
from flowmx.engine.scheduler import READY
from flowmx.errors import EngineError
from flowmx.settings import Settings

if TYPE_CHECKING:
    from flowmx.engine.runtime import Engine

_log = logging.getLogger("flowmx.engine")


class NoThread(EngineError):
    """No thread can be started: there are too many, or the interpreter exits (from Python 3.12 on)."""


class Hosting:
    """Starts the coroutines of actors at their first operation, and stops them.

    Attributes:
        actors: those at work, by name.
        network: awaits coroutine operations.
        loops: the event loops, by the name of the home.
        openers: called when the engine's own loop starts, with the lock held: at first use, and anew after a fork.
        is_closed: nothing can be pushed any more.
    """

    def __init__(self, books: Books, runner: Runner, engine: Engine) -> None:
        self.books = books
        self.runner = runner
        self.engine = engine
        self.actors: dict[str, Actor] = {}
        self.network = LoopActor("network")
        self.loops: dict[str, LoopThread] = {}
        self.openers: list[Callable[[], None]] = []
        self.is_closed = False
        self._tasks: dict[Actor, asyncio.Task[None]] = {}
        self._left_behind: list[Any] = []
        self._switch_interval_set = False
        self._config = Settings()

    def configure(self, config: Settings) -> None:
        """Use other settings."""
        self._config = config

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The engine's own event loop, if it runs."""
        home = self.loops.get(Actor.home)
        return None if home is None else home.loop

    @property
    def loop_thread(self) -> threading.Thread | None:
        """The thread of the engine's own event loop, if it runs."""
        home = self.loops.get(Actor.home)
        return None if home is None else home.thread

    def is_home(self) -> bool:
        """Tell whether the calling thread is one in which actors live."""
        thread = threading.current_thread()
        return any(home.thread is thread for home in self.loops.values())

    def adopt(self, actor: Actor) -> None:
        """Start an actor's coroutine, at its first use."""
        if self.is_closed:
            raise EngineError("the engine has been shut down: nothing can be pushed any more")
        with self.books.lock:
            if actor.engine is not None:
                return
            self._set_switch_interval()
            self.actors[actor.name] = actor
            loop = actor.own_loop or self._home(actor.home).loop
            actor.prepare()
            loop.call_soon_threadsafe(self._supervise, actor)
            actor.engine = self.engine

    def _set_switch_interval(self) -> None:
        if not self._switch_interval_set:
            self._switch_interval_set = True
            wanted = self._config.switch_interval
            if wanted and sys.getswitchinterval() > wanted:
                sys.setswitchinterval(wanted)

    def _home(self, name: str) -> LoopThread:
        """The event loop of that name, started at first use (locked)."""
        home = self.loops.get(name)
        if home is None:
            home = LoopThread(f"flowmx-{name}", self._config.uvloop)
            try:
                home.start()
            except RuntimeError as error:
                home.loop.close()
                raise NoThread(f"the engine can not start the thread of {name!r}: {error}") from error
            self.loops[name] = home
            if name == Actor.home:
                for opened in self.openers:
                    opened()
        return home

    def _supervise(self, actor: Actor) -> None:
        """Start an actor's coroutine (on its loop)."""
        loop = asyncio.get_running_loop()
        with self.books.lock:
            if actor.engine is None:  # an interrupt broke its adoption off
                return
            task = self._tasks.get(actor)
            if task is None or task.get_loop() is not loop:
                self._tasks[actor] = loop.create_task(self._run(actor), name=f"actor {actor.name}")

    async def _run(self, actor: Actor) -> None:
        """Run an actor's coroutine; where that ends by an error, its work fails loudly."""
        try:
            await actor.run()
        except GeneratorExit:  # it is collected as garbage, by a thread that may hold any lock
            raise
        except asyncio.CancelledError:
            self._ended(actor)
            raise
        except BaseException as error:
            _log.error("actor %s died", actor.name, exc_info=error)
            self.retire(actor)
            self.runner.abandon(
                [op for op in self.books.pending if op.actor is actor], f"actor {actor.name} died: {error!r}"
            )
            self._ended(actor)
        else:
            self._ended(actor)

    def _ended(self, actor: Actor) -> None:
        """Clean up after an actor's coroutine (on its loop)."""
        if self._tasks.get(actor) is asyncio.current_task():
            del self._tasks[actor]
        with self.books.lock:
            is_retired = self.actors.get(actor.name) is not actor
            if is_retired:
                actor.rest()
        self._close(actor.home)
        if is_retired and not self.is_closed:
            self.start_again()

    def retire(self, actor: Actor) -> None:
        """Stop and forget an actor that gets no more operations."""
        with self.books.lock:
            if self.actors.get(actor.name) is actor:
                del self.actors[actor.name]
                actor.stop()

    def _close(self, home: str) -> None:
        """Stop the loop of a device whose last actor was retired."""
        with self.books.lock:
            if home != Actor.home and home in self.loops and all(each.home != home for each in self.actors.values()):
                self.loops.pop(home).stop()

    # -- endings ---------------------------------------------------------------------------------------

    def stop(self, join: float) -> None:
        """Stop the actors and their loops, and join their threads for at most ``join`` seconds in all."""
        until = time.monotonic() + join
        with self.books.lock:
            threads = [thread for actor in self.actors.values() for thread in actor.threads()]
            for actor in self.actors.values():
                actor.stop()
            loops, self.loops = self.loops, {}
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))
        for home in loops.values():
            home.stop()
        for home in loops.values():
            home.thread.join(max(0.1, until - time.monotonic()))
        with self.books.lock:
            for actor in self.actors.values():
                actor.rest()

    def start_again(self) -> None:
        """Start the actors of operations that were pushed while actors were being stopped."""
        with self.books.lock:
            self.books.settle()
            for op in list(self.books.pending):
                if op.state == READY:
                    if op.actor.engine is None:
                        self.adopt(op.actor)
                    op.actor.accept(op)

    def forget(self) -> None:
        """Forget all threads, in the child of a fork."""
        # Never to be closed or collected here, which would disturb the parent's.
        self._left_behind.append(self._tasks)
        for home in self.loops.values():
            self._left_behind.append((home.loop, asyncio.all_tasks(home.loop)))
        for actor in self.actors.values():
            actor.reset()
        self.loops, self._tasks = {}, {}
