"""Automatic names of symbols: ``fullyconnected0``, ``fullyconnected1``, ... and prefixes."""

from __future__ import annotations

from contextvars import ContextVar, Token

from flowmx.base import ClassProperties, ClassProperty


class NameManager(metaclass=ClassProperties):
    """Gives names to symbols made without one; a ``with`` block makes it the task's current one.

    Example:
        >>> with mx.name.NameManager():
        ...     net = mx.sym.Flatten(mx.sym.Variable("data"))
        >>> net.name
        'flatten0'

    Attributes:
        current: the task's current one, which may be set.
    """

    current = ClassProperty(lambda owner: _current.get(), lambda manager: _current.set(manager))

    def __init__(self) -> None:
        self._counter: dict[str, int] = {}
        self._tokens: list[Token[NameManager]] = []

    def get(self, name: str | None, hint: str) -> str:
        """The name to use: the given one, or ``hint`` with the next number."""
        if name:
            return name
        number = self._counter.get(hint, 0)
        self._counter[hint] = number + 1
        return f"{hint}{number}"

    def __enter__(self) -> NameManager:
        self._tokens.append(_current.set(self))
        return self

    def __exit__(self, *error: object) -> None:
        _current.reset(self._tokens.pop())


class Prefix(NameManager):
    """Puts a prefix before every name, given ones too.

    Example:
        >>> with mx.name.Prefix("stage1_"):
        ...     net = mx.sym.Variable("data")      # named as given: variables of the user keep their names
        ...     net = mx.sym.Flatten(net, name="flat")
        >>> net.name
        'stage1_flat'
    """

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def get(self, name: str | None, hint: str) -> str:
        return self._prefix + super().get(name, hint)


_DEFAULT = NameManager()
_current: ContextVar[NameManager] = ContextVar("flowmx_names", default=_DEFAULT)


def current() -> NameManager:
    """The task's current name manager."""
    return _current.get()
