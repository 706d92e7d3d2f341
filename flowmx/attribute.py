"""Attributes for the symbols made in a scope: ``with mx.AttrScope(ctx_group="dev1"):``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextvars import ContextVar, Token
from typing import Any, ClassVar

from flowmx.base import ClassProperties, ClassProperty

HIDDEN = frozenset(["ctx_group", "force_mirroring", "lr_mult", "mirror_stage", "profiler_scope", "wd_mult"])
"""MXNet's own attributes: kept with two underscores on either side, and shown under both names."""


def is_attribute(name: str) -> bool:
    """True for a keyword that is an attribute of any node, and no parameter of its operator."""
    return name in HIDDEN or (name.startswith("__") and name.endswith("__"))


def kept(attributes: Mapping[str, Any]) -> dict[str, str]:
    """Attributes as nodes keep them: as text, and MXNet's own under one name."""
    return {f"__{name}__" if name in HIDDEN else name: str(value) for name, value in attributes.items()}


def shown(attributes: Mapping[str, str]) -> dict[str, str]:
    """Attributes as a user sees them: MXNet's own under both of their names."""
    plain = {name.strip("_"): value for name, value in attributes.items() if name.startswith("__")}
    return {**{name: value for name, value in plain.items() if name in HIDDEN}, **attributes}


class AttrScope(metaclass=ClassProperties):
    """Gives attributes to every symbol made inside its ``with`` block; inner scopes add and override.

    Args:
        **attributes: text values.

    Attributes:
        current: a scope with the attributes that symbols made here get; setting it puts another one's in force.

    Raises:
        ValueError: a value is no text.
    """

    current = ClassProperty(
        lambda owner: owner._of(_current.get()), lambda scope: _current.set(dict(scope._attributes))
    )
    """The scope in force: its attributes are those of all entered scopes."""
    _subgraph_names: ClassVar[defaultdict[str, int]] = defaultdict(int)
    """The number of subgraphs of loops and branches by name, as tests of MXNet's count them."""

    @classmethod
    def _of(cls, attributes: dict[str, str]) -> AttrScope:
        made = cls()
        made._attributes = attributes
        return made

    def __init__(self, **attributes: str) -> None:
        for name, value in attributes.items():
            if not isinstance(value, str):
                raise ValueError(f"AttrScope: attribute {name} is {value!r}, expected text")
        self._attributes = attributes
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
    """The attributes that a symbol made here gets, as they were written."""
    return _current.get()
