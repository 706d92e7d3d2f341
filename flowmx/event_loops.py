"""Detection of event loops: flowmx is awaited on asyncio, and refuses to wait under other libraries.

The other libraries are not imported here: a library that runs this code was imported by the program.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from flowmx import process_hooks
from flowmx.errors import EngineError

__all__ = ["AsyncContext", "library", "refuse", "require_threads", "running", "running_loop", "to_thread"]

P = ParamSpec("P")
T = TypeVar("T")

running: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()
"""The event loops on which flowmx was awaited, with the ids of their threads."""
process_hooks.at_fork(after_in_child=running.clear)  # the loops of the parent


class _Library(NamedTuple):
    """A library with its own event loop.

    Attributes:
        runs_here: returns whether it runs this code; called with its module.
        advice: how to wait for an array and for a coroutine of flowmx under it.
    """

    runs_here: Callable[[Any], bool]
    advice: str


def _in_trio(trio: Any) -> bool:
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return False
    return True


def _in_greenlet(gevent: Any) -> bool:
    return isinstance(gevent.getcurrent(), gevent.Greenlet)


def _in_reactor(reactor: Any) -> bool:
    return bool(reactor.running) and bool(sys.modules["twisted.python.threadable"].isInIOThread())


_LIBRARIES = {
    "trio": _Library(
        _in_trio,
        "wait in a thread, `await trio.to_thread.run_sync(array.wait_to_read)`, and run coroutines of flowmx there, "
        "`await trio.to_thread.run_sync(mx.run, main())`",
    ),
    "curio.meta": _Library(
        lambda meta: bool(meta.curio_running()),
        "wait in a thread, `await curio.run_in_thread(array.wait_to_read)`, and run coroutines of flowmx there, "
        "`await curio.run_in_thread(mx.run, main())`",
    ),
    "gevent": _Library(
        _in_greenlet,
        "wait in a thread, `gevent.get_hub().threadpool.apply(array.wait_to_read)`, and run coroutines of flowmx "
        "there, `gevent.get_hub().threadpool.apply(mx.run, (main(),))`",
    ),
    "twisted.internet.reactor": _Library(
        _in_reactor, "install Twisted's asyncio reactor first, `twisted.internet.asyncioreactor.install()`"
    ),
}


_modules_without = -1
"""Number of imported modules when none of the libraries was among them. A cache, because every blocking wait checks."""


def library() -> str | None:
    """Return the name of the library that runs this code; None for asyncio and for plain threads."""
    global _modules_without
    if len(sys.modules) == _modules_without:
        return None
    imported = [(name, entry) for name, entry in _LIBRARIES.items() if name in sys.modules]
    if not imported:
        _modules_without = len(sys.modules)
    for name, entry in imported:
        if entry.runs_here(sys.modules[name]):
            return None if _in_asyncio_task() else name
    return None


def _in_asyncio_task() -> bool:
    """Return whether asyncio runs this code, possibly inside another library."""
    return asyncio._get_running_loop() is not None and asyncio.current_task() is not None


def refuse(call: str) -> EngineError | None:
    """Return the error for a blocking call under a library other than asyncio; None if asyncio or no loop runs.

    Args:
        call: the call, as the beginning of a sentence.
    """
    name = library()
    if name is None:
        return None
    return EngineError(f"{call} under {name.partition('.')[0]}, whose loop it would block: {_LIBRARIES[name].advice}")


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running asyncio event loop.

    Raises:
        EngineError: there is no running loop, or another library runs this code.
    """
    loop = asyncio._get_running_loop()
    name = library() if loop is None or asyncio.current_task() is None else None
    if name is not None:
        raise EngineError(
            f"flowmx was awaited under {name.partition('.')[0]}, but supports only asyncio: {_LIBRARIES[name].advice}"
        )
    if loop is None:
        raise EngineError(
            "flowmx was awaited without a running asyncio event loop: run the coroutine with `mx.run(main())` or "
            "`asyncio.run(main())`"
        )
    if loop not in running:
        running[loop] = threading.get_ident()
    return loop


async def to_thread(function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Call :func:`asyncio.to_thread`, with an error message for other libraries.

    Raises:
        EngineError: asyncio does not run this code.
    """
    running_loop()
    return await asyncio.to_thread(partial(function, *args, **options))


def require_threads() -> None:
    """Check that threads are system threads.

    Raises:
        EngineError: gevent replaces threads by greenlets.
    """
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched("threading"):
        raise EngineError(
            "gevent has patched the threading module, but flowmx needs system threads: call "
            "`gevent.monkey.patch_all(thread=False)` instead"
        )


class AsyncContext:
    """An object that ``async with`` enters; the error of a plain ``with`` says so."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __enter__(self):
            raise TypeError(f"{type(self).__name__}: write `async with` instead of `with`, in a coroutine")

        def __exit__(self, *error):
            """Do nothing."""
