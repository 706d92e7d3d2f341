"""Event loops: the engine's own, and the one that :func:`run` runs a coroutine on."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine, Generator
from threading import get_ident
from typing import Any, ParamSpec, TypeVar, overload
from weakref import WeakKeyDictionary

from flowmx import settings

P = ParamSpec("P")
T = TypeVar("T")


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
            return loop
    return asyncio.new_event_loop()


def run(coroutine: Any) -> Any:
    """Run a coroutine from plain code to its end, on uvloop where it is there; returns its result.

    What is no coroutine is returned: plain code that calls a function decorated with :func:`runs_in_plain_code` has its
    result already.
    """
    if not asyncio.iscoroutine(coroutine):
        return coroutine
    config = settings.get()
    with asyncio.Runner(loop_factory=lambda: new_event_loop(config.uvloop)) as runner:
        running[runner.get_loop()] = get_ident()
        return runner.run(coroutine)


@overload
def runs_in_plain_code(function: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, _Done]: ...


@overload
def runs_in_plain_code(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Any]: ...


def runs_in_plain_code(function: Callable[P, Coroutine[Any, Any, Any]]) -> Callable[P, Any]:
    """Let a coroutine function be called without an event loop too: it runs to its end then, and returns its result.

    So scripts of plain code call ``mod.fit(...)``, and coroutines ``await mod.fit(...)``. What has no result may
    also be given to ``asyncio.run``, which finds it done.
    """

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> Any:
        coroutine = function(*args, **kwargs)
        if _a_loop_runs():
            return coroutine
        result: Any = run(coroutine)
        if result is None:
            result = _Done()
        return result

    return called


class _Done(Coroutine[Any, Any, None]):
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

    def __repr__(self) -> str:
        return "done"


def _a_loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


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
        """Start the thread and its loop."""
        self.thread.start()

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
