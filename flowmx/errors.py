"""The exceptions of flowmx. They also derive from the matching built-in types."""

from __future__ import annotations

import types
from contextlib import ContextDecorator
from functools import cache
from types import TracebackType
from typing import Any

from flowmx.late_binding import late


class MXNetError(RuntimeError):
    """Base class of flowmx's errors, with MXNet's name, so that existing ``except`` clauses work.

    If it is not handled, it is shown without flowmx's frames (:func:`flowmx.process_hooks.fold_uncaught`).
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        late("process_hooks").fold_uncaught()


class ShapeError(MXNetError, ValueError):
    """A shape is invalid: the message names the operator, the argument, the actual and the expected shape."""


class TypeInferenceError(MXNetError, TypeError):
    """A dtype is invalid: the message names the operator, the argument, the actual and the expected dtype."""


class ParameterError(MXNetError, ValueError):
    """An operator's parameter is missing, unknown or out of range."""


class IndexOutOfRange(MXNetError, IndexError):
    """An index is out of the range of an operator's input."""


class DataError(MXNetError, ValueError):
    """The content of a file, buffer or array is invalid."""


class StateError(AssertionError, RuntimeError):
    """A call at the wrong time, such as before ``bind()`` or after ``hybridize()``; an AssertionError in MXNet."""


class ArgumentError(AssertionError, ValueError):
    """The value of an argument is invalid; an AssertionError in MXNet."""


class ArgumentTypeError(AssertionError, TypeError):
    """The type of an argument is invalid; an AssertionError in MXNet."""


class ArgumentKindError(ValueError, TypeError):
    """The type of an argument is invalid, where MXNet raises ValueError; or the value, where it raises TypeError."""


class AdviceError(ValueError):
    """An invalid value, with advice in Python for programs, and in the syntax of the shell for commands.

    Args:
        text: what is wrong.
        python: what to do in a program.
        command: what to do on a command line.

    Attributes:
        on_command_line: the message for a command's user.
    """

    def __init__(self, text: str, python: str = "", command: str = "") -> None:
        super().__init__(f"{text}: {python}" if python else text)
        self.on_command_line = f"{text}: {command}" if command else text


class MismatchError(ShapeError, AssertionError):
    """The shapes of a parameter and its value differ; an AssertionError in MXNet."""


class NoParameterValue(MXNetError, ValueError):
    """The value of a network's parameter is missing or not initialized."""


class UnknownOption(MXNetError, TypeError):
    """A function received an unknown keyword argument."""


class UnknownName(KeyError, ValueError):
    """A name is unknown; a KeyError in MXNet."""

    __str__ = Exception.__str__


class DeviceError(MXNetError, ValueError):
    """A device does not exist, or the arrays of an operation are on different devices."""


class UnknownDevice(DeviceError, UnknownName):
    """A device type is unknown."""


class OutOfMemory(MXNetError, MemoryError):
    """A device is out of memory: the message has the requested and the free bytes, and the largest allocations."""


class RaceError(MXNetError):
    """The race checker of the simulated device: two operations use the same memory without being ordered."""


class NotImplementedForSymbol(MXNetError, NotImplementedError):
    """A method of arrays that symbols do not support, because they have no content until they are bound."""


class NoTruthValue(NotImplementedForSymbol, TypeError):
    """The truth value of a symbol was requested, as ``if`` does."""


class AutogradError(MXNetError):
    """The tape cannot compute a gradient: an array was not recorded, or was changed in place, or the tape was freed."""


class BudgetError(MXNetError, MemoryError):
    """A graph exceeds its memory budget even with recomputation."""


class KVStoreError(MXNetError, ValueError):
    """An invalid request to a KVStore, such as an unknown key or a value that does not match its key."""


class Overloaded(MXNetError):
    """A service has no room for a request.

    Attributes:
        retry_after: seconds until it should have room.
    """

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineError(MXNetError):
    """An invalid use of the engine."""


class OperationCancelled(EngineError):
    """The error of an array whose operation was cancelled before it ran."""


class UndeclaredWriteError(EngineError):
    """Checking mode: an operation wrote a variable that it had declared as read-only."""


class StorageFallbackWarning(UserWarning):
    """Sparse arrays were converted to dense ones for an operator without a sparse implementation."""


class LostWriteWarning(UserWarning):
    """A write modifies a copy that would be a view in NumPy."""


class CrossDeviceWarning(UserWarning):
    """A source line implicitly copies data off a device every time that it runs."""


def raised_as_mxnet(*kinds: type[Exception]) -> _RaisedAsMXNet:
    """Convert exceptions of these types so that they are MXNetErrors too; a context manager and decorator.

    >>> with raised_as_mxnet(OSError):
    ...     open("missing.params")
    Traceback (most recent call last):
    FileNotFoundError: [Errno 2] No such file or directory: 'missing.params'
    """
    return _RaisedAsMXNet(kinds)


class _RaisedAsMXNet(ContextDecorator):
    def __init__(self, kinds: tuple[type[Exception], ...]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, self._kinds) and (converted := as_mxnet_error(error)) is not error:
            try:
                raise converted
            finally:  # Python has set the original as the context, which would print it twice
                _copy_context(converted, error)


def as_mxnet_error(error: Exception) -> Exception:
    """Return a copy of an exception that is an instance of its type and of MXNetError, with its traceback and notes.

    An exception whose type does not allow this is returned unchanged.
    """
    kind = type(error)
    if isinstance(error, MXNetError):
        return error
    try:
        converted = _rebuild(kind, *_parts(kind, error))
    except Exception:  # constructors of user classes may raise anything
        return error
    late("process_hooks").fold_uncaught()
    _copy_context(converted, error)
    return converted.with_traceback(error.__traceback__)


def _copy_context(target: Exception, error: Exception) -> None:
    target.__cause__, target.__context__ = error.__cause__, error.__context__
    target.__suppress_context__ = error.__suppress_context__


def _parts(kind: type[Exception], error: Exception) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments and the state from which pickle rebuilds an exception."""
    reduced: Any = kind.__reduce__(error)
    slots = [
        name for base in kind.__mro__ for name in base.__dict__.get("__slots__", ())
    ]  # slots are not part of the pickled state
    content = {name: getattr(error, name) for name in slots if hasattr(error, name)}
    return reduced[1], {**content, **(reduced[2] if len(reduced) > 2 else {})}


@cache
def _combined_type(kind: Any) -> type[Exception]:
    def reduced(error: Exception) -> tuple[object, ...]:
        return _rebuild, (kind, *_parts(kind, error))

    bases = (MXNetError,) if issubclass(MXNetError, kind) else (kind, MXNetError)
    members = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, bases, members | {"__reduce__": reduced})


def _rebuild(kind: Any, arguments: tuple[Any, ...], content: dict[str, Any]) -> Exception:
    error: Exception = _combined_type(kind).__new__(_combined_type(kind), *arguments)
    if isinstance(kind.__init__, types.WrapperDescriptorType):  # a built-in constructor, which may store its arguments
        error.__init__(*arguments)  # type: ignore[misc]
    error.__setstate__(content)
    return error
