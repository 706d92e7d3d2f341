"""The exceptions that flowmx raises, each also of the built-in type that fits it."""

from __future__ import annotations

import types
from contextlib import ContextDecorator
from functools import cache
from types import TracebackType
from typing import Any


class MXNetError(RuntimeError):
    """Base of every error that flowmx itself raises (MXNet's name, so that old ``except`` clauses work)."""


class ShapeError(MXNetError, ValueError):
    """A shape does not fit: the message names the operator, the argument, what was given and expected."""


class TypeInferenceError(MXNetError, TypeError):
    """A dtype does not fit: the message names the operator, the argument, what was given and expected."""


class ParameterError(MXNetError, ValueError):
    """An operator's parameter is missing, unknown or out of range."""


class IndexOutOfRange(MXNetError, IndexError):
    """An operator was given an index of what its input does not have."""


class DataError(MXNetError, ValueError):
    """The content of a file, buffer or array is not of the expected kind."""


class StateError(AssertionError, RuntimeError):
    """A call came at the wrong time: before ``bind()``, or after ``hybridize()``. MXNet asserts here."""


class ArgumentError(AssertionError, ValueError):
    """An argument has a value that does not fit, where MXNet asserts that it does."""


class ArgumentTypeError(AssertionError, TypeError):
    """An argument is of a type that does not fit, where MXNet asserts that it does."""


class ArgumentKindError(ValueError, TypeError):
    """An argument is of a type that does not fit, where MXNet calls that a wrong value, or the other way round."""


class MismatchError(ShapeError, AssertionError):
    """A parameter's shape does not fit what it is given, where MXNet asserts that it does."""


class NoParameterValue(MXNetError, ValueError):
    """Among the values given for a network's parameters one is missing, or not there yet."""


class UnknownOption(MXNetError, TypeError):
    """A function was given a keyword that it does not have."""


class UnknownName(KeyError, ValueError):
    """A name stands for nothing, where MXNet looks it up in a dict."""

    __str__ = Exception.__str__


class DeviceError(MXNetError, ValueError):
    """A device does not exist here, or arrays of one operation live on different devices."""


class UnknownDevice(DeviceError, UnknownName):
    """There is no such type of device."""


class OutOfMemory(MXNetError, MemoryError):
    """A device has no memory left: the message says what was asked for, what is free, and who holds the most."""


class RaceError(MXNetError):
    """The simulated device's checker: two operations use the same memory and nothing keeps them in order."""


class NotImplementedForSymbol(MXNetError, NotImplementedError):
    """A method of arrays that symbols can not have: they have no content until they are bound."""


class NoTruthValue(NotImplementedForSymbol, TypeError):
    """A symbol was asked whether it is true, as ``if`` does."""


class AutogradError(MXNetError):
    """A gradient was asked for that the tape cannot give (not recorded, freed, or changed in place)."""


class BudgetError(MXNetError, MemoryError):
    """A graph does not fit into the bytes that it was given, whatever is computed again."""


class KVStoreError(MXNetError, ValueError):
    """A key-value store was asked for what it can not do: an unknown key, keys that do not fit their values."""


class EngineError(MXNetError):
    """The engine was used in a way that it cannot carry out."""


class OperationCancelled(EngineError):
    """The error of an array whose operation was cancelled before it ran."""


class UndeclaredWriteError(EngineError):
    """Checking mode: an operation changed a variable that it had declared as read."""


class StorageFallbackWarning(UserWarning):
    """An operator was given sparse arrays that it has no way for: they are made dense for it."""


class LostWriteWarning(UserWarning):
    """A write goes into a copy that in NumPy would have been a view of another array."""


class CrossDeviceWarning(UserWarning):
    """A line moves data off a device without saying so, each time that it runs."""


def raised_as_mxnet(*kinds: type[Exception]) -> _Raised:
    """Make exceptions of these types MXNetErrors as well, as a context manager or a decorator.

    >>> with raised_as_mxnet(OSError):
    ...     open("missing.params")
    Traceback (most recent call last):
    FileNotFoundError: [Errno 2] No such file or directory: 'missing.params'
    """
    return _Raised(kinds)


class _Raised(ContextDecorator):
    def __init__(self, kinds: tuple[type[Exception], ...]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None:
        """Nothing is to be done before."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, self._kinds) and (both := also_mxnet(error)) is not error:
            try:
                raise both
            finally:  # Python has made the original its context, and it would be shown twice
                _take_context(both, error)


def also_mxnet(error: Exception) -> Exception:
    """The exception as one of its own type that is an MXNetError too, with its content, notes and traceback.

    What can not be made so (a type that forbids it) is returned as it is.
    """
    kind = type(error)
    if isinstance(error, MXNetError):
        return error
    try:
        made = _made(kind, *_parts(kind, error))
    except Exception:
        return error
    _take_context(made, error)
    return made.with_traceback(error.__traceback__)


def _take_context(made: Exception, error: Exception) -> None:
    made.__cause__, made.__context__ = error.__cause__, error.__context__
    made.__suppress_context__ = error.__suppress_context__


def _parts(kind: type[Exception], error: Exception) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments and the state from which pickle makes such an exception again."""
    reduced: Any = kind.__reduce__(error)
    slots = [name for base in kind.__mro__ for name in base.__dict__.get("__slots__", ())]  # not in Python's own state
    content = {name: getattr(error, name) for name in slots if hasattr(error, name)}
    return reduced[1], {**content, **(reduced[2] if len(reduced) > 2 else {})}


@cache
def _both(kind: Any) -> type[Exception]:
    def reduced(error: Exception) -> tuple[Any, ...]:
        return _made, (kind, *_parts(kind, error))

    bases = (MXNetError,) if issubclass(MXNetError, kind) else (kind, MXNetError)
    own = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, bases, own | {"__reduce__": reduced})


def _made(kind: Any, given: tuple[Any, ...], content: dict[str, Any]) -> Exception:
    made: Exception = _both(kind).__new__(_both(kind), *given)
    if isinstance(kind.__init__, types.WrapperDescriptorType):  # one of Python's own: it may keep what it is given
        made.__init__(*given)  # type: ignore[misc]
    made.__setstate__(content)
    return made
