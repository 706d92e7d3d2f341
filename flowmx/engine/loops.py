"""Event loops: :func:`run` runs a coroutine from a script, :class:`LoopThread` runs the engine's loops in threads."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import sys
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future, wait
from pathlib import Path
from threading import get_ident
from types import FrameType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar, overload

from flowmx import event_loops, process_hooks, settings
from flowmx.errors import EngineError
from flowmx.process_changes import collector_paused

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=Awaitable[Any])
"""A type whose values can be awaited, such as an array."""
Coro: TypeAlias = Coroutine[Any, Any, T]
"""A coroutine that returns a ``T``."""


SIGNAL_CHECK_INTERVAL = 1.0
"""Seconds after which a waiting thread checks for signals.

A signal that arrives just before the thread sleeps, or on another thread, does not wake it: without this check, Ctrl-C
would be lost.
"""


def new_event_loop(use_uvloop: bool = True) -> asyncio.AbstractEventLoop:
    """Create an event loop of uvloop if it is installed and ``use_uvloop`` is set, else one of asyncio."""
    if use_uvloop:
        try:
            import uvloop
        except (ImportError, RuntimeError):  # RuntimeError: the interpreter is about to exit
            pass
        else:
            loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
            return _accept_eager_factories(loop)
    return asyncio.new_event_loop()


def _accept_eager_factories(loop: Any) -> asyncio.AbstractEventLoop:
    """Make ``asyncio.eager_task_factory`` work on uvloop's loops in Python 3.13.0 to 3.13.2.

    uvloop passes ``eager_start`` to task factories, which asyncio's accept from 3.13.3 on.
    """
    if (3, 13) <= sys.version_info < (3, 13, 3):
        set_factory = loop.set_task_factory
        loop.set_task_factory = lambda factory: set_factory(factory and without_eager_start(factory))
    result: asyncio.AbstractEventLoop = loop
    return result


def without_eager_start(factory: Callable[..., Any]) -> Callable[..., Any]:
    """Return a task factory that accepts the argument ``eager_start`` and ignores it."""

    @functools.wraps(factory)
    def call(*args: Any, eager_start: bool | None = None, **kwargs: Any) -> Any:
        return factory(*args, **kwargs)

    return call


# -- ordinary code --------------------------------------------------------------------------------------------

_NOTEBOOK_PACKAGES = frozenset({"IPython", "ipykernel", "marimo"})
"""Packages that run interactive code on an event loop."""
_ASYNCIO_PROMPT = str(Path(asyncio.__file__).with_name("__main__.py"))
"""The file that ``python -m asyncio`` runs: a prompt on an event loop."""

_COROUTINE = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE


def in_ordinary_code() -> bool:
    """Return whether the caller is ordinary code, which may block: not a coroutine or a callback of an event loop.

    Code typed into a notebook cell or at a prompt is ordinary code although a loop runs below it. Statements that use
    ``await`` are not, since Python turns them into coroutines.
    """
    if asyncio._get_running_loop() is None:
        return True
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package in _NOTEBOOK_PACKAGES or frame.f_code.co_filename == _ASYNCIO_PROMPT:
            return True
        if frame.f_code.co_flags & _COROUTINE or package == "asyncio":
            return False
        frame = frame.f_back
    return False


@overload
def run(coroutine: Coro[T]) -> T: ...


@overload
def run(coroutine: T) -> T: ...


def run(coroutine: Any) -> Any:
    """Run a coroutine from ordinary code until it ends, on uvloop if it is installed; return its result.

    Any other argument is returned unchanged: it is the result of a call that has already blocked
    (:func:`blocks_in_ordinary_code`).

    Raises:
        EngineError: the caller is a coroutine, which should await instead.
        TypeError: the argument is a coroutine function that was not called.
    """
    if not asyncio.iscoroutine(coroutine):
        if inspect.iscoroutinefunction(coroutine):
            name = getattr(coroutine, "__name__", "main")
            raise TypeError(f"run: {name} is a coroutine function, expected a coroutine: write `run({name}())`")
        return coroutine
    if asyncio._get_running_loop() is None:
        return _run_here(coroutine)
    if in_ordinary_code():
        return _run_in_thread(coroutine)
    coroutine.close()
    name = getattr(coroutine, "__name__", "coroutine")
    raise EngineError(f"run: an event loop already runs here: write `await {name}(...)` instead of `run({name}(...))`")


def _run_here(coroutine: Coro[T]) -> T:
    error = event_loops.refuse(f"{getattr(coroutine, '__name__', 'a coroutine')}() runs to completion")
    if error is not None:
        coroutine.close()
        raise error
    process_hooks.ensure_installed()
    config = settings.get()
    with asyncio.Runner(loop_factory=lambda: new_event_loop(config.uvloop)) as runner:
        event_loops.running[runner.get_loop()] = get_ident()
        return runner.run(coroutine)


def _run_in_thread(coroutine: Coro[T]) -> T:
    """Run a coroutine in another thread, since this thread runs a loop; an interrupt here cancels it."""
    started: Future[asyncio.Task[T]] = Future()
    result: Future[T] = Future()
    is_interrupted = False

    async def announce() -> T:
        task: Any = asyncio.current_task()
        started.set_result(task)
        if is_interrupted:
            task.cancel()
        return await coroutine

    def run() -> None:
        try:
            result.set_result(_run_here(announce()))
        except BaseException as error:  # the waiting thread raises it
            result.set_exception(error)

    def cancel(started: Future[asyncio.Task[T]]) -> None:
        task = started.result()
        with contextlib.suppress(RuntimeError):  # the loop was closed in the meantime
            task.get_loop().call_soon_threadsafe(task.cancel)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name="flowmx-run")
    try:
        thread.start()  # an interrupt may come before it returns, with the thread running
        value = result_of(result)
    except BaseException:  # an interrupt must end the other thread's work too
        is_interrupted = True
        if not result.done():
            started.add_done_callback(cancel)
        if thread.ident is not None or wait([started], _THREAD_START).done:
            wait([result])
        else:
            coroutine.close()  # the thread has not started
        raise
    thread.join()
    return value


_THREAD_START = 1.0
"""Maximum seconds until a new thread runs its first lines."""


def result_of(future: Future[T]) -> T:
    """Block until a future of another thread is done, without missing interrupts."""
    while wait([future], SIGNAL_CHECK_INTERVAL).not_done:
        pass
    return future.result()


@overload
def blocks_in_ordinary_code(function: Callable[P, Coro[None]]) -> Callable[P, Done]: ...


@overload
def blocks_in_ordinary_code(function: Callable[P, Coro[list[T]]]) -> Callable[P, AwaitableList[T]]: ...


@overload
def blocks_in_ordinary_code(function: Callable[P, Coro[S]]) -> Callable[P, S]: ...


@overload
def blocks_in_ordinary_code(function: Callable[P, Coro[T]]) -> Callable[P, Any]: ...


def blocks_in_ordinary_code(function: Callable[P, Coro[Any]]) -> Callable[P, Any]:
    """Make calls of a coroutine function block in ordinary code, until the result is available.

    Scripts and notebook cells call ``mod.fit(...)``; coroutines ``await mod.fit(...)``. If the function returns None,
    a script may also await the finished call, or pass it to ``asyncio.run``.
    """

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
        coroutine = function(*args, **kwargs)
        if not in_ordinary_code():
            return coroutine
        result: Any = run(coroutine)
        if result is None:
            result = Done()
        return result

    return wrapper


if TYPE_CHECKING:

    class AwaitableList(list[T]):
        """A list, or a coroutine that returns one: the type of a call (:func:`blocks_in_ordinary_code`)."""

        def __await__(self) -> Generator[Any, None, list[T]]: ...


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

    ``start`` waits until the new thread runs. Garbage collection is paused meanwhile, since a finalizer that takes the
    engine's lock would deadlock with the caller.
    """
    with collector_paused():
        thread.start()


_hidden: dict[asyncio.Task[Any], None] = {}


def create_hidden_task(loop: asyncio.AbstractEventLoop, coroutine: Coro[T], name: str | None = None) -> asyncio.Task[T]:
    """Start a task of the engine that ``asyncio.all_tasks()`` does not list.

    Coroutines that users push run on the same loop, and may cancel every task that they see.
    """
    task = loop.create_task(coroutine, name=name)
    asyncio._unregister_task(task)
    _hidden[task] = None
    task.add_done_callback(_hidden.pop)
    return task


_CALL_LIMIT = 64
"""Maximum number of calls from other threads that a loop runs before it polls its timers and sockets."""


class LoopCalls:
    """A queue of calls that other threads make on a loop. Several calls share one wake-up of the loop.

    Without it, thousands of operations that end together would wake the loop thousands of times, then block it.

    Args:
        loop: the loop that runs the calls.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._waiting: deque[tuple[Callable[[Any], object], Any]] = deque()
        self._is_due = False

    def add(self, function: Callable[[T], object], argument: T) -> None:
        """Call ``function(argument)`` on the loop soon, from any thread; do nothing if the loop is closed."""
        self._waiting.append((function, argument))
        loop = self._loop()
        if self._is_due or loop is None:
            return
        self._is_due = True
        try:
            loop.call_soon_threadsafe(self._run)
        except RuntimeError:  # the loop is closed
            self._waiting.clear()
            self._is_due = False

    def _run(self) -> None:
        self._is_due = False  # before the calls: those added meanwhile wake the loop again
        for _ in range(min(len(self._waiting), _CALL_LIMIT)):
            function, argument = self._waiting.popleft()
            function(argument)
        loop = self._loop()
        if self._waiting and not self._is_due and loop is not None:
            self._is_due = True
            loop.call_soon(self._run)


class LoopThread:
    """An event loop in a separate thread, which runs until :meth:`stop` even if callbacks raise errors.

    Args:
        name: the name of the thread.
        use_uvloop: whether to use uvloop if it is installed.

    Raises:
        EngineError: gevent has replaced threads with greenlets.

    Attributes:
        loop, thread: the loop and its thread.
    """

    def __init__(self, name: str, use_uvloop: bool) -> None:
        event_loops.require_threads()
        self.loop = new_event_loop(use_uvloop)
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._is_stopped = False

    def start(self) -> None:
        """Start the thread and its loop; the engine's lock may be held."""
        start_locked(self.thread)

    def _run(self) -> None:
        loop = self.loop
        asyncio.set_event_loop(loop)
        try:
            while not self._is_stopped:
                try:
                    loop.run_forever()
                except BaseException as error:  # SystemExit or KeyboardInterrupt of a task that user code started
                    loop.call_exception_handler({"message": "a task or callback raised", "exception": error})
            tasks = asyncio.all_tasks(loop) | {task for task in list(_hidden) if task.get_loop() is loop}
            for task in tasks:
                task.cancel()
            if tasks:
                loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        finally:
            loop.close()

    def stop(self) -> None:
        """Cancel the remaining tasks, and end the thread."""
        self._is_stopped = True
        self.loop.call_soon_threadsafe(self.loop.stop)
