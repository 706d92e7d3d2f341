"""Automatic names of symbols, ``fullyconnected0``, ``fullyconnected1``, ..., and prefixes."""

from __future__ import annotations

from contextvars import ContextVar
from typing import cast

from flowmx.base import ClassProperties, ClassProperty
from flowmx.scopes import Entries, Value, assign

_default: Value[NameManager] = Value(cast("NameManager", None))
_current: ContextVar[Value[NameManager]] = ContextVar("flowmx_names", default=_default)


class NameManager(metaclass=ClassProperties):
    """Names symbols that are created without a name; a context manager that makes it the task's current one.

    Example:
        >>> with mx.name.NameManager():
        ...     net = mx.sym.Flatten(mx.sym.Variable("data"))
        >>> net.name
        'flatten0'

    Attributes:
        current: the task's current name manager; it can be set.
    """

    current = ClassProperty(lambda owner: _current.get().value, lambda manager: assign(_current, Value(manager)))

    def __init__(self) -> None:
        self._counter: dict[str, int] = {}
        self._entries = Entries(_current)

    def get(self, name: str | None, hint: str) -> str:
        """Return ``name``, or ``hint`` with the next number."""
        if name:
            return name
        number = self._counter.get(hint, 0)
        self._counter[hint] = number + 1
        return f"{hint}{number}"

    def __enter__(self) -> NameManager:
        self._entries.enter(Value(self))
        return self

    def __exit__(self, *error: object) -> None:
        self._entries.leave()


class Prefix(NameManager):
    """Adds a prefix to all names, explicit ones too.

    Example:
        >>> with mx.name.Prefix("stage1_"):
        ...     net = mx.sym.Variable("data")      # variables of the user keep their names
        ...     net = mx.sym.Flatten(net, name="flat")
        >>> net.name
        'stage1_flat'
    """

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def get(self, name: str | None, hint: str) -> str:
        return self._prefix + super().get(name, hint)


_default.value = NameManager()


def current() -> NameManager:
    """Return the task's current name manager."""
    return _current.get().value
