"""The dependency engine (``mx.engine``): push any work, tagged with what it reads and writes.

Example:
    >>> log = mx.engine.Variable("log")
    >>> op = mx.engine.push(lambda: print("hello"), writes=[log])
    >>> op.wait()
    hello

A coroutine function runs on the engine's own loop; a plain function on a device's worker thread.
Both may be given the variables of arrays: ``reads=[array]`` stands for the array's storage.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import types
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

from flowmx import settings
from flowmx.engine import bulking as _bulking
from flowmx.engine.actor import Actor, BatchActor, LoopActor
from flowmx.engine.loops import new_event_loop, run
from flowmx.engine.origin import Origin, capture, current_layer, describe, layer_scope, user_frame
from flowmx.engine.runtime import Engine, engine
from flowmx.engine.scheduler import Operation, Scheduler, State, Variable
from flowmx.engine.waiting import BlockingInCoroutineWarning, current
from flowmx.engine.workers import ThreadActor
from flowmx.errors import EngineError

__all__ = [
    "Actor", "BatchActor", "BlockingInCoroutineWarning", "Engine", "EngineError", "Handle", "LoopActor", "Operation",
    "Origin", "Scheduler", "State", "ThreadActor", "Variable", "bulk", "capture", "current_layer", "delete_variable",
    "describe", "engine", "layer_scope", "new_event_loop", "push", "room", "run", "runs_user_code", "set_bulk_size",
    "stats", "user_frame", "using", "waitall", "waitall_async",
]  # fmt: skip


class HasVariable(Protocol):
    """Anything that stands for a variable, such as an array."""

    @property
    def variable(self) -> Variable:
        """The tag of its content."""


class Handle(Operation):
    """A pushed operation: ``await`` it for the function's result, or wait, cancel and look at it.

    Cancelling a task that awaits it abandons the wait; :meth:`cancel` ends the operation itself.
    """

    def __await__(self) -> Generator[Any, None, Any]:
        if self.failure is None:
            yield from engine.wait_async(self)
        if self.token is not None:
            yield from engine.wait_for_device(self.token)
        if self.failure is not None:
            self.failure.throw_awaited()
        return self.result

    def wait(self) -> Any:
        """Block until it is complete; returns the function's result or raises its error."""
        if self.failure is None:
            engine.wait(self)
        if self.token is not None:
            self.token.wait()
        if self.failure is not None:
            self.failure.throw()
        return self.result

    def done(self) -> bool:
        """True when it is complete, well or not, or cancelled."""
        return self.state == State.DONE or self.failure is not None

    def cancel(self) -> bool:
        """Cancel it; returns True if that was still possible.

        What it would have written carries :class:`flowmx.errors.OperationCancelled`, from its turn on until
        it is written again. A coroutine that runs already is cancelled at its next await; a plain
        function that runs is not stopped (False).
        """
        return engine.cancel(self)


# How the frontends above tell which actor a device argument means; installed by flowmx.devices.
_actor_of: Callable[[Any], Actor] | None = None


def install_devices(actor_of: Callable[[Any], Actor]) -> None:
    """Say how a ``device=`` argument (None: the current device) becomes an actor."""
    global _actor_of
    _actor_of = actor_of


def push(
    function: Callable[[], Any] | Callable[[], Coroutine[Any, Any, Any]],
    reads: Iterable[Variable | HasVariable] = (),
    writes: Iterable[Variable | HasVariable] = (),
    device: Any = None,
    priority: int = 0,
    name: str | None = None,
) -> Handle:
    """Push any work to the engine; returns its handle at once.

    Args:
        function: called without arguments when all that it depends on is done. A coroutine function is
            awaited on the engine's loop.
        reads: variables (or arrays) whose content it reads.
        writes: variables (or arrays) whose content it writes or updates.
        device: the device whose actor runs it (default: the current device; a coroutine: the network).
        priority: higher runs earlier among what is ready.
        name: what messages and profiles call it (default: the function's name).

    Raises:
        TypeError: ``function`` is not callable, or a tag is neither a variable nor an array.
        EngineError: a variable has been deleted.

    Inside ``function`` the arrays that it names may be read and written in place, for example by
    ``numpy.from_dlpack(array)``.
    """
    if not callable(function):
        raise TypeError(f"push: function is {function!r}, expected something callable without arguments")
    is_coroutine = _is_coroutine_function(function)
    read_tags, write_tags = _tags("reads", reads), _tags("writes", writes)
    if is_coroutine and device is None:
        actor: Actor = engine.network
    elif _actor_of is None:
        raise EngineError("no devices are installed: import flowmx, not flowmx.engine alone")
    else:
        actor = engine.network if is_coroutine else _actor_of(device)
    label = name or str(getattr(function, "__name__", type(function).__name__))
    op = Handle(function, (), read_tags, write_tags, actor, label, capture())
    op.priority, op.is_coroutine = priority, is_coroutine
    runs_user_code(op)
    engine.enqueue(op)
    return op


def _is_coroutine_function(function: Callable[..., Any]) -> bool:
    if type(function) is types.FunctionType and not function.__dict__:  # there is no mark that makes it one
        return bool(function.__code__.co_flags & inspect.CO_COROUTINE)
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, (type, types.BuiltinFunctionType)):
        return False
    return inspect.iscoroutinefunction(function) or (
        not isinstance(function, (types.FunctionType, types.MethodType))
        and inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004  (the method itself is wanted)
    )


def runs_user_code(op: Operation) -> None:
    """Prepare an operation, before its push, that may do anything: use arrays, push, wait.

    It runs in a copy of the caller's context, in which it is the current operation, and outside of the caller's bulk:
    what it pushes there might be gathered with what waits for it.
    """
    op.runs_user_code, op.bulkable = True, False
    op.context = context = contextvars.copy_context()
    context.run(current.set, op)
    if _bulking.is_inside():
        context.run(_bulking.leave)
    op.layers = (*op.layers, _in_context) if op.layers else _IN_CONTEXT


def _in_context(op: Operation, proceed: Callable[[], Any]) -> Any:
    """A layer in which user code finds the context of its push."""
    assert op.context is not None
    return _await_in(op.context, proceed) if op.is_coroutine else op.context.run(proceed)


_IN_CONTEXT = (_in_context,)


async def _await_in(context: contextvars.Context, function: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    result, ending = await asyncio.get_running_loop().create_task(_ended(function), context=context)
    if ending is not None:
        raise ending
    return result


async def _ended(function: Callable[[], Coroutine[Any, Any, Any]]) -> tuple[Any, BaseException | None]:
    """Run a coroutine; returns its result, or the exception that would end the loop or its task."""
    try:
        return await function(), None
    except (SystemExit, KeyboardInterrupt) as ending:
        return None, ending


def _tags(argument: str, items: Iterable[Variable | HasVariable]) -> tuple[Variable, ...]:
    if type(items) is tuple and not items:  # the default
        return ()
    tags = []
    for item in items:
        variable = item if isinstance(item, Variable) else getattr(item, "variable", None)
        if not isinstance(variable, Variable):
            raise TypeError(f"push: {argument} holds {item!r}, expected engine variables or arrays")
        tags.append(variable)
    return tuple(dict.fromkeys(tags)) if len(tags) > 1 else tuple(tags)


def delete_variable(variable: Variable | HasVariable, on_delete: Callable[[], object] | None = None) -> Handle:
    """Delete a variable once the work pushed on it so far is done; ``on_delete`` is called then.

    Pushing on it is refused from now on, operators on its array included.
    """
    handle = push(on_delete or (lambda: None), writes=[variable], name="delete_variable")
    (variable if isinstance(variable, Variable) else variable.variable).deleted = True
    engine.use_watch(_refuse_deleted, "deleted")
    return handle


def _refuse_deleted(op: Operation) -> None:
    for variable in (*op.reads, *op.writes):
        if variable.deleted:
            raise EngineError(f"push: {variable!r}, which {op.name!r} uses, has been deleted: make a new variable")


def bulk(size: int) -> AbstractContextManager[None]:
    """Inside the ``with`` block, operators are pushed in groups of up to ``size`` as one operation each."""
    return _bulking.bulk(engine, size)


def set_bulk_size(size: int) -> int:
    """Kept for MXNet's scripts: bulking here is by :func:`bulk` scopes alone. Returns 0, the size so far."""
    if size < 0:
        raise ValueError(f"set_bulk_size: size is {size}, expected at least 0")
    return 0


def waitall() -> None:
    """Block until everything pushed so far is done; raises the first error that nobody has seen yet."""
    engine.wait_all()


class _Awaitable:
    def __init__(self, wait: Callable[[], Generator[Any, None, None]]) -> None:
        self._wait = wait

    def __await__(self) -> Generator[Any, None, None]:
        return self._wait()


def waitall_async() -> _Awaitable:
    """``await mx.engine.waitall_async()``: the awaited form of :func:`waitall`."""
    return _Awaitable(engine.wait_all_async)


def room() -> _Awaitable:
    """Wait (``await mx.engine.room()``) until the run-ahead is below half its limits."""
    return _Awaitable(engine.room)


def stats() -> dict[str, Any]:
    """Counts: operations pushed, completed, failed, pending, and each actor's queue."""
    return engine.stats()


@contextlib.contextmanager
def using(**values: Any) -> Iterator[Engine]:
    """A ``with`` block in which the engine runs with other settings, for tests and debugging.

    Example:
        >>> with mx.engine.using(engine_type="NaiveEngine"):
        ...     train()
    """
    before = engine.config
    with settings.override(**values):
        engine.configure(settings.get())
        try:
            yield engine
        finally:
            engine.configure(before)
