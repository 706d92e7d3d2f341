"""The dependency engine (``mx.engine``): push work, tagged with the variables it reads and writes.

Example:
    >>> log = mx.engine.Variable("log")
    >>> op = mx.engine.push(lambda: print("hello"), writes=[log])
    >>> op.wait()
    hello

A coroutine function runs on the engine's event loop, a plain function on a worker thread of a device.
Tags may be arrays too: ``reads=[array]`` means the variable of the array's storage.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import types
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Generic, Protocol, TypeVar, overload

from flowmx import settings
from flowmx.engine import bulking as _bulking
from flowmx.engine.actor import Actor, BatchActor, LoopActor
from flowmx.engine.loops import Coro, new_event_loop, run
from flowmx.engine.origin import Origin, capture, current_layer, describe, layer_scope, user_frame
from flowmx.engine.runtime import Engine, engine
from flowmx.engine.scheduler import Operation, Scheduler, State, Variable
from flowmx.engine.waiting import BlockingInCoroutineWarning, current
from flowmx.engine.workers import ThreadActor
from flowmx.errors import EngineError
from flowmx.renaming import renamed

__all__ = [
    "Actor", "BatchActor", "BlockingInCoroutineWarning", "Engine", "EngineError", "Handle", "LoopActor", "Operation",
    "Origin", "Scheduler", "State", "ThreadActor", "Variable", "bulk", "capture", "current_layer", "delete_variable",
    "describe", "engine", "layer_scope", "new_event_loop", "push", "run", "runs_user_code", "set_bulk_size",
    "stats", "user_frame", "using", "wait_for_capacity", "waitall", "waitall_async",
]  # fmt: skip


T = TypeVar("T")


class HasVariable(Protocol):
    """An object that has a variable, such as an array."""

    @property
    def variable(self) -> Variable:
        """The variable that stands for the object's content."""


class Handle(Operation, Generic[T]):
    """A pushed operation: ``await`` it for the function's result, wait for it, inspect it or cancel it.

    Cancelling a waiting task abandons only the wait; :meth:`cancel` ends the operation itself.
    """

    def __await__(self) -> Generator[Any, None, T]:
        if self.failure is None:
            yield from engine.wait_async(self)
        if self.token is not None:
            yield from engine.wait_for_device(self.token)
        if self.failure is not None:
            self.failure.throw_awaited()
        result: T = self.result
        return result

    def wait(self) -> T:
        """Block until the operation is complete; return the function's result or raise its error."""
        if self.failure is None:
            engine.wait(self)
        if self.token is not None:
            self.token.wait()
        if self.failure is not None:
            self.failure.throw()
        result: T = self.result
        return result

    def done(self) -> bool:
        """Return whether the operation has completed, failed or was cancelled."""
        return self.state == State.DONE or self.failure is not None

    def cancel(self) -> bool:
        """Cancel the operation; return whether that was still possible.

        Once its dependencies are complete, the variables that it writes carry
        :class:`flowmx.errors.OperationCancelled` until the next write. A running coroutine is cancelled at its next
        await. A running function cannot be stopped: the method returns False.
        """
        return engine.cancel(self)


# Finds the actor for a device argument; installed by flowmx.devices.
_actor_of: Callable[[Any], Actor] | None = None


def install_devices(actor_of: Callable[[Any], Actor]) -> None:
    """Set the function that returns the actor for a ``device=`` argument (None: the current device)."""
    global _actor_of
    _actor_of = actor_of


Tags = Iterable[Variable | HasVariable] | Variable | HasVariable
"""The variables of an operation, or arrays for theirs; or only one."""


@overload
def push(
    function: Callable[[], Coro[T]], reads: Tags = (), writes: Tags = (), device: object = None,
    priority: int = 0, name: str | None = None,
) -> Handle[T]: ...  # fmt: skip


@overload
def push(
    function: Callable[[], T], reads: Tags = (), writes: Tags = (), device: object = None, priority: int = 0,
    name: str | None = None,
) -> Handle[T]: ...  # fmt: skip


@overload  # a lambda whose parameters have defaults, the type of which mypy does not infer
def push(
    function: Callable[..., Any], reads: Tags = (), writes: Tags = (), device: object = None, priority: int = 0,
    name: str | None = None,
) -> Handle[Any]: ...  # fmt: skip


def push(
    function: Callable[..., Any], reads: Tags = (), writes: Tags = (), device: object = None, priority: int = 0,
    name: str | None = None,
) -> Handle[Any]:  # fmt: skip
    """Push work to the engine; return its handle immediately.

    Args:
        function: called without arguments once the dependencies are complete. A coroutine function is awaited on the
            engine's event loop.
        reads: the variables or arrays that the function reads: one, or several.
        writes: the variables or arrays that the function writes or updates: one, or several.
        device: the device to run it on, or an actor (default: the current device). A coroutine function runs on the
            :class:`LoopActor` that is passed, or else on that of the network.
        priority: among ready operations, a higher priority runs earlier.
        name: the operation's name in messages and profiles (default: the function's name).

    Raises:
        TypeError: ``function`` is not callable, a tag is neither a variable nor an array, or the actor does not fit.
        EngineError: a variable has been deleted.

    Inside ``function``, the arrays named in ``reads`` and ``writes`` may be accessed in place, for example with
    ``numpy.from_dlpack(array)``. Operators and assignments such as ``array[:] = 1`` push further operations, which
    run after ``function``; with the naive engine they run at once.
    """
    if not callable(function):
        raise _no_function(function)
    if not isinstance(priority, int):
        raise TypeError(f"push: priority is {priority!r}, expected an int")
    is_coroutine = _is_coroutine_function(function)
    read_tags, write_tags = _tags("reads", reads), _tags("writes", writes)
    if is_coroutine:
        actor: Actor = _loop_actor(device)
    elif _actor_of is None:
        raise EngineError("no devices are installed: import flowmx, not flowmx.engine alone")
    else:
        actor = _actor_of(device)
    label = name or str(getattr(function, "__name__", type(function).__name__))
    op: Handle[Any] = Handle(function, (), read_tags, write_tags, actor, label, capture())
    op.priority, op.is_coroutine = priority, is_coroutine
    runs_user_code(op)
    engine.enqueue(op)
    return op


def _no_function(value: object) -> TypeError:
    """Return the error of a push of the result of a call."""
    if inspect.iscoroutine(value):
        value.close()  # Python would warn that it was never awaited
        text, name = f"the coroutine {value.__name__}()", value.__name__
    else:
        text, name = repr(value), "f"
    return TypeError(
        f"push: function is {text}, expected a function without arguments: write push({name}), not push({name}())"
    )


def _loop_actor(device: object) -> Actor:
    """Return the actor of a pushed coroutine function: the one that was passed, or that of the network.

    Raises:
        TypeError: the actor that was passed runs functions on threads or streams.
    """
    if not isinstance(device, Actor):
        return engine.network
    if not isinstance(device, LoopActor):
        raise TypeError(
            f"push: device is the {type(device).__name__} {device.name!r}, expected a LoopActor, because function is a "
            "coroutine function"
        )
    return device


def _is_coroutine_function(function: Callable[..., object]) -> bool:
    if type(function) is types.FunctionType and not function.__dict__:  # no attributes: no decorator has marked it
        return bool(function.__code__.co_flags & inspect.CO_COROUTINE)
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, (type, types.BuiltinFunctionType)):
        return False
    return inspect.iscoroutinefunction(function) or (
        not isinstance(function, (types.FunctionType, types.MethodType))
        and inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004  (the method itself is inspected)
    )


def runs_user_code(op: Operation) -> None:
    """Prepare an operation that runs user code for its push: such code may use arrays, push and wait.

    The operation is always queued: its cost is unknown, and if it ran when pushed it would hold the engine's lock. It
    runs in a copy of the caller's context, in which it is the current operation, and outside the caller's bulk:
    otherwise, operations that it pushes might be combined with operations that wait for it.
    """
    op.runs_user_code, op.bulkable = True, False
    op.light = op.short = False
    op.context = context = contextvars.copy_context()
    context.run(current.set, op)
    if _bulking.is_inside():
        context.run(_bulking.leave_scope)
    op.layers = (*op.layers, _in_context) if op.layers else _IN_CONTEXT


def _in_context(op: Operation, proceed: Callable[[], Any]) -> Any:
    """Run user code with the context variables of its push (a layer)."""
    assert op.context is not None
    return _await_in_context(op, op.context, proceed) if op.is_coroutine else op.context.run(proceed)


_IN_CONTEXT = (_in_context,)


async def _await_in_context(
    op: Operation, context: contextvars.Context, function: Callable[[], Coro[Any]]
) -> Any:  # fmt: skip
    loop = asyncio.get_running_loop()
    result, exit_request = await loop.create_task(_outcome(function), name=op.name, context=context)
    if exit_request is not None:
        raise exit_request
    return result


async def _outcome(function: Callable[[], Coro[Any]]) -> tuple[Any, BaseException | None]:
    """Run a coroutine; return its result, or the exception if that would end the event loop."""
    try:
        return await function(), None
    except (SystemExit, KeyboardInterrupt) as exit_request:
        return None, exit_request


def _tags(argument: str, items: Any) -> tuple[Variable, ...]:
    if type(items) is tuple and not items:  # the default
        return ()
    if isinstance(items, Variable) or isinstance(getattr(items, "variable", None), Variable):
        items = (items,)
    tags = []
    for item in items:
        variable = item if isinstance(item, Variable) else getattr(item, "variable", None)
        if not isinstance(variable, Variable):
            raise TypeError(f"push: {argument} holds {item!r}, expected engine variables or arrays")
        tags.append(variable)
    return tuple(dict.fromkeys(tags)) if len(tags) > 1 else tuple(tags)


def delete_variable(variable: Variable | HasVariable, on_delete: Callable[[], object] | None = None) -> Handle[object]:
    """Delete a variable once the operations pushed on it so far are complete, and then call ``on_delete``.

    Later pushes on it, and operators on its array, raise an error.
    """
    handle = push(on_delete or (lambda: None), writes=[variable], name="delete_variable")
    (variable if isinstance(variable, Variable) else variable.variable).deleted = True
    engine.use_watch(_refuse_deleted, "deleted")
    return handle


def _refuse_deleted(op: Operation) -> None:
    for variable in (*op.reads, *op.writes):
        if variable.deleted:
            raise EngineError(f"push: {op.name!r} uses {variable!r}, which has been deleted: create a new variable")


def bulk(size: int) -> AbstractContextManager[None]:
    """Push the operators called inside the ``with`` block in groups of up to ``size``, each as one operation."""
    return _bulking.bulk(engine, size)


def set_bulk_size(size: int) -> int:
    """Do nothing and return 0, for MXNet's scripts: only :func:`bulk` scopes combine operations."""
    if not hasattr(size, "__index__") or size < 0:
        raise ValueError(f"set_bulk_size: size is {size}, expected an int of at least 0")
    return 0


def waitall() -> None:
    """Block until everything pushed so far is complete; raise the first error that no wait has raised yet."""
    engine.wait_all()


class _Awaitable:
    def __init__(self, wait: Callable[[], Generator[object, None, None]]) -> None:
        self._wait = wait

    def __await__(self) -> Generator[object, None, None]:
        return self._wait()


def waitall_async() -> _Awaitable:
    """Await everything pushed so far: the async form of :func:`waitall`."""
    return _Awaitable(engine.wait_all_async)


def wait_for_capacity() -> _Awaitable:
    """Await until the run-ahead is below half its limits."""
    return _Awaitable(engine.wait_for_room)


room = renamed(wait_for_capacity, "mx.engine.room", "mx.engine.wait_for_capacity")


def stats() -> dict[str, Any]:
    """Return counts of operations pushed, completed, failed and pending, and the queue length of each actor."""
    return engine.stats()


@contextlib.contextmanager
def using(**values: object) -> Iterator[Engine]:
    """Run the engine with other settings inside the ``with`` block, for tests and debugging.

    Example:
        >>> with mx.engine.using(engine_type="NaiveEngine"):
        ...     train()
    """
    try:
        with settings.override(**values):
            engine.configure(settings.get())
            yield engine
    finally:
        engine.configure(settings.get())
