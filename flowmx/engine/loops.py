"""Event loops: the engine's own, and the one that :func:`run` runs a coroutine on."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import inspect
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, wait
from pathlib import Path
from threading import get_ident
from types import FrameType
from typing import Any, ParamSpec, TypeVar, overload
from weakref import WeakKeyDictionary

from flowmx import settings
from flowmx.errors import EngineError

P = ParamSpec("P")
T = TypeVar("T")


LOOK_UP = 1.0
"""Seconds after which a thread that waits looks for signals.

One that came a moment before the thread fell asleep, or that another thread received, wakes nobody: without this,
Ctrl-C would be lost.
"""

running: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()
"""Event loops on which operations were awaited, and the identity of the thread of each."""


def new_event_loop(use_uvloop: bool = True) -> asyncio.AbstractEventLoop:
    """A new event loop: uvloop's where it is installed and wanted, asyncio's elsewhere."""
    if use_uvloop:
        try:
            import uvloop
        except (ImportError, RuntimeError):  # RuntimeError: the interpreter is about to exit
            pass
        else:
            loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
            return _lenient(loop)
    return asyncio.new_event_loop()


def _lenient(loop: Any) -> asyncio.AbstractEventLoop:
    """A loop of uvloop's on which ``asyncio.eager_task_factory`` works in Python 3.13.0 to 3.13.2.

    uvloop passes ``eager_start`` to task factories, which asyncio's own take from 3.13.3 on.
    """
    if (3, 13) <= sys.version_info < (3, 13, 3):
        set_factory = loop.set_task_factory
        loop.set_task_factory = lambda factory: set_factory(factory and without_eager_start(factory))
    made: asyncio.AbstractEventLoop = loop
    return made


def without_eager_start(factory: Callable[..., Any]) -> Callable[..., Any]:
    """A task factory that takes ``eager_start`` and leaves it out of what it passes on."""

    @functools.wraps(factory)
    def made(*args: Any, eager_start: bool | None = None, **given: Any) -> Any:
        return factory(*args, **given)

    return made


# -- plain code --------------------------------------------------------------------------------------------

_HOSTS = frozenset({"IPython", "ipykernel", "marimo"})
_PROMPT = str(Path(asyncio.__file__).with_name("__main__.py"))
"""Packages, and the file of ``python -m asyncio``, that run on a loop of theirs what a person types."""

_COROUTINE = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE


def in_plain_code() -> bool:
    """Tell whether what calls this is plain code, which may block: no coroutine, and no callback of an event loop.

    What is typed into a notebook's cell or at a prompt is plain code although a loop runs below it, statement by
    statement; with an ``await`` of its own, Python makes a coroutine of the statement.
    """
    if asyncio._get_running_loop() is None:
        return True
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package in _HOSTS or frame.f_code.co_filename == _PROMPT:
            return True
        if frame.f_code.co_flags & _COROUTINE or package == "asyncio":
            return False
        frame = frame.f_back
    return False


def run(coroutine: Any) -> Any:
    """Run a coroutine from plain code to its end, on uvloop where it is there; returns its result.

    What is no coroutine is returned: plain code that calls a function decorated with :func:`runs_in_plain_code` has its
    result already.

    Raises:
        EngineError: it is called in a coroutine, which awaits others.
    """
    if not asyncio.iscoroutine(coroutine):
        return coroutine
    if asyncio._get_running_loop() is None:
        return _run_here(coroutine)
    if in_plain_code():
        return _run_beside(coroutine)
    coroutine.close()
    name = getattr(coroutine, "__name__", "coroutine")
    raise EngineError(f"run: an event loop runs here already: write `await {name}(...)` instead of `run({name}(...))`")


def _run_here(coroutine: Coroutine[Any, Any, T]) -> T:
    config = settings.get()
    with asyncio.Runner(loop_factory=lambda: new_event_loop(config.uvloop)) as runner:
        running[runner.get_loop()] = get_ident()
        return runner.run(coroutine)


def _run_beside(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in another thread, since a loop runs in this one; what interrupts the wait here cancels it."""
    from concurrent.futures import ThreadPoolExecutor

    started: Future[asyncio.Task[T]] = Future()

    async def begun() -> T:
        task: Any = asyncio.current_task()
        started.set_result(task)
        return await coroutine

    def cancel(started: Future[asyncio.Task[T]]) -> None:
        task = started.result()
        with contextlib.suppress(RuntimeError):  # its loop has closed meanwhile
            task.get_loop().call_soon_threadsafe(task.cancel)

    with ThreadPoolExecutor(1, "flowmx-run") as thread:
        ended = thread.submit(contextvars.copy_context().run, _run_here, begun())
        try:
            return result_of(ended)
        except BaseException:
            if not ended.done():
                started.add_done_callback(cancel)
            raise


def result_of(future: Future[T]) -> T:
    """Block until a future of another thread is done; an interrupt is never missed."""
    while wait([future], LOOK_UP).not_done:
        pass
    return future.result()


@overload
def runs_in_plain_code(function: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, Done]: ...


@overload
def runs_in_plain_code(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Any]: ...


def runs_in_plain_code(function: Callable[P, Coroutine[Any, Any, Any]]) -> Callable[P, Any]:
    """Let a coroutine function be called by plain code too: it runs to its end then, and returns its result.

    So scripts and cells of notebooks call ``mod.fit(...)``, and coroutines ``await mod.fit(...)``. What has no result
    may also be awaited, or given to ``asyncio.run``, which finds it done.
    """

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> Any:
        coroutine = function(*args, **kwargs)
        if not in_plain_code():
            return coroutine
        result: Any = run(coroutine)
        if result is None:
            result = Done()
        return result

    return called


class Done(Coroutine[Any, Any, None]):
    """An awaitable for a coroutine that has ended; it need not be awaited."""

    def __await__(self) -> Generator[Any, Any, None]:
        return
        yield

    def send(self, value: Any) -> Any:
        raise StopIteration

    def throw(self, *error: Any) -> Any:
        raise error[0]

    def close(self) -> None:
        """Do nothing: the coroutine has ended."""

    def _ipython_display_(self) -> None:
        """Show nothing under a notebook's cell."""

    def __repr__(self) -> str:
        return "done"


def start_locked(thread: threading.Thread) -> None:
    """Start a thread while the engine's lock is held.

    ``start`` waits for the new thread's first steps. Were garbage collected in these, a finalizer that takes the
    engine's lock would wait for the caller for ever: so nothing is collected meanwhile.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        thread.start()
    finally:
        if collects:
            gc.enable()


class LoopThread:
    """An event loop that runs in a thread of its own.

    Args:
        name: the thread's.
        use_uvloop: run on uvloop where it is installed.

    Attributes:
        loop, thread: what it is made of.
    """

    def __init__(self, name: str, use_uvloop: bool) -> None:
        self.loop = new_event_loop(use_uvloop)
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread and its loop; the engine's lock may be held."""
        start_locked(self.thread)

    def _run(self) -> None:
        loop = self.loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            if tasks:
                loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        finally:
            loop.close()

    def stop(self) -> None:
        """Cancel the remaining tasks, and let the thread end."""
        self.loop.call_soon_threadsafe(self.loop.stop)
