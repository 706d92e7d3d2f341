"""The exceptions that flowmx raises, each also of the built-in type that fits it."""

from __future__ import annotations


class MXNetError(RuntimeError):
    """Base of every error that flowmx itself raises (MXNet's name, so that old ``except`` clauses work)."""


class ShapeError(MXNetError, ValueError):
    """A shape does not fit: the message names the operator, the argument, what was given and expected."""


class TypeInferenceError(MXNetError, TypeError):
    """A dtype does not fit: the message names the operator, the argument, what was given and expected."""


class ParameterError(MXNetError, ValueError):
    """An operator's parameter is missing, unknown or out of range."""


class DeviceError(MXNetError, ValueError):
    """A device does not exist here, or arrays of one operation live on different devices."""


class OutOfMemory(MXNetError, MemoryError):
    """A device has no memory left: the message says what was asked for, what is free, and who holds the most."""


class RaceError(MXNetError):
    """The simulated device's checker: two operations use the same memory and nothing keeps them in order."""


class NotImplementedForSymbol(MXNetError, NotImplementedError):
    """A method of arrays that symbols can not have: they have no content until they are bound."""


class AutogradError(MXNetError):
    """A gradient was asked for that the tape cannot give (not recorded, freed, or changed in place)."""


class BudgetError(MXNetError, MemoryError):
    """A graph does not fit into the bytes that it was given, whatever is computed again."""


class KVStoreError(MXNetError, ValueError):
    """A key-value store was asked for what it can not do: an unknown key, keys that do not fit their values."""


class EngineError(MXNetError):
    """The engine was used in a way that it cannot carry out."""


class OperationCancelled(EngineError):
    """What an array carries whose operation was cancelled before it ran."""


class UndeclaredWriteError(EngineError):
    """Checking mode: an operation changed a variable that it had declared as read."""


class CrossDeviceWarning(UserWarning):
    """A line moves data off a device without saying so, each time that it runs."""
