"""Attributes for the symbols made in a scope: ``with mx.AttrScope(ctx_group="dev1"):``."""

from __future__ import annotations

from contextvars import ContextVar, Token


class _Current:
    """A scope with the attributes that symbols made here get, as an attribute of the class."""

    def __get__(self, instance: AttrScope | None, owner: type[AttrScope]) -> AttrScope:
        return owner()  # adds nothing to what is current


class AttrScope:
    """Gives attributes to every symbol made inside its ``with`` block; inner scopes add and override.

    Args:
        **attributes: text values; ``ctx_group="dev1"`` is kept as ``__ctx_group__``.

    Attributes:
        current: what is in force here, for its :meth:`get`.

    Raises:
        ValueError: a value is no text.
    """

    current = _Current()

    def __init__(self, **attributes: str) -> None:
        for name, value in attributes.items():
            if not isinstance(value, str):
                raise ValueError(f"AttrScope: attribute {name} is {value!r}, expected text")
        self._attributes = {f"__{name.strip('_')}__": value for name, value in attributes.items()}
        self._tokens: list[Token[dict[str, str]]] = []

    def get(self, attributes: dict[str, str] | None) -> dict[str, str]:
        """The scope's attributes, overridden by the given ones."""
        return {**_current.get(), **self._attributes, **(attributes or {})}

    def __enter__(self) -> AttrScope:
        self._tokens.append(_current.set({**_current.get(), **self._attributes}))
        return self

    def __exit__(self, *error: object) -> None:
        _current.reset(self._tokens.pop())


_current: ContextVar[dict[str, str]] = ContextVar("flowmx_attributes", default={})  # noqa: B039  (never changed)


def current() -> dict[str, str]:
    """The attributes that a symbol made here gets."""
    return _current.get()
